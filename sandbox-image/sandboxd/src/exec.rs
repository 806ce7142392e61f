//! Commands: each id runs once, even if several calls ask for it; its output and exit status are kept for a while.
//!
//! A command keeps running when its caller's connection is gone: a retry with the same id waits for the same result. So
//! a background command differs from others only in that its caller does not wait.

mod activation;
mod begin;
mod known;
mod launch;
mod limits;
mod tree;

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use grpo_sandbox_protocol::{
    DEFAULT_OUTPUT_BYTES, ExecRequest, ExecResult, ExecState, KillRequest, Killed, MAX_ID_BYTES, MAX_OUTPUT_BYTES,
    MAX_PART_BYTES, OutputPart,
};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Instant;

use crate::bounds::ProcessGuard;
use crate::offload;
use crate::output::{Disk, Output, Printed};
use crate::reaper::{End, Reaper, SpawnError};
use activation::{Activation, Environments};
use begin::Started;
use known::{Entry, Known, Run, SignalRequest};
use limits::{CounterFiles, Counters};

pub use activation::{PRINT_ENVIRONMENT, print_environment};
pub use begin::Launcher;
pub use launch::{Surroundings, User, Variables};
pub use tree::{Target, kill_all_of, kill_everything};

const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// Maximum commands and sessions at the same time.
const MAX_RUNNING: usize = 32;
/// Maximum pending orders to one command.
const MAX_ORDERS: usize = 8;
/// Size of one read of output. Most commands print less.
const READ: usize = 16 << 10;
/// How long to read output after the command has ended, if a background process keeps it open.
const DRAIN: Duration = Duration::from_millis(250);
const DRAIN_QUIET: Duration = Duration::from_millis(50);
/// A killed process is gone after this time, or it hangs in the kernel.
const DEATH: Duration = Duration::from_secs(5);
/// Maximum background processes whose output is still read, so that they do not die of a closed pipe.
const MAX_DISCARDING: usize = 64;
/// Deadline to look up a user, or the limit that a command hit.
const LOOK_WITHIN: Duration = Duration::from_secs(5);
/// Maximum bytes that an activation script prints and exports together.
const MAX_ACTIVATION_BYTES: usize = 1 << 20;

/// Why a command was not run. A missing program is a result and not such an error, as in a shell.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    #[error("argv names no program")]
    NoProgram,
    #[error("{MAX_RUNNING} commands run already; wait for one of them")]
    TooMany,
    #[error("there is no {0}, or it is not kept any more")]
    Unknown(String),
    #[error("{0} is no signal")]
    NoSignal(i32),
    #[error("the prompt is no regular expression: {0}")]
    BadPrompt(String),
    #[error("{0}")]
    Setup(String),
}

/// Why a program was not started.
#[derive(Debug, thiserror::Error)]
pub enum NotStarted {
    #[error("{0}")]
    System(#[from] io::Error),
    #[error("setting up its environment took too long:\n{0}")]
    Late(String),
    #[error("setting up its environment:\n{0}")]
    Activation(String),
    #[error("{0}")]
    Begin(#[from] SpawnError),
}

/// Runs commands. Cloning is cheap.
#[derive(Clone)]
pub struct Executor {
    launcher: Launcher,
    known: Arc<Mutex<Known>>,
    running: Arc<Semaphore>,
    /// Number of commands and sessions since the start.
    begun: Arc<AtomicU64>,
    discarding: Arc<Semaphore>,
    environments: Environments,
    disk: Disk,
    counters: Arc<CounterFiles>,
    guard: ProcessGuard,
}

/// How a command ended, and the reason if sandboxd ended it.
struct Ended {
    end: End,
    cut: Option<Killed>,
}

impl Executor {
    /// Must run before any program of the sandbox, which could replace the files that it opens.
    pub fn new(reaper: Reaper, guard: ProcessGuard) -> io::Result<Self> {
        Ok(Self {
            launcher: Launcher::new(reaper)?,
            known: Arc::default(),
            running: Arc::new(Semaphore::new(MAX_RUNNING)),
            begun: Arc::default(),
            discarding: Arc::new(Semaphore::new(MAX_DISCARDING)),
            environments: Environments::default(),
            disk: Disk::default(),
            counters: Arc::new(CounterFiles::open()),
            guard,
        })
    }

    /// The launcher for programs that are not commands.
    pub fn launcher(&self) -> &Launcher {
        &self.launcher
    }

    /// The result of the command with this id. Runs the command if it never ran.
    pub async fn run(&self, request: ExecRequest) -> Result<ExecResult, ExecError> {
        let ended = self.known_or_begun(request)?.end().await;
        let given_up = || ExecError::Setup("the command was given up; lease another sandbox".into());
        ended.result.ok_or_else(given_up)
    }

    /// Runs the command without waiting.
    pub fn start(&self, request: ExecRequest) -> Result<ExecState, ExecError> {
        Ok(self.known_or_begun(request)?.state())
    }

    /// The command's state, when it has ended or after `wait` at the latest.
    pub async fn state(&self, id: &str, wait: Duration) -> Result<ExecState, ExecError> {
        let run = self.kept(id)?;
        let ended = tokio::time::timeout(wait, run.end()).await;
        Ok(ended.unwrap_or_else(|_| run.state()))
    }

    /// The output from `from` on, when there is some or after `wait` at the latest.
    pub async fn output(&self, id: &str, from: u64, count: usize, wait: Duration) -> Result<OutputPart, ExecError> {
        let run = self.kept(id)?;
        let _ = tokio::time::timeout(wait, run.printed.reaches(from)).await;
        Ok(run.printed.part(id, from, count.min(MAX_PART_BYTES)).await)
    }

    /// Kills or signals the command and returns its new state; after a kill this is its end.
    pub async fn kill(&self, request: &KillRequest) -> Result<ExecState, ExecError> {
        let run = self.kept(&request.id)?;
        let order = match request.signal {
            None => SignalRequest::Kill,
            Some(number) => SignalRequest::Signal(Signal::try_from(number).map_err(|_| ExecError::NoSignal(number))?),
        };
        match (run.orders.try_send(order), request.signal) {
            (Err(mpsc::error::TrySendError::Full(_)), _) => {
                let message = format!("{MAX_ORDERS} signals have not reached it yet; ask again");
                return Err(ExecError::Setup(message));
            }
            (Err(mpsc::error::TrySendError::Closed(_)), None) => tree::kill_all_of(&Target::left_by(&request.id)).await,
            (_, Some(_)) => return Ok(run.state()),
            (Ok(()), None) => {}
        }
        Ok(run.end().await)
    }

    /// Number of running commands.
    pub fn running(&self) -> u32 {
        self.known().running()
    }

    fn kept(&self, id: &str) -> Result<Arc<Run>, ExecError> {
        match self.known().get(id) {
            Some(Entry::Kept(run)) => Ok(run.clone()),
            Some(Entry::Forgotten) | None => Err(ExecError::Unknown(format!("command {id}"))),
        }
    }

    fn known_or_begun(&self, request: ExecRequest) -> Result<Arc<Run>, ExecError> {
        check(&request.id, &request.argv)?;
        let mut known = self.known();
        match known.get(&request.id) {
            Some(Entry::Kept(run)) => return Ok(run.clone()),
            Some(Entry::Forgotten) => {
                let message = "the command with this id has run, and its result is not kept any more; use another id";
                return Err(ExecError::Setup(message.into()));
            }
            None => {}
        }
        let permit = self.place()?;
        let limit = request.max_output_bytes.unwrap_or(DEFAULT_OUTPUT_BYTES);
        let (tell, ended) = watch::channel(None);
        let (orders, mut received) = mpsc::channel(MAX_ORDERS);
        let run = Arc::new(Run {
            id: request.id.clone(),
            printed: Printed::new(Output::spooled(limit.min(MAX_OUTPUT_BYTES) as usize, self.disk.clone())),
            orders,
            ended,
        });
        known.begins(run.clone());
        let (executor, begun) = (self.clone(), run.clone());
        tokio::spawn(async move {
            let result = executor.run_once(&request, &begun.printed, &mut received).await;
            // From here on orders are not carried out; sending one fails, and its caller accepts that.
            drop(received);
            end_of(permit);
            executor.known().ends(&begun);
            begun.printed.end();
            tell.send_replace(Some(result));
        });
        Ok(run)
    }

    /// A place among the running commands and sessions.
    pub fn place(&self) -> Result<OwnedSemaphorePermit, ExecError> {
        let place = self.running.clone().try_acquire_owned();
        let place = place.map_err(|_| ExecError::TooMany)?;
        self.begun.fetch_add(1, Ordering::Relaxed);
        Ok(place)
    }

    async fn run_once(
        &self,
        request: &ExecRequest,
        printed: &Printed,
        orders: &mut mpsc::Receiver<SignalRequest>,
    ) -> ExecResult {
        let began = Instant::now();
        let before = self.counters.read(&self.guard);
        let until = began + Duration::from_secs(request.timeout_seconds).min(MAX_TIMEOUT);
        let (exit_code, signal, killed) = match self.run_to_its_end(request, until, printed, orders).await {
            Ok(Ended { end, cut }) => {
                let (exit_code, signal) = match end {
                    End::Exited(code) => (Some(code), None),
                    End::Killed(signal) => (None, Some(signal)),
                };
                let met = match (cut, exit_code) {
                    (Some(_), _) | (None, Some(0)) => None,
                    (None, _) => self.limit_met(before, request.cwd.clone()).await,
                };
                (exit_code, signal, cut.or(met))
            }
            Err(error) => {
                printed.push(format!("sandboxd: cannot run {}: {error}\n", request.argv[0]).as_bytes());
                let (exit_code, killed) = match &error {
                    NotStarted::System(error) | NotStarted::Begin(SpawnError::System(error)) => match error.kind() {
                        ErrorKind::NotFound => (127, None),
                        _ => (126, shortage(error)),
                    },
                    NotStarted::Late(_) => (126, Some(Killed::Timeout)),
                    NotStarted::Begin(_) => (126, (Instant::now() >= until).then_some(Killed::Timeout)),
                    NotStarted::Activation(_) => (126, self.limit_met(before, request.cwd.clone()).await),
                };
                (Some(exit_code), None, killed)
            }
        };
        ExecResult {
            id: request.id.clone(),
            exit_code,
            signal,
            timed_out: killed == Some(Killed::Timeout),
            output: String::new(),
            omitted_bytes: 0,
            duration_millis: began.elapsed().as_millis() as u64,
            killed,
        }
    }

    async fn run_to_its_end(
        &self,
        request: &ExecRequest,
        until: Instant,
        printed: &Printed,
        orders: &mut mpsc::Receiver<SignalRequest>,
    ) -> Result<Ended, NotStarted> {
        let (user, activate) = (request.user.as_deref(), request.activate.as_deref());
        let mut surroundings = self.surroundings(user, activate, until).await?;
        surroundings.folder = request.cwd.clone();
        surroundings.variables.extend(request.env.clone());
        let surroundings = surroundings.marked(&request.id);
        let (argv, stdin) = (request.argv.clone(), request.stdin.clone());
        let started = self.launcher.command(&request.id, surroundings, argv, stdin, until);
        Ok(self.watch(started.await?, until, printed, orders).await)
    }

    /// The environment of a program. The script sets it up if no other program has used it before.
    pub async fn surroundings(
        &self,
        user: Option<&str>,
        activate: Option<&str>,
        until: Instant,
    ) -> Result<Surroundings, NotStarted> {
        let found = match user.map(str::to_owned) {
            Some(wanted) => {
                let found = offload::run(LOOK_WITHIN, move || User::find(&wanted)).await;
                Some(found.map_err(|late| io::Error::other(format!("looking its user up: {late}")))??)
            }
            None => None,
        };
        let mut surroundings = Surroundings::own(found);
        if let Some(script) = activate {
            let environment = self.environments.of(script, user);
            let activated = environment.get_or_try_init(|| self.activate(&surroundings, script, until));
            // The first caller runs the script and kills it at its own deadline. Other callers must not wait for that.
            let waited = tokio::time::timeout_at(until + 2 * DEATH, activated).await;
            surroundings.variables = waited.map_err(|_| NotStarted::Late(String::new()))??.clone();
        }
        Ok(surroundings)
    }

    async fn activate(&self, own: &Surroundings, script: &str, until: Instant) -> Result<Variables, NotStarted> {
        let activation = Activation::new(script)?;
        let id = format!("activation {}", activation.mark);
        let mut surroundings = own.clone().marked(&id);
        surroundings.variables.extend(activation.variables.clone());
        let around = surroundings.clone();
        let shell = offload::run(LOOK_WITHIN, move || around.shell()).await;
        let shell = shell.map_err(|late| io::Error::other(format!("looking for a shell: {late}")))?;
        let argv = [vec![shell.to_owned()], activation.arguments.clone()].concat();
        let printed = Printed::new(Output::new(MAX_ACTIVATION_BYTES));
        let started = self.launcher.command(&id, surroundings, argv, None, until).await?;
        let ended = self.watch(started, until, &printed, &mut mpsc::channel(1).1).await;
        let (text, _) = printed.text();
        match ended {
            Ended { cut: Some(_), .. } => Err(NotStarted::Late(text)),
            Ended {
                end: End::Exited(0), ..
            } => activation.result(&text).ok_or(NotStarted::Activation(text)),
            Ended { end, .. } => Err(NotStarted::Activation(format!("{text}\n({end:?})"))),
        }
    }

    /// Reads the output until the program ends by itself, by an order, or at its deadline.
    async fn watch(
        &self,
        mut started: Started,
        until: Instant,
        printed: &Printed,
        orders: &mut mpsc::Receiver<SignalRequest>,
    ) -> Ended {
        let was_alone = self.running.available_permits() == MAX_RUNNING - 1;
        let begun = self.begun.load(Ordering::Relaxed);
        let mut buffer = vec![0; READ];
        let mut open = true;
        let mut is_over = std::pin::pin!(tokio::time::sleep_until(until));
        let ended = loop {
            let cut = tokio::select! {
                end = &mut started.end => break Ended { end: end.unwrap_or(End::Killed(9)), cut: None },
                () = &mut is_over => Killed::Timeout,
                Some(order) = orders.recv() => match order {
                    SignalRequest::Kill => Killed::Request,
                    SignalRequest::Signal(signal) => {
                        let _ = killpg(Pid::from_raw(started.target.pid), signal);
                        continue;
                    }
                },
                read = started.printed.read(&mut buffer), if open => {
                    match read {
                        Ok(0) | Err(_) => open = false,
                        Ok(count) => printed.take_in(&buffer[..count]).await,
                    }
                    continue;
                }
            };
            started.target.alone = was_alone && self.begun.load(Ordering::Relaxed) == begun;
            tree::kill_all_of(&started.target).await;
            let end = tokio::time::timeout(DEATH, &mut started.end).await;
            let end = end.ok().and_then(Result::ok).unwrap_or(End::Killed(9));
            break Ended { end, cut: Some(cut) };
        };
        let last = Instant::now() + DRAIN;
        while open {
            let until = last.min(Instant::now() + DRAIN_QUIET);
            match tokio::time::timeout_at(until, started.printed.read(&mut buffer)).await {
                Ok(Ok(0) | Err(_)) => open = false,
                Ok(Ok(count)) => printed.take_in(&buffer[..count]).await,
                Err(_) => break,
            }
            // Read what is there, but do not follow a background process that keeps printing.
            if Instant::now() >= last {
                break;
            }
        }
        if open {
            self.discard(started.printed);
        }
        ended
    }

    /// Reads and drops the output of background processes: closing the pipe would kill them.
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

    /// The limit that a failed command hit while it ran.
    async fn limit_met(&self, before: Counters, folder: Option<String>) -> Option<Killed> {
        let (counters, guard) = (self.counters.clone(), self.guard.clone());
        let look = move || {
            let after = counters.read(&guard);
            limit_between(before, after).or_else(|| limits::disk_is_full(folder.as_deref()).then_some(Killed::DiskFull))
        };
        offload::run(LOOK_WITHIN, look).await.ok().flatten()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The requirements for every command and session.
pub fn check(id: &str, argv: &[String]) -> Result<(), ExecError> {
    if argv.first().is_none_or(String::is_empty) {
        return Err(ExecError::NoProgram);
    }
    if id.is_empty() || id.len() > MAX_ID_BYTES || id.contains('\0') {
        let message = format!("an id has 1 to {MAX_ID_BYTES} bytes, none of them zero");
        return Err(ExecError::Setup(message));
    }
    Ok(())
}

/// The permit is held until here.
fn end_of(permit: OwnedSemaphorePermit) {
    drop(permit);
}

/// The counter that rose while a command ran.
fn limit_between(before: Counters, after: Counters) -> Option<Killed> {
    if after.memory_kills > before.memory_kills {
        Some(Killed::OutOfMemory)
    } else {
        (after.process_refusals > before.process_refusals).then_some(Killed::PidLimit)
    }
}

/// The limit that prevented the start of the program.
fn shortage(error: &io::Error) -> Option<Killed> {
    match error.kind() {
        ErrorKind::WouldBlock => Some(Killed::PidLimit),
        ErrorKind::OutOfMemory => Some(Killed::OutOfMemory),
        _ => None,
    }
}
