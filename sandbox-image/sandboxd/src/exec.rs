//! Commands: each id runs once, whoever asks how often; what it printed and how it ended is remembered for a while.
//!
//! A command runs on although the connection that asked for it is gone: the retry with the same id waits for the same result.

mod limits;
mod tree;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    fs,
    io::{self, ErrorKind},
    os::{fd::OwnedFd, unix::process::CommandExt as _},
    process::{Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use grpo_sandbox_protocol::{DEFAULT_OUTPUT_BYTES, ExecRequest, ExecResult, KEY_ENV, Killed, MAX_OUTPUT_BYTES};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::unix::pipe,
    sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch},
    task::JoinHandle,
    time::Instant,
};

use crate::{
    output::Output,
    reaper::{End, Reaper},
};
use limits::Counters;
use tree::{EXEC_ENV, Target};

pub use tree::kill_everything;

/// Results that are remembered, in number and in bytes.
const REMEMBERED: usize = 256;
const REMEMBERED_BYTES: usize = 64 << 20;
/// Ids of which it is remembered that they have run, so that none runs twice.
const REMEMBERED_IDS: usize = 8192;
const MAX_ID_BYTES: usize = 256;
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// Commands at the same time.
const MAX_RUNNING: usize = 32;
/// Output is waited for so long after the command has ended, if some background process keeps it open.
const DRAIN: Duration = Duration::from_millis(250);
const DRAIN_QUIET: Duration = Duration::from_millis(50);
/// A killed process is gone after this, or it hangs in the kernel.
const DEATH: Duration = Duration::from_secs(5);
/// Background processes whose output is read on so that they do not die of it.
const MAX_DISCARDING: usize = 64;
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Why a command was not run. That its program does not exist is a result, as in a shell.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    #[error("argv names no program")]
    NoProgram,
    #[error("{MAX_RUNNING} commands run already; wait for one of them")]
    TooMany,
    #[error("{0}")]
    Setup(String),
}

/// Runs commands. Cloning is cheap.
#[derive(Clone)]
pub struct Executor {
    reaper: Reaper,
    known: Arc<Mutex<Known>>,
    running: Arc<Semaphore>,
    discarding: Arc<Semaphore>,
}

#[derive(Default)]
struct Known {
    entries: HashMap<String, Entry>,
    /// Ids of ended commands, oldest first.
    ended: VecDeque<String>,
    /// Those of them that still have a result, oldest first.
    kept: VecDeque<String>,
    kept_bytes: usize,
}

enum Entry {
    Running(watch::Receiver<Option<Arc<ExecResult>>>),
    Ended(Arc<ExecResult>),
    Forgotten,
}

/// A command that runs.
struct Started {
    target: Target,
    end: oneshot::Receiver<End>,
    feeding: Option<JoinHandle<()>>,
}

impl Executor {
    pub fn new(reaper: Reaper) -> Self {
        Self {
            reaper,
            known: Arc::default(),
            running: Arc::new(Semaphore::new(MAX_RUNNING)),
            discarding: Arc::new(Semaphore::new(MAX_DISCARDING)),
        }
    }

    /// The result of the command with this id, which is run if it never was.
    pub async fn run(&self, request: ExecRequest) -> Result<Arc<ExecResult>, ExecError> {
        let mut waiting = match self.known_or_begun(request)? {
            Entry::Ended(result) => return Ok(result),
            Entry::Running(waiting) => waiting,
            Entry::Forgotten => {
                let message = "the command with this id has run, and its result is not kept any more; use another id";
                return Err(ExecError::Setup(message.into()));
            }
        };
        let ended = waiting.wait_for(Option::is_some).await.map(|result| result.clone());
        let given_up = || ExecError::Setup("the command was given up; lease another sandbox".into());
        ended.ok().flatten().ok_or_else(given_up)
    }

    fn known_or_begun(&self, request: ExecRequest) -> Result<Entry, ExecError> {
        if request.argv.first().is_none_or(String::is_empty) {
            return Err(ExecError::NoProgram);
        }
        if request.id.is_empty() || request.id.len() > MAX_ID_BYTES || request.id.contains('\0') {
            let message = format!("an id has 1 to {MAX_ID_BYTES} bytes, none of them zero");
            return Err(ExecError::Setup(message));
        }
        let mut known = self.known();
        match known.entries.get(&request.id) {
            Some(Entry::Ended(result)) => return Ok(Entry::Ended(result.clone())),
            Some(Entry::Running(waiting)) => return Ok(Entry::Running(waiting.clone())),
            Some(Entry::Forgotten) => return Ok(Entry::Forgotten),
            None => {}
        }
        let permit = self
            .running
            .clone()
            .try_acquire_owned()
            .map_err(|_| ExecError::TooMany)?;
        let (tell, waiting) = watch::channel(None);
        known
            .entries
            .insert(request.id.clone(), Entry::Running(waiting.clone()));
        let executor = self.clone();
        tokio::spawn(async move {
            let result = Arc::new(executor.run_once(&request).await);
            end_of(permit);
            executor.known().remember(result.clone());
            tell.send_replace(Some(result));
        });
        Ok(Entry::Running(waiting))
    }

    async fn run_once(&self, request: &ExecRequest) -> ExecResult {
        let began = Instant::now();
        let before = Counters::now();
        let limit = request
            .max_output_bytes
            .unwrap_or(DEFAULT_OUTPUT_BYTES)
            .min(MAX_OUTPUT_BYTES);
        let mut output = Output::new(limit as usize);
        let (end, timed_out) = match self.run_to_its_end(request, began, &mut output).await {
            Ok(ended) => ended,
            Err(error) => {
                output.push(format!("sandboxd: cannot run {}: {error}\n", request.argv[0]).as_bytes());
                return ExecResult {
                    exit_code: Some(if error.kind() == ErrorKind::NotFound { 127 } else { 126 }),
                    killed: shortage(&error),
                    ..bare_result(request, began, output)
                };
            }
        };
        let after = Counters::now();
        let (exit_code, signal) = match end {
            End::Exited(code) => (Some(code), None),
            End::Killed(signal) => (None, Some(signal)),
        };
        let killed = if timed_out {
            Some(Killed::Timeout)
        } else if exit_code == Some(0) {
            None
        } else if after.memory_kills > before.memory_kills {
            Some(Killed::OutOfMemory)
        } else {
            (after.process_refusals > before.process_refusals).then_some(Killed::PidLimit)
        };
        ExecResult {
            exit_code,
            signal,
            timed_out,
            killed,
            ..bare_result(request, began, output)
        }
    }

    /// How it ended, and whether that was because its time was over.
    async fn run_to_its_end(
        &self,
        request: &ExecRequest,
        began: Instant,
        output: &mut Output,
    ) -> io::Result<(End, bool)> {
        let (mut started, mut printed) = self.start(request)?;
        let timeout = Duration::from_secs(request.timeout_seconds).min(MAX_TIMEOUT);
        let mut buffer = vec![0; 64 << 10];
        let mut open = true;
        let mut is_over = std::pin::pin!(tokio::time::sleep_until(began + timeout));
        let (end, timed_out) = loop {
            tokio::select! {
                end = &mut started.end => break (end.unwrap_or(End::Killed(9)), false),
                () = &mut is_over => {
                    started.target.alone = self.running.available_permits() == MAX_RUNNING - 1;
                    tree::kill_all_of(&started.target).await;
                    let end = tokio::time::timeout(DEATH, &mut started.end).await;
                    break (end.ok().and_then(Result::ok).unwrap_or(End::Killed(9)), true);
                }
                read = printed.read(&mut buffer), if open => match read {
                    Ok(0) | Err(_) => open = false,
                    Ok(count) => output.push(&buffer[..count]),
                },
            }
        };
        let last = Instant::now() + DRAIN;
        while open {
            let until = last.min(Instant::now() + DRAIN_QUIET);
            match tokio::time::timeout_at(until, printed.read(&mut buffer)).await {
                Ok(Ok(0) | Err(_)) => open = false,
                Ok(Ok(count)) => output.push(&buffer[..count]),
                Err(_) => break,
            }
            // Read what is there, but not for ever what a background process goes on printing.
            if Instant::now() >= last {
                break;
            }
        }
        if let Some(feeding) = started.feeding {
            feeding.abort();
        }
        if open {
            self.discard(printed);
        }
        Ok((end, timed_out))
    }

    fn start(&self, request: &ExecRequest) -> io::Result<(Started, pipe::Receiver)> {
        let (printed, writer) = io::pipe()?;
        let printed = pipe::Receiver::from_owned_fd(OwnedFd::from(printed))?;
        let mut command = Command::new(&request.argv[0]);
        command
            .args(&request.argv[1..])
            .env_clear()
            .envs(environment(request))
            .process_group(0)
            .stdin(if request.stdin.is_some() {
                Stdio::piped()
            } else {
                Stdio::null()
            })
            .stdout(writer.try_clone()?)
            .stderr(writer);
        if let Some(folder) = &request.cwd {
            // Said here, because the system's answer would read as if the program were missing.
            fs::metadata(folder).map_err(|error| io::Error::other(format!("folder {folder}: {error}")))?;
            command.current_dir(folder);
        }
        let (mut child, end) = self.reaper.start(&mut command)?;
        let pid = child.id() as i32;
        // When memory runs out the kernel takes a command rather than sandboxd. Where it may not be said, it takes the biggest.
        let _ = fs::write(format!("/proc/{pid}/oom_score_adj"), "1000");
        let feeding = match (child.stdin.take(), &request.stdin) {
            (Some(stdin), Some(text)) => Some(feed(pipe::Sender::from_owned_fd(OwnedFd::from(stdin))?, text.clone())),
            _ => None,
        };
        let target = Target {
            id: request.id.clone(),
            pid,
            began: tree::began(pid),
            alone: false,
        };
        Ok((Started { target, end, feeding }, printed))
    }

    /// Goes on reading what background processes print: closing it would kill them.
    fn discard(&self, mut printed: pipe::Receiver) {
        let Ok(permit) = self.discarding.clone().try_acquire_owned() else {
            return;
        };
        tokio::spawn(async move {
            let mut buffer = vec![0; 4 << 10];
            while matches!(printed.read(&mut buffer).await, Ok(1..)) {}
            end_of(permit);
        });
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Puts a result in the place of the running command, and forgets the oldest.
    fn remember(&mut self, result: Arc<ExecResult>) {
        self.kept_bytes += result.output.len();
        self.kept.push_back(result.id.clone());
        self.ended.push_back(result.id.clone());
        self.entries.insert(result.id.clone(), Entry::Ended(result));
        // The newest is always kept: whoever waits for it may have to ask again.
        while self.kept.len() > 1 && (self.kept.len() > REMEMBERED || self.kept_bytes > REMEMBERED_BYTES) {
            let Some(oldest) = self.kept.pop_front() else { break };
            if let Some(Entry::Ended(result)) = self.entries.insert(oldest, Entry::Forgotten) {
                self.kept_bytes -= result.output.len();
            }
        }
        while self.ended.len() > REMEMBERED_IDS {
            let Some(oldest) = self.ended.pop_front() else { break };
            self.entries.remove(&oldest);
        }
    }
}

/// Held until here.
fn end_of(permit: OwnedSemaphorePermit) {
    drop(permit);
}

/// Writes the text and closes. A program that does not read it is free not to.
fn feed(mut stdin: pipe::Sender, text: String) -> JoinHandle<()> {
    tokio::spawn(async move {
        let _ = stdin.write_all(text.as_bytes()).await;
    })
}

/// The container's own environment without our key, what the request adds, and the mark that finds daemons.
fn environment(request: &ExecRequest) -> BTreeMap<String, String> {
    let mut environment: BTreeMap<String, String> = [("PATH", DEFAULT_PATH), ("HOME", "/root")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    let own =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    environment.extend(own.filter(|(name, _)| name != KEY_ENV));
    environment.extend(request.env.clone());
    environment.insert(EXEC_ENV.to_owned(), request.id.clone());
    environment
}

/// Which limit kept the program from being started.
fn shortage(error: &io::Error) -> Option<Killed> {
    match error.kind() {
        ErrorKind::WouldBlock => Some(Killed::PidLimit),
        ErrorKind::OutOfMemory => Some(Killed::OutOfMemory),
        _ => None,
    }
}

fn bare_result(request: &ExecRequest, began: Instant, output: Output) -> ExecResult {
    let (output, omitted_bytes) = output.text();
    ExecResult {
        id: request.id.clone(),
        exit_code: None,
        signal: None,
        timed_out: false,
        output,
        omitted_bytes,
        duration_millis: began.elapsed().as_millis() as u64,
        killed: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(id: usize, bytes: usize) -> Arc<ExecResult> {
        Arc::new(ExecResult {
            id: id.to_string(),
            exit_code: Some(0),
            signal: None,
            timed_out: false,
            output: "x".repeat(bytes),
            omitted_bytes: 0,
            duration_millis: 0,
            killed: None,
        })
    }

    #[test]
    fn results_are_forgotten_by_number_and_by_size_but_not_that_they_ran() {
        let mut known = Known::default();
        for id in 0..REMEMBERED + 10 {
            known.remember(ended(id, 1));
        }
        assert!(matches!(known.entries["9"], Entry::Forgotten));
        assert!(matches!(known.entries["10"], Entry::Ended(_)));
        known.remember(ended(1000, REMEMBERED_BYTES));
        assert!(matches!(known.entries["10"], Entry::Forgotten));
        assert!(matches!(known.entries["1000"], Entry::Ended(_)));
        assert_eq!(known.kept_bytes, REMEMBERED_BYTES);
        for id in 2000..2000 + REMEMBERED_IDS {
            known.remember(ended(id, 1));
        }
        assert_eq!((known.entries.len(), known.kept.len()), (REMEMBERED_IDS, REMEMBERED));
    }
}
