//! The gate before the engine: it counts the requests at the engine, and refuses new ones while the replica drains or
//! its engine sleeps.

use grpo_engine_protocol::{ErrorBody, ErrorCode};
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{Semaphore, SemaphorePermit};

pub struct Gate {
    /// Permits for concurrent requests at the engine.
    places: Semaphore,
    /// Number of permits.
    size: u32,
    /// The replica is being deleted, or its engine is restarting.
    draining: AtomicBool,
    /// The engine sleeps, or is about to, or is not fully awake yet.
    sleeping: AtomicBool,
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
    }
}

#[cfg(test)]
mod tests;
