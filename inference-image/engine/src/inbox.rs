//! The queue from the HTTP side to the engine loop: a bounded number of waiting jobs, models to switch to, and orders
//! to sleep.

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

/// An order to the loop, beside its jobs.
pub enum Order {
    /// An engine that sleeps wakes up by it.
    Install(Install),
    /// Give the memory of the model back when no row runs or waits, and signal it.
    Sleep(oneshot::Sender<()>),
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
    orders: Vec<Order>,
    /// From an order to sleep until the next model: jobs are refused.
    sleeps: bool,
    closed: bool,
}

/// Content taken from the inbox.
pub struct Arrivals {
    pub jobs: Vec<Job>,
    pub orders: Vec<Order>,
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
        if content.sleeps {
            return Err(asleep());
        }
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

    /// Serves a model, to every job that is submitted from now on.
    pub fn install(&self, install: Install) {
        let mut content = self.lock();
        content.sleeps = false;
        content.orders.push(Order::Install(install));
        self.arrived.notify_one();
    }

    /// Refuses jobs from now on. `done` is signalled when the jobs before are answered and the memory is given back.
    pub fn sleep(&self, done: oneshot::Sender<()>) {
        let mut content = self.lock();
        content.sleeps = true;
        content.orders.push(Order::Sleep(done));
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

    /// Takes at most `room` jobs and all orders. With `wait` it sleeps until there are any. `None` once closed.
    pub fn take(&self, wait: bool, room: usize) -> Option<Arrivals> {
        let mut content = self.lock();
        while wait && content.jobs.is_empty() && content.orders.is_empty() && !content.closed {
            content = self.arrived.wait(content).unwrap_or_else(PoisonError::into_inner);
        }
        if content.closed {
            return None;
        }
        let jobs = content.jobs.len().min(room);
        Some(Arrivals {
            jobs: content.jobs.drain(..jobs).collect(),
            orders: std::mem::take(&mut content.orders),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The refusal of a job by an engine that sleeps, or is about to.
pub fn asleep() -> ErrorBody {
    ErrorBody::new(
        ErrorCode::EngineUnavailable,
        "the engine is asleep: the trainer uses the memory for its step; wait until the engine is woken up",
    )
}
