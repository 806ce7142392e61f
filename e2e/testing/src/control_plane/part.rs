//! One process of a control plane: its output goes to a file, and dropping its value ends it.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::process::{Child, Command};

const LAST_LINES: usize = 15;
/// A process that does not end when told to is killed after this time.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, thiserror::Error)]
pub enum PartError {
    #[error("failed to start {name} ({program}): {source}")]
    Start {
        name: String,
        program: PathBuf,
        source: std::io::Error,
    },
    #[error("{name} ended ({how}); it said last:\n{last}")]
    Ended { name: String, how: String, last: String },
    #[error("{name} does not serve: {why}; it said last:\n{last}")]
    Useless { name: String, why: String, last: String },
    #[error("failed to end {name}: {what}")]
    Stop { name: String, what: String },
}

/// A process and its log.
pub struct Part {
    name: String,
    program: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    log: PathBuf,
    child: Child,
}

impl Part {
    pub fn start(name: &str, program: &Path, arguments: Vec<String>, folder: &Path) -> Result<Self, PartError> {
        Self::start_with(name, program, arguments, Vec::new(), folder)
    }

    /// Starts a process with additional environment. Its log is `NAME.log` in the folder.
    pub fn start_with(
        name: &str,
        program: &Path,
        arguments: Vec<String>,
        environment: Vec<(String, String)>,
        folder: &Path,
    ) -> Result<Self, PartError> {
        let log = folder.join(format!("{name}.log"));
        let child = spawn(name, program, &arguments, &environment, &log)?;
        Ok(Self {
            name: name.to_owned(),
            program: program.to_owned(),
            arguments,
            environment,
            log,
            child,
        })
    }

    /// Starts the process again after it has ended. It appends to the same log.
    pub fn again(&mut self) -> Result<(), PartError> {
        self.child = spawn(&self.name, &self.program, &self.arguments, &self.environment, &self.log)?;
        Ok(())
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// The kernel's figure for its memory, in MiB: `VmRSS:` is resident now, `VmHWM:` the peak.
    pub fn memory(&self, line: &str) -> Option<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()?)).ok()?;
        let kib = status.lines().find_map(|text| text.strip_prefix(line))?;
        Some(kib.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok()? / 1024.0)
    }

    /// Processor time used so far, in seconds.
    pub fn processor_seconds(&self) -> Option<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()?)).ok()?;
        let mut fields = stat.rsplit(')').next()?.split_whitespace().skip(11);
        let (user, system): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        Some((user + system) / 100.0)
    }

    /// An error if it has ended.
    pub fn runs(&mut self) -> Result<(), PartError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.ended(status.to_string())),
            Err(error) => Err(self.ended(error.to_string())),
        }
    }

    /// Tells it to end, and waits until it has.
    pub async fn stop(&mut self) -> Result<(), PartError> {
        self.send(Signal::SIGTERM)?;
        match tokio::time::timeout(PATIENCE, self.child.wait()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(self.unstopped(error)),
            Err(_) => self.kill().await,
        }
    }

    /// Kills it without notice.
    pub async fn kill(&mut self) -> Result<(), PartError> {
        self.child.kill().await.map_err(|error| self.unstopped(error))
    }

    /// Sends it a signal.
    pub fn send(&self, signal: Signal) -> Result<(), PartError> {
        let Some(pid) = self.pid().and_then(|pid| i32::try_from(pid).ok()) else {
            return Ok(());
        };
        kill(Pid::from_raw(pid), signal).map_err(|error| self.unstopped(error))
    }

    /// The error of a process that runs but does not work.
    pub fn useless(&self, why: String) -> PartError {
        PartError::Useless {
            name: self.name.clone(),
            why,
            last: self.last_lines(),
        }
    }

    /// Its output.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn last_lines(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
    }

    fn ended(&self, how: String) -> PartError {
        PartError::Ended {
            name: self.name.clone(),
            how,
            last: self.last_lines(),
        }
    }

    fn unstopped(&self, error: impl std::fmt::Display) -> PartError {
        PartError::Stop {
            name: self.name.clone(),
            what: error.to_string(),
        }
    }
}

/// `setpriv` makes it end with this process, however this process ends.
fn spawn(
    name: &str,
    program: &Path,
    arguments: &[String],
    environment: &[(String, String)],
    log: &Path,
) -> Result<Child, PartError> {
    let unstarted = |source| PartError::Start {
        name: name.to_owned(),
        program: program.to_owned(),
        source,
    };
    let output = File::options().create(true).append(true).open(log).map_err(unstarted)?;
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "--"])
        .arg(program)
        .args(arguments)
        .envs(environment.iter().cloned())
        .stdin(Stdio::null())
        .stderr(output.try_clone().map_err(unstarted)?)
        .stdout(output)
        .kill_on_drop(true)
        .spawn()
        .map_err(unstarted)
}
