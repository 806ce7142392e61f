//! The official grader as a child process that judges logs: one JSON line per request, one per answer. A log that takes
//! too long cannot be judged, as when the run was graded; the child process is then replaced.

use serde::Deserialize;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

/// Maximum time for the start of Python, and for judging one log.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum GraderError {
    #[error(
        "starting the grader {worker}: {what}; its packages are expected in {site} (`make images` puts them there)"
    )]
    Start {
        worker: PathBuf,
        site: PathBuf,
        what: String,
    },
    #[error("the grader ended while judging {instance}: {what}")]
    Ended { instance: String, what: String },
}

/// The command that starts the grader.
#[derive(Clone, Debug)]
pub struct GraderCommand {
    pub worker: PathBuf,
    /// The folder where rollout-image/grader/requirements.txt is installed.
    pub site: PathBuf,
}

/// A running grader.
#[derive(Debug)]
pub struct Grader {
    command: GraderCommand,
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<std::io::Result<String>>,
}

/// Whether a log shows the task as resolved; `Err` is the grader's own text on why it cannot judge.
pub type Judgement = Result<bool, String>;

#[derive(Deserialize)]
struct Answer {
    ok: bool,
    #[serde(default)]
    resolved: bool,
    #[serde(default)]
    error: Option<String>,
}

impl GraderCommand {
    /// The child process; its standard input and output are pipes.
    pub fn process(&self) -> Command {
        let mut process = Command::new("python3");
        process
            .arg(&self.worker)
            .env("PYTHONPATH", &self.site)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("PYTHONUTF8", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        process
    }

    pub fn start(&self) -> Result<Grader, GraderError> {
        let cannot = |what: String| GraderError::Start {
            worker: self.worker.clone(),
            site: self.site.clone(),
            what,
        };
        let mut child = self.process().spawn().map_err(|e| cannot(e.to_string()))?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(cannot("no pipes".into()));
        };
        // One line is in transit at a time; the thread ends with the child's output.
        let (sender, lines) = sync_channel(1);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let grader = Grader {
            command: self.clone(),
            child,
            stdin,
            lines,
        };
        match grader.lines.recv_timeout(PATIENCE) {
            Ok(Ok(line)) if line.contains("\"ready\"") => Ok(grader),
            Ok(Ok(line)) => Err(cannot(format!("it said {line}"))),
            Ok(Err(e)) => Err(cannot(e.to_string())),
            Err(RecvTimeoutError::Timeout) => Err(cannot(format!("not ready within {PATIENCE:?}"))),
            Err(RecvTimeoutError::Disconnected) => Err(cannot("it ended at once".into())),
        }
    }
}

impl Grader {
    /// Whether the official package calls the task resolved, from this log alone.
    pub fn judge(&mut self, instance: &str, row: &Value, patch: &str, log: &Path) -> Result<Judgement, GraderError> {
        let ended = |what: String| GraderError::Ended {
            instance: instance.to_owned(),
            what,
        };
        let request = json!({"id": 1, "op": "grade", "row": row, "patch": patch, "log": log});
        writeln!(self.stdin, "{request}").map_err(|e| ended(e.to_string()))?;
        self.stdin.flush().map_err(|e| ended(e.to_string()))?;
        let line = match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => line.map_err(|e| ended(e.to_string()))?,
            Err(RecvTimeoutError::Disconnected) => return Err(ended("no answer".into())),
            Err(RecvTimeoutError::Timeout) => {
                let again = self.command.start()?;
                *self = again;
                return Ok(Err(format!("no verdict within {PATIENCE:?}")));
            }
        };
        let answer: Answer = serde_json::from_str(&line).map_err(|e| ended(format!("{e} in {line}")))?;
        Ok(match answer {
            Answer { ok: true, resolved, .. } => Ok(resolved),
            Answer { error, .. } => Err(error.unwrap_or_default()),
        })
    }
}

impl Drop for Grader {
    fn drop(&mut self) {
        // The child has no state to lose; an error means that it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
