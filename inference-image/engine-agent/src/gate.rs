//! The gate before the engine: it counts the requests at the engine, and refuses new ones while the replica drains or
//! its engine sleeps.
//!
//! Clients outside of runs must not hold a run up. While an order waits for the engine, the gate is closed to them, and
//! their requests at the engine end after a grace. The run's own requests are not touched.

use grpo_engine_protocol::{ErrorBody, ErrorCode};
use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::{Instant, sleep_until};

pub struct Gate {
    /// Permits for concurrent requests at the engine.
    places: Semaphore,
    /// Number of permits.
    size: u32,
    /// The replica is being deleted, or its engine is restarting.
    draining: AtomicBool,
    /// The engine sleeps, or is about to, or is not fully awake yet.
    sleeping: AtomicBool,
    /// While an order waits for the engine: the end of clients' requests at it.
    clients_end: watch::Sender<Option<Instant>>,
}

/// Opens the gate to clients when it is dropped, so also if a newer order interrupts the current one.
#[must_use]
pub struct WithoutClients<'a>(&'a Gate);

impl Drop for WithoutClients<'_> {
    fn drop(&mut self) {
        // The engine may still be asleep after a load that failed.
        if !self.0.is_sleeping() {
            self.0.open_to_clients();
        }
    }
}

impl Gate {
    /// An open gate for at most `size` concurrent requests, at least one.
    pub fn new(size: u32) -> Self {
        let size = size.max(1);
        Self {
            places: Semaphore::new(size as usize),
            size,
            draining: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            clients_end: watch::Sender::new(None),
        }
    }

    /// A permit for one request at the engine, until it is dropped.
    pub fn enter(&self) -> Result<SemaphorePermit<'_>, ErrorBody> {
        let place = self.places.try_acquire();
        // In this order: after [`Gate::emptied`] of a closed gate no request gets through.
        self.must_be_open()?;
        place.map_err(|_| {
            ErrorBody::new(
                ErrorCode::QueueFull,
                "as many requests as this replica takes are at its engine; try again later or use another replica",
            )
        })
    }

    /// Refuses a request while the gate is closed.
    pub fn must_be_open(&self) -> Result<(), ErrorBody> {
        let closed = |why: &str| Err(ErrorBody::new(ErrorCode::EngineUnavailable, why));
        if self.is_draining() {
            return closed("this replica ends, or its engine is started again; use another replica");
        }
        match self.is_sleeping() {
            true => closed("the engine is asleep: the trainer uses its memory; wait until this replica serves again"),
            false => Ok(()),
        }
    }

    /// Refuses a client's request while the gate is closed to clients.
    pub fn must_be_open_to_clients(&self) -> Result<(), ErrorBody> {
        self.must_be_open()?;
        match self.clients_end.borrow().is_some() {
            true => Err(ErrorBody::new(
                ErrorCode::EngineUnavailable,
                "the engine loads new weights of a run; send the request again",
            )),
            false => Ok(()),
        }
    }

    /// Closes the gate to clients for the time of a load that waits for the requests at the engine.
    pub fn without_clients(&self, grace: Duration) -> WithoutClients<'_> {
        self.close_to_clients(grace);
        WithoutClients(self)
    }

    /// Closes the gate to clients; their requests at the engine have this time to end. Repeating it does not prolong
    /// the time. [`Gate::set_sleeping`] opens it again.
    pub fn close_to_clients(&self, grace: Duration) {
        self.clients_end.send_if_modified(|end| {
            let was_open = end.is_none();
            if was_open {
                *end = Some(Instant::now() + grace);
            }
            was_open
        });
    }

    fn open_to_clients(&self) {
        self.clients_end.send_if_modified(|end| end.take().is_some());
    }

    /// Returns when a client's request at the engine must end, with the answer to it.
    pub async fn client_must_leave(&self) -> ErrorBody {
        let mut changes = self.clients_end.subscribe();
        loop {
            let end = *changes.borrow_and_update();
            let over = async {
                match end {
                    Some(end) => sleep_until(end).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = over => break,
                // The sender is part of this gate, so the channel stays open.
                _ = changes.changed() => {}
            }
        }
        let why = match self.is_sleeping() {
            true => "the engine falls asleep, because the trainer uses its memory",
            false => "the engine loads new weights of a run",
        };
        let message = format!("the request was ended before its answer was complete: {why}; send it again");
        ErrorBody::new(ErrorCode::EngineUnavailable, message)
    }

    /// Returns when no request is at the engine. Only a closed gate stays empty.
    pub async fn emptied(&self) {
        drop(self.places.acquire_many(self.size).await);
    }

    /// Number of requests at the engine.
    pub fn requests(&self) -> u32 {
        let free = u32::try_from(self.places.available_permits()).unwrap_or(u32::MAX);
        self.size.saturating_sub(free)
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Closes or opens it for a replica that ends.
    pub fn set_draining(&self, draining: bool) {
        self.draining.store(draining, Ordering::SeqCst);
    }

    pub fn is_sleeping(&self) -> bool {
        self.sleeping.load(Ordering::SeqCst)
    }

    /// Closes or opens it for an engine that sleeps.
    pub fn set_sleeping(&self, sleeping: bool) {
        self.sleeping.store(sleeping, Ordering::SeqCst);
        if !sleeping {
            self.open_to_clients();
        }
    }
}

#[cfg(test)]
mod tests;
