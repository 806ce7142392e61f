//! Starts and reaps all children: the processes of commands, and every orphan of the sandbox.
//!
//! A child is started on its own thread, because the workload can hold it between fork and exec, and with it the thread
//! that starts it. Until that thread has reported the child, only known children are reaped.

use std::{
    collections::HashMap,
    fs,
    io::{self, Write as _},
    process::Child,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI32, Ordering},
    },
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, gettid},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{self, Notify, oneshot},
    time::Instant,
};

use crate::{offload, stat::stat_of};

/// Pause between two checks of a slow start.
const LOOK: Duration = Duration::from_millis(20);
/// How long a child that is stopped before its program begins is resumed. After that it is killed.
const STOPPED_FOR: Duration = Duration::from_secs(2);
/// Longest time from fork to exec: an image may have to be fetched block by block.
const BEGIN_WITHIN: Duration = Duration::from_secs(30);
/// Children that are reaped in one batch; callers are answered in between.
const AT_A_TIME: usize = 256;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Exited(i32),
    Killed(i32),
}

/// Why a child was not started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    #[error("{0}")]
    System(#[from] io::Error),
    #[error("something in the sandbox held it up before its program began, for {0:?}; it was killed")]
    HeldUp(Duration),
}

/// A child, the further result of its start, and the receiver for its end.
pub type Spawned<T> = (Child, T, oneshot::Receiver<End>);

#[derive(Default)]
struct Children {
    awaited: HashMap<i32, oneshot::Sender<End>>,
    /// Starts in progress.
    starting: usize,
}

impl Children {
    /// Reaps the given child, or any one child. False if no such child has ended.
    fn reap(&mut self, which: Option<i32>) -> bool {
        let (pid, end) = match waitpid(which.map(Pid::from_raw), Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) => (pid, End::Exited(code)),
            Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, End::Killed(signal as i32)),
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return false,
            Ok(_) | Err(Errno::EINTR) => return true,
            Err(error) => {
                // Not `eprintln!`: it panics if stderr is closed.
                let _ = writeln!(io::stderr(), "sandboxd: waiting for children: {error}");
                return false;
            }
        };
        // The caller may have gone away.
        self.awaited.remove(&pid.as_raw()).map(|tell| tell.send(end));
        true
    }
}

/// Cloning is cheap.
#[derive(Clone, Default)]
pub struct Reaper {
    children: Arc<Mutex<Children>>,
    /// A start has ended: children that were left for its thread can be reaped.
    started: Arc<Notify>,
    /// Held from before a start creates its pipes until its child is forked and independent.
    turn: Arc<sync::Mutex<()>>,
}

impl Reaper {
    /// Starts a child on its own thread, by the deadline `until`; the receiver gets its end. `prepare` may block;
    /// `spawn` only forks and waits for the program to begin.
    pub async fn start<S: Send + 'static, T: Send + 'static>(
        &self,
        until: Instant,
        prepare: impl FnOnce() -> io::Result<S> + Send + 'static,
        spawn: impl FnOnce(S) -> io::Result<(Child, T)> + Send + 'static,
    ) -> Result<Spawned<T>, SpawnError> {
        let (tell, told) = oneshot::channel();
        let reaper = self.clone();
        // In a separate task: if the caller gives up, the child must still be awaited.
        tokio::spawn(async move {
            let started = reaper.prepare_and_start(until, prepare, spawn).await;
            if let Err(Ok((child, ..))) = tell.send(started) {
                let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
            }
        });
        told.await
            .unwrap_or_else(|_| Err(io::Error::other("its start was given up").into()))
    }

    async fn prepare_and_start<S: Send + 'static, T: Send + 'static>(
        &self,
        until: Instant,
        prepare: impl FnOnce() -> io::Result<S> + Send + 'static,
        spawn: impl FnOnce(S) -> io::Result<(Child, T)> + Send + 'static,
    ) -> Result<Spawned<T>, SpawnError> {
        let began = Instant::now();
        let late = until.min(began + BEGIN_WITHIN);
        let prepared = offload::run(late - began, prepare).await;
        let prepared = prepared.map_err(|_| SpawnError::HeldUp(began.elapsed()))??;
        let turn = tokio::time::timeout_at(late, self.turn.clone().lock_owned()).await;
        let turn = turn.map_err(|_| SpawnError::HeldUp(began.elapsed()))?;
        self.start_and_note(late, turn, move || spawn(prepared)).await
    }

    async fn start_and_note<T: Send + 'static>(
        &self,
        late: Instant,
        turn: sync::OwnedMutexGuard<()>,
        spawn: impl FnOnce() -> io::Result<(Child, T)> + Send + 'static,
    ) -> Result<Spawned<T>, SpawnError> {
        self.children().starting += 1;
        let thread = Arc::new(AtomicI32::new(0));
        let starting = thread.clone();
        let mut spawned = tokio::task::spawn_blocking(move || {
            starting.store(gettid().as_raw(), Ordering::Relaxed);
            let spawned = spawn();
            starting.store(0, Ordering::Relaxed);
            spawned
        });
        let (began, mut killed, mut turn) = (Instant::now(), false, Some(turn));
        let spawned = loop {
            match tokio::time::timeout(LOOK, &mut spawned).await {
                Ok(spawned) => break spawned,
                Err(_) => {
                    let thread = thread.load(Ordering::Relaxed);
                    let mut all = children_of(thread);
                    // Children of the thread's earlier starts.
                    all.retain(|pid| !self.children().awaited.contains_key(pid));
                    // A waiting thread has forked and closed its end of the pipe.
                    if !all.is_empty() && state_of(&format!("self/task/{thread}")) != Some('R') {
                        turn = None;
                    }
                    killed |= free(&all, began, late);
                }
            }
        };
        drop(turn);
        let spawned = spawned.unwrap_or_else(|error| Err(io::Error::other(error)));
        let started = spawned.map(|(child, more)| {
            let end = self.note(child.id() as i32);
            (child, more, end)
        });
        self.children().starting -= 1;
        self.started.notify_one();
        match killed {
            true => Err(SpawnError::HeldUp(began.elapsed())),
            false => Ok(started?),
        }
    }

    /// The receiver for the child's end.
    fn note(&self, pid: i32) -> oneshot::Receiver<End> {
        let (tell, end) = oneshot::channel();
        self.children().awaited.insert(pid, tell);
        end
    }

    /// Reaps for as long as the sandbox lives.
    pub async fn keep_reaping(&self) -> io::Result<()> {
        let mut ended = signal(SignalKind::child())?;
        loop {
            while !self.reap() {
                tokio::task::yield_now().await;
            }
            tokio::select! {
                ended = ended.recv() => if ended.is_none() { return Ok(()) },
                () = self.started.notified() => {}
            }
        }
    }

    /// Reaps one batch of ended children. True if there are no more.
    fn reap(&self) -> bool {
        let mut children = self.children();
        if children.starting > 0 {
            // An unknown child belongs to the thread that starts it, which itself reaps a child whose program could not
            // begin.
            let known: Vec<i32> = children.awaited.keys().copied().collect();
            for pid in known {
                children.reap(Some(pid));
            }
            return true;
        }
        (0..AT_A_TIME).any(|_| !children.reap(None))
    }

    fn children(&self) -> MutexGuard<'_, Children> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Unreaped children that this thread has started. Orphans belong to the main thread.
fn children_of(thread: i32) -> Vec<i32> {
    let children = fs::read_to_string(format!("/proc/self/task/{thread}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Frees a thread from children that do not reach their program. A stopped child is resumed, and killed if it is
/// stopped repeatedly; a child that waits for something else is killed at its deadline. Returns whether one was killed.
fn free(children: &[i32], began: Instant, late: Instant) -> bool {
    let mut killed = false;
    for &pid in children {
        let stopped = is_stopped(pid);
        let signal = match Instant::now() {
            now if now >= late || stopped && now >= began + STOPPED_FOR => Signal::SIGKILL,
            _ if stopped => Signal::SIGCONT,
            _ => continue,
        };
        killed |= signal == Signal::SIGKILL && kill(Pid::from_raw(pid), signal).is_ok();
    }
    killed
}

fn is_stopped(pid: i32) -> bool {
    matches!(state_of(&pid.to_string()), Some('T' | 't'))
}

/// The state of a process or thread, given its folder in `/proc`.
fn state_of(task: &str) -> Option<char> {
    stat_of(task)?.rsplit_once(')')?.1.trim_start().chars().next()
}
