//! The queue from the HTTP side to the engine loop: a bounded number of waiting jobs, and models to switch to.

use crate::job::Job;
use crate::model::Model;
use grpo_engine_protocol::{ErrorBody, ErrorCode};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// A model to serve from now on, and a signal for when it serves.
pub struct Install {
    pub model: Arc<Model>,
    pub done: oneshot::Sender<()>,
}

/// The loop's queue. Jobs beyond `capacity` are refused, never stored.
pub struct Inbox {
    capacity: usize,
    content: Mutex<Content>,
    arrived: Condvar,
}

#[derive(Default)]
struct Content {
    jobs: VecDeque<Job>,
    installs: Vec<Install>,
    closed: bool,
}

/// Content taken from the inbox.
pub struct Arrivals {
    pub jobs: Vec<Job>,
    pub installs: Vec<Install>,
}

impl Inbox {
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            content: Mutex::default(),
            arrived: Condvar::new(),
        }
    }

    pub fn submit(&self, job: Job) -> Result<(), ErrorBody> {
        let mut content = self.lock();
        if content.jobs.len() >= self.capacity {
            return Err(ErrorBody::new(
                ErrorCode::QueueFull,
                format!(
                    "{} requests are waiting already; try again later or use another replica",
                    self.capacity
                ),
            ));
        }
        content.jobs.push_back(job);
        self.arrived.notify_one();
        Ok(())
    }

    pub fn install(&self, install: Install) {
        self.lock().installs.push(install);
        self.arrived.notify_one();
    }

    /// Ends the loop; drops waiting jobs.
    pub fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_one();
    }

    pub fn waiting(&self) -> usize {
        self.lock().jobs.len()
    }

    /// Takes at most `room` jobs and all installs. With `wait` it sleeps until there are any. `None` once closed.
    pub fn take(&self, wait: bool, room: usize) -> Option<Arrivals> {
        let mut content = self.lock();
        while wait && content.jobs.is_empty() && content.installs.is_empty() && !content.closed {
            content = self.arrived.wait(content).unwrap_or_else(PoisonError::into_inner);
        }
        if content.closed {
            return None;
        }
        let jobs = content.jobs.len().min(room);
        Some(Arrivals {
            jobs: content.jobs.drain(..jobs).collect(),
            installs: std::mem::take(&mut content.installs),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
