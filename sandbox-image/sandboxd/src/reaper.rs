//! The one place that waits for children: those a command was started as, and every orphan of the sandbox.
//!
//! Children are waited for by whoever comes first, so nobody else may wait. A command is started and noted under the
//! lock that reaping takes too, so one that ends at once is not missed.

use std::{
    collections::HashMap,
    io::{self, Write as _},
    process::{Child, Command},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use nix::{
    errno::Errno,
    sys::wait::{WaitPidFlag, WaitStatus, waitpid},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Exited(i32),
    Killed(i32),
}

type Awaited = HashMap<i32, oneshot::Sender<End>>;

/// Cloning is cheap.
#[derive(Clone, Default)]
pub struct Reaper {
    awaited: Arc<Mutex<Awaited>>,
}

impl Reaper {
    /// Starts a command; the receiver gets how it ends.
    pub fn start(&self, command: &mut Command) -> io::Result<(Child, oneshot::Receiver<End>)> {
        let mut awaited = self.awaited();
        let child = command.spawn()?;
        let (tell, end) = oneshot::channel();
        awaited.insert(child.id() as i32, tell);
        Ok((child, end))
    }

    /// Reaps for as long as the sandbox lives.
    pub async fn keep_reaping(&self) -> io::Result<()> {
        let mut children = signal(SignalKind::child())?;
        loop {
            self.reap();
            if children.recv().await.is_none() {
                return Ok(());
            }
        }
    }

    fn reap(&self) {
        let mut awaited = self.awaited();
        loop {
            let (pid, end) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, End::Exited(code)),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, End::Killed(signal as i32)),
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return,
                Ok(_) | Err(Errno::EINTR) => continue,
                Err(error) => {
                    // Not `eprintln!`: it panics when nobody reads it.
                    let _ = writeln!(io::stderr(), "sandboxd: waiting for children: {error}");
                    return;
                }
            };
            if let Some(tell) = awaited.remove(&pid.as_raw()) {
                // A caller that has gone does not want to know.
                let _ = tell.send(end);
            }
        }
    }

    fn awaited(&self) -> MutexGuard<'_, Awaited> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
