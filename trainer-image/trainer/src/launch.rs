//! Starts the ranks of a pod with several GPUs, one process each, and ends them together.
//!
//! The operator starts one process in a pod, with torchrun's environment for the pod's first rank: `RANK` is its
//! number, and the other ranks of the pod follow it. If `LOCAL_WORLD_SIZE` is above 1, this process is no rank itself.
//! It starts all ranks, with `RANK` and `LOCAL_RANK` for each, and prints their output with the rank in front. No rank
//! outlives another or this process. This process ends like the rank that ended first, because the operator reads its
//! exit code.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use grpo_contracts::exit::{HUNG_CODE, PEER_LOST_CODE, is_of_lost_peer};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::error::TrainError;

/// Interval between checks for ended ranks.
const LOOK: Duration = Duration::from_millis(50);
/// After a rank ends because of another rank: the time in which the pod's other ranks may end on their own. Rank 0 must
/// stay for the watchdog's verdict, and a rank that lost a peer may end before the peer that is the cause.
const PARTING: Duration = Duration::from_secs(5);
/// From SIGTERM to SIGKILL. A rank that receives SIGTERM ends at once.
const GRACE: Duration = Duration::from_secs(5);
/// Longest wait for the last output of ended ranks.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// A longer line is printed in parts of this many bytes.
const LINE_BYTES: u64 = 1 << 16;
/// Capacity of the queue of lines to print; when it is full, the ranks wait.
const LINES: usize = 1024;

/// The ranks of this pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks {
    pub first: u32,
    pub count: u32,
}

/// Events other than the end of a rank.
enum Event {
    Said {
        local: usize,
        line: Vec<u8>,
    },
    /// One of a rank's two output streams ended.
    Closed,
    Terminate,
}

/// A rank that has ended.
#[derive(Clone, Copy)]
struct Ended {
    local: usize,
    status: ExitStatus,
}

impl Ended {
    /// The exit code as in a shell; "lost a peer" for a rank that NCCL aborted.
    fn code(self) -> i32 {
        let signal = self.status.signal().map(|signal| 128 + signal);
        match self.status.code().or(signal).unwrap_or_default() {
            code if is_of_lost_peer(code) => PEER_LOST_CODE,
            code => code,
        }
    }

    /// Whether a signal ended it because it lost a peer. A rank that reports a lost peer exits by itself.
    fn is_aborted(self) -> bool {
        self.status.signal().is_some() && self.code() == PEER_LOST_CODE
    }

    /// Whether another rank's end or silence is the reason.
    fn is_consequence(self) -> bool {
        [HUNG_CODE, PEER_LOST_CODE].contains(&self.code())
    }
}

/// Progress of the shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Training,
    /// One rank ended because of others: the rest may do so too, until this time.
    Parting(Instant),
    /// All ranks got SIGTERM; those that still run get SIGKILL at this time.
    Terminating(Instant),
    Killed,
}

/// Starts the pod's ranks, each as `program` with `arguments`, and returns when all have ended. `on_termination` gets
/// the action to take when this process is told to end.
pub fn launch(
    ranks: Ranks,
    program: &Path,
    arguments: &[OsString],
    on_termination: impl FnOnce(Box<dyn FnOnce() + Send>) -> Result<(), TrainError>,
) -> Result<(), TrainError> {
    let (tell, events) = sync_channel(LINES);
    let terminate = tell.clone();
    on_termination(Box::new(move || drop(terminate.send(Event::Terminate))))?;
    Pod::start(ranks, program, arguments, &tell)?.attend(&events)
}

/// Makes this process, a rank, end with its launcher. Nothing else would end it.
pub fn end_with(launcher: u32) -> Result<(), TrainError> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)
        .map_err(|error| TrainError::Start(format!("asking to end with the launcher: {error}")))?;
    // The launcher may have ended before the call.
    match std::os::unix::process::parent_id() == launcher {
        true => Ok(()),
        false => Err(TrainError::Start(
            "the launcher of this rank has ended already".to_owned(),
        )),
    }
}

/// The pod's ranks. Dropping it kills those that still run.
struct Pod {
    ranks: Ranks,
    /// By local rank; `None` after its end.
    children: Vec<Option<Child>>,
    /// The last line of each rank.
    last_lines: Vec<String>,
    /// Output streams that are still open.
    open: usize,
}

impl Pod {
    /// Call it from a thread that stays alive: a rank ends with the thread that started it.
    fn start(
        ranks: Ranks,
        program: &Path,
        arguments: &[OsString],
        events: &SyncSender<Event>,
    ) -> Result<Self, TrainError> {
        let mut pod = Self {
            ranks,
            children: Vec::new(),
            last_lines: vec![String::new(); ranks.count as usize],
            open: 0,
        };
        for local in 0..ranks.count {
            let rank = ranks.first + local;
            let mut child = Command::new(program)
                .args(arguments)
                .env("RANK", rank.to_string())
                .env("LOCAL_RANK", local.to_string())
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .map_err(|error| TrainError::Start(format!("starting rank {rank}: {error}")))?;
            let streams: [Option<Box<dyn Read + Send>>; 2] = [
                child.stdout.take().map(|stream| Box::new(stream) as _),
                child.stderr.take().map(|stream| Box::new(stream) as _),
            ];
            pod.children.push(Some(child));
            for stream in streams.into_iter().flatten() {
                let events = events.clone();
                pod.open += 1;
                std::thread::spawn(move || listen(stream, local as usize, &events));
            }
        }
        tracing::info!(first = ranks.first, count = ranks.count, "the pod's ranks are started");
        Ok(pod)
    }

    /// Waits until all ranks have ended.
    fn attend(&mut self, events: &Receiver<Event>) -> Result<(), TrainError> {
        let mut stage = Stage::Training;
        let mut is_terminated = false;
        let mut cause: Option<Ended> = None;
        loop {
            if self.hear(events, LOOK) {
                tracing::info!("told to end, and so are the ranks");
                is_terminated = true;
                stage = self.tell_to_end();
            }
            for ended in self.ended() {
                if ended.status.success() {
                    continue;
                }
                match stage {
                    Stage::Training if ended.is_consequence() => {
                        cause = Some(ended);
                        stage = Stage::Parting(Instant::now() + PARTING);
                    }
                    Stage::Training | Stage::Parting(_) if !ended.is_consequence() => {
                        // If the cause is a hang, it stays the cause.
                        if cause.is_none_or(|cause| cause.code() == PEER_LOST_CODE) {
                            cause = Some(ended);
                        }
                        stage = self.tell_to_end();
                    }
                    Stage::Parting(_) if ended.code() == HUNG_CODE => {
                        cause = cause.filter(|cause| cause.code() == HUNG_CODE).or(Some(ended));
                    }
                    // This may be the peer that the others lost.
                    Stage::Parting(_) if ended.is_aborted() => {
                        cause = cause
                            .filter(|cause| cause.code() == HUNG_CODE || cause.is_aborted())
                            .or(Some(ended));
                    }
                    _ => {}
                }
            }
            if self.children.iter().all(Option::is_none) {
                break;
            }
            stage = match stage {
                Stage::Parting(until) if Instant::now() >= until => self.tell_to_end(),
                Stage::Terminating(until) if Instant::now() >= until => {
                    self.signal(Signal::SIGKILL);
                    Stage::Killed
                }
                stage => stage,
            };
        }
        let until = Instant::now() + LAST_WORDS;
        while self.open > 0 && Instant::now() < until {
            self.hear(events, LOOK);
        }
        match cause {
            _ if is_terminated => Err(TrainError::Terminated),
            None => Ok(()),
            Some(ended) => Err(TrainError::Rank {
                rank: self.ranks.first + ended.local as u32,
                code: ended.code() as u8,
                how: ended.status.to_string(),
                said: std::mem::take(&mut self.last_lines[ended.local]),
            }),
        }
    }

    /// Prints the ranks' output for this long. Returns true as soon as this process is told to end.
    fn hear(&mut self, events: &Receiver<Event>, for_as_long: Duration) -> bool {
        let until = Instant::now() + for_as_long;
        loop {
            match events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Event::Said { local, line }) => self.say(local, &line),
                Ok(Event::Closed) => self.open -= 1,
                Ok(Event::Terminate) => return true,
                Err(_) => return false,
            }
            // Ranks that print without pause must not stop the checks.
            if Instant::now() >= until {
                return false;
            }
        }
    }

    fn say(&mut self, local: usize, line: &[u8]) {
        let mut words = format!("rank {}: ", self.ranks.first as usize + local).into_bytes();
        words.extend_from_slice(line);
        words.push(b'\n');
        // Ignore the error: if stderr is closed, no reader is left.
        let _ = std::io::stderr().lock().write_all(&words);
        if !line.trim_ascii().is_empty() {
            self.last_lines[local] = String::from_utf8_lossy(line).into_owned();
        }
    }

    /// Reaps the ranks that ended since the last call.
    fn ended(&mut self) -> Vec<Ended> {
        let mut found = Vec::new();
        for (local, place) in self.children.iter_mut().enumerate() {
            // Ignores an error: it would mean that the process is not our child, but it is.
            if let Some(Ok(Some(status))) = place.as_mut().map(Child::try_wait) {
                *place = None;
                let ended = Ended { local, status };
                tracing::info!(rank = self.ranks.first + local as u32, "ended: {status}");
                found.push(ended);
            }
        }
        // Among ranks that ended together, a rank with its own cause comes first.
        found.sort_by_key(|ended| (ended.is_consequence(), !ended.is_aborted()));
        found
    }

    fn tell_to_end(&self) -> Stage {
        self.signal(Signal::SIGTERM);
        Stage::Terminating(Instant::now() + GRACE)
    }

    /// Signals only the ranks that are not reaped yet: the system cannot have reused their process ids.
    fn signal(&self, signal: Signal) {
        for child in self.children.iter().flatten() {
            let _ = kill(Pid::from_raw(child.id() as i32), signal);
        }
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        for child in self.children.iter_mut().flatten() {
            let _ = child.wait();
        }
    }
}

/// Reads a rank's stream to its end.
fn listen(stream: impl Read, local: usize, events: &SyncSender<Event>) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        match stream.by_ref().take(LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {
                line.pop_if(|last| *last == b'\n');
                if events.send(Event::Said { local, line }).is_err() {
                    break;
                }
            }
        }
    }
    let _ = events.send(Event::Closed);
}
