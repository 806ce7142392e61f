//! The known commands: those that run, those with a kept result, and the ids of older ones, so that no command runs
//! twice.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use grpo_sandbox_protocol::{ExecResult, ExecState};
use nix::sys::signal::Signal;
use tokio::sync::{mpsc, watch};

use crate::output::Printed;

/// Maximum kept results, in number and in bytes.
const REMEMBERED: usize = 256;
const REMEMBERED_BYTES: usize = 64 << 20;
/// Maximum remembered ids of commands that have run.
const REMEMBERED_IDS: usize = 8192;

/// A signal that a caller sends to a running command.
pub enum SignalRequest {
    Kill,
    Signal(Signal),
}

/// A command, from its beginning until it is forgotten.
pub struct Run {
    pub id: String,
    pub printed: Printed,
    pub orders: mpsc::Sender<SignalRequest>,
    /// Its result, without the output, once it has ended.
    pub ended: watch::Receiver<Option<ExecResult>>,
}

impl Run {
    pub fn state(&self) -> ExecState {
        let bare = self.ended.borrow().clone();
        ExecState {
            id: self.id.clone(),
            result: bare.map(|bare| {
                let (output, omitted_bytes) = self.printed.text();
                ExecResult {
                    output,
                    omitted_bytes,
                    ..bare
                }
            }),
        }
    }

    /// Its state once it has ended. A state without a result means that the command was given up.
    pub async fn end(&self) -> ExecState {
        let _ = self.ended.clone().wait_for(Option::is_some).await;
        self.state()
    }
}

pub enum Entry {
    Kept(Arc<Run>),
    Forgotten,
}

#[derive(Default)]
pub struct Known {
    entries: HashMap<String, Entry>,
    /// Ids of ended commands, oldest first.
    ended: VecDeque<String>,
    /// Those ids that still have a result, oldest first.
    kept: VecDeque<String>,
    kept_bytes: usize,
}

impl Known {
    pub fn get(&self, id: &str) -> Option<&Entry> {
        self.entries.get(id)
    }

    /// Number of running commands.
    pub fn running(&self) -> u32 {
        (self.entries.len() - self.ended.len()) as u32
    }

    pub fn begins(&mut self, run: Arc<Run>) {
        self.entries.insert(run.id.clone(), Entry::Kept(run));
    }

    /// Notes that a command has ended, and forgets the oldest.
    pub fn ends(&mut self, run: &Run) {
        self.kept_bytes += run.printed.in_memory();
        self.kept.push_back(run.id.clone());
        self.ended.push_back(run.id.clone());
        // The newest is always kept: its caller may have to ask again.
        while self.kept.len() > 1 && (self.kept.len() > REMEMBERED || self.kept_bytes > REMEMBERED_BYTES) {
            let Some(oldest) = self.kept.pop_front() else { break };
            if let Some(Entry::Kept(run)) = self.entries.insert(oldest, Entry::Forgotten) {
                self.kept_bytes -= run.printed.in_memory();
            }
        }
        while self.ended.len() > REMEMBERED_IDS {
            let Some(oldest) = self.ended.pop_front() else { break };
            self.entries.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests;
