//! The context of a tool: the sandbox of its episode, its turn, and the tools' memory.

use super::memory::Memory;
use super::{Switches, eval};
use crate::episode::live::LiveEpisode;
use crate::episode::work::{Halt, Program};
use grpo_records::TurnRecord;
use grpo_sandbox_protocol::ExecResult;

/// The largest file that tools read or write, in bytes.
const LARGEST_FILE: usize = 256 << 10;
/// Prints `D` for a folder, `M` for a missing path, `L` for a file that cannot be read whole, and `F` with the bytes of
/// a file in hexadecimal digits.
const READ: &str = r#"if [ -d "$1" ]; then echo D
elif [ ! -e "$1" ]; then echo M
elif [ ! -f "$1" ] || [ ! -r "$1" ] || [ "$(wc -c < "$1")" -gt "$2" ]; then echo L
else echo F; od -An -v -tx1 < "$1" | tr -d ' \n'
fi"#;
/// Keeps owner and mode of the file. Python takes compiled code for that of a source with the same size and the same
/// second of its last change, so a second change within a second is dated one later: `eval` would test the code from
/// before. On one line, because bash names the line of an error.
const WRITE: &str = r#"before=$(stat -c %Y "$1" 2> /dev/null); cat > "$1" || exit; { [ "$(stat -c %Y "$1")" != "$before" ] || touch -d "@$((before + 1))" "$1"; } 2> /dev/null; exit 0"#;

/// Why a file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unread {
    Folder,
    /// Missing, or not in the working directory.
    Missing(String),
    /// Too large, not a file, not text.
    Unusable(String),
}

pub struct Bench<'a, 'e> {
    pub episode: &'a LiveEpisode<'e>,
    pub turn: &'a mut TurnRecord,
    pub switches: &'a Switches,
    pub memory: Memory,
    /// The purpose of its programs, and how many programs and sessions the turn has begun.
    purpose: &'static str,
    begun: u32,
}

impl<'a, 'e> Bench<'a, 'e> {
    pub fn new(
        episode: &'a LiveEpisode<'e>,
        turn: &'a mut TurnRecord,
        switches: &'a Switches,
        memory: Memory,
        purpose: &'static str,
    ) -> Self {
        Self {
            episode,
            turn,
            switches,
            memory,
            purpose,
            begun: 0,
        }
    }

    /// The folder of the repository.
    pub fn directory(&self) -> &str {
        &self.episode.plan.task.environment.directory
    }

    /// The full path, if it stays in the working directory.
    pub fn resolved(&self, path: &str) -> Result<String, String> {
        inside(self.directory(), path).ok_or_else(|| self.missing(path))
    }

    /// The message for a missing path.
    pub fn missing(&self, path: &str) -> String {
        format!(
            "`{path}` does not exist or is not in the working directory `{}`.",
            self.directory()
        )
    }

    pub fn session_name(&mut self) -> String {
        self.begun += 1;
        format!("{}-{}", self.episode.session_name(self.turn, "pdb"), self.begun)
    }

    /// Runs a script of a tool. `input`: its standard input.
    pub async fn run(
        &mut self,
        script: &str,
        arguments: &[&str],
        input: Option<String>,
        output_bytes: u64,
    ) -> Result<ExecResult, Halt> {
        let argv = ["/bin/bash", "--noprofile", "--norc", "-c", script, "tool"];
        let program = Program {
            name: format!("{}{}", self.purpose, self.begun),
            argv: argv.iter().chain(arguments).map(|word| (*word).to_owned()).collect(),
            // The width of the original's terminal: pytest cuts its summary to it.
            variables: [("COLUMNS".to_owned(), "200".to_owned())].into(),
            stdin: input,
            timeout: self.episode.command_time(self.turn),
            output_bytes,
        };
        self.begun += 1;
        self.episode.run_program(self.turn, program).await
    }

    /// The message for a program that timed out.
    pub fn timed_out(&self) -> String {
        eval::timed_out(self.episode.limits.command_timeout.as_secs())
    }

    /// A file as text.
    pub async fn read(&mut self, path: &str) -> Result<Result<String, Unread>, Halt> {
        let file = match self.resolved(path) {
            Ok(file) => file,
            Err(message) => return Ok(Err(Unread::Missing(message))),
        };
        let largest = LARGEST_FILE.to_string();
        let room = 2 * LARGEST_FILE as u64 + 1024;
        let result = self.run(READ, &[&file, &largest], None, room).await?;
        let unusable = || Unread::Unusable(format!("Failed to run command: cat {file}"));
        let (kind, digits) = result.output.split_once('\n').unwrap_or_default();
        Ok(match kind {
            "D" => Err(Unread::Folder),
            "M" => Err(Unread::Missing(self.missing(path))),
            "F" if result.exit_code == Some(0) => {
                let bytes = hex::decode(digits.trim()).ok();
                bytes
                    .and_then(|bytes| String::from_utf8(bytes).ok())
                    .ok_or_else(unusable)
            }
            _ => Err(unusable()),
        })
    }

    /// Replaces the content of a file; the inner error says what failed.
    pub async fn write(&mut self, path: &str, text: String) -> Result<Result<(), String>, Halt> {
        let file = match self.resolved(path) {
            Ok(file) => file,
            Err(message) => return Ok(Err(message)),
        };
        if text.len() > LARGEST_FILE {
            return Ok(Err(format!(
                "the file would have {} bytes, more than {LARGEST_FILE}",
                text.len()
            )));
        }
        let result = self.run(WRITE, &[&file], Some(text), 4096).await?;
        Ok(match (result.exit_code, result.timed_out) {
            (Some(0), _) => Ok(()),
            (_, true) => Err(self.timed_out()),
            _ => Err(result.output.trim().to_owned()),
        })
    }
}

/// A path below a folder, without `.` and `..`; `None` if it leads out of it.
fn inside(directory: &str, path: &str) -> Option<String> {
    let full = match path.starts_with('/') {
        true => path.to_owned(),
        false => format!("{directory}/{path}"),
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in full.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    let full = format!("/{}", parts.join("/"));
    let below = full.strip_prefix(directory)?;
    (below.is_empty() || below.starts_with('/')).then_some(full)
}

#[cfg(test)]
mod tests;
