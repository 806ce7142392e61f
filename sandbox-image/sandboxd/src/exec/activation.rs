//! Environments from an activation script: it runs once, and every command that names the script gets the resulting
//! environment.
//!
//! A shell evaluates the script and then becomes sandboxd itself, which prints its environment after a mark that the
//! script cannot know. So an image needs only a shell.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OnceCell;

use super::launch::Variables;
use super::tree::EXEC_ENV;

/// Argument of sandboxd: print the mark that follows, and the environment.
pub const PRINT_ENVIRONMENT: &str = "--print-environment";
const SCRIPT_ENV: &str = "GRPO_ACTIVATE";
const PRINTER_ENV: &str = "GRPO_PRINT_ENVIRONMENT";
/// Maximum environments that are kept. A task has one or two.
const KEPT: usize = 16;
/// Variables of the shell that ran the script, and our own.
const NOT_TAKEN: [&str; 7] = ["_", "SHLVL", "PWD", "OLDPWD", EXEC_ENV, SCRIPT_ENV, PRINTER_ENV];

/// Script and user.
type Key = (String, Option<String>);
type Cell = Arc<OnceCell<Variables>>;

/// The environments that scripts produced. Cloning is cheap.
#[derive(Clone, Default)]
pub struct Environments(Arc<Mutex<VecDeque<(Key, Cell)>>>);

impl Environments {
    /// The cell of an environment. Its first user sets the environment up; others wait until that is done.
    pub fn of(&self, script: &str, user: Option<&str>) -> Cell {
        let key = (script.to_owned(), user.map(str::to_owned));
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, cell)) = kept.iter().find(|(known, _)| *known == key) {
            return cell.clone();
        }
        let cell = Cell::default();
        kept.push_back((key, cell.clone()));
        if kept.len() > KEPT {
            kept.pop_front();
        }
        cell
    }
}

/// A shell that runs the script and prints the resulting environment.
pub struct Activation {
    pub mark: String,
    pub arguments: Vec<String>,
    pub variables: Variables,
}

impl Activation {
    pub fn new(script: &str) -> io::Result<Self> {
        let mut random = [0; 16];
        // From the kernel, because `/dev/urandom` may have been replaced. This few bytes come at once or not at all.
        rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty())?;
        let mark = random.iter().fold(String::new(), |mut mark, byte| {
            let _ = write!(mark, "{byte:02x}");
            mark
        });
        let myself = std::env::current_exe()?.to_string_lossy().into_owned();
        let shell = format!("eval \"${SCRIPT_ENV}\" || exit; exec \"${PRINTER_ENV}\" {PRINT_ENVIRONMENT} {mark}");
        Ok(Self {
            arguments: vec!["-c".into(), shell],
            variables: [(SCRIPT_ENV, script), (PRINTER_ENV, &myself)]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            mark,
        })
    }

    /// Parses the environment from the shell's output.
    pub fn result(&self, printed: &str) -> Option<Variables> {
        let (_, listed) = printed.rsplit_once(&format!("\0{}\0", self.mark))?;
        let pairs = listed.split('\0').filter_map(|variable| variable.split_once('='));
        Some(
            pairs
                .filter(|(name, value)| !NOT_TAKEN.contains(name) && !value.contains('\u{fffd}'))
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        )
    }
}

/// Implements [`PRINT_ENVIRONMENT`].
pub fn print_environment(mark: &str) -> io::Result<()> {
    let mut listed = format!("\0{mark}\0").into_bytes();
    for (name, value) in std::env::vars_os() {
        listed.extend_from_slice(name.as_bytes());
        listed.push(b'=');
        listed.extend_from_slice(value.as_bytes());
        listed.push(0);
    }
    io::stdout().write_all(&listed)
}

#[cfg(test)]
mod tests;
