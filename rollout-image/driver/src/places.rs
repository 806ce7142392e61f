//! Places for episodes: limits how many run at one time, in rollouts and evaluations together, and sums the sandboxes
//! that all of them want next.
//!
//! A rollout and the evaluation beside it share the places because they share the pool: more episodes than the agents'
//! share of its sandboxes would only wait in the gateway's queue.

use grpo_sandbox_protocol::ImageDemand;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use tokio::sync::{Semaphore, SemaphorePermit};

#[derive(Debug)]
pub struct Places {
    free: Semaphore,
    size: Mutex<usize>,
    /// Next images, by the rollout or evaluation that wants them.
    demands: Mutex<BTreeMap<String, BTreeMap<String, u32>>>,
}

/// The demand of a rollout or an evaluation. Dropping it withdraws the demand, also if the work is given up: the next
/// report of another one would repeat it.
pub struct Demanding<'a> {
    places: &'a Places,
    who: String,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            free: Semaphore::new(0),
            size: Mutex::default(),
            demands: Mutex::default(),
        }
    }
}

impl Places {
    /// Sets the number of places. Taken places are not withdrawn; the next call withdraws the rest.
    pub fn resize(&self, size: usize) {
        let mut now = self.size.lock().unwrap_or_else(PoisonError::into_inner);
        match size.checked_sub(*now) {
            Some(more) => {
                self.free.add_permits(more);
                *now = size;
            }
            None => *now -= self.free.forget_permits(*now - size),
        }
    }

    /// Waits for a place; dropping the permit frees it. The semaphore is never closed.
    pub async fn take(&self) -> Option<SemaphorePermit<'_>> {
        self.free.acquire().await.ok()
    }

    /// `who`: names the rollout or evaluation.
    pub fn demanding(&self, who: String) -> Demanding<'_> {
        Demanding { places: self, who }
    }

    /// Replaces the demand of `who` and returns the sum of all demands.
    fn demand(&self, who: &str, images: BTreeMap<String, u32>) -> Vec<ImageDemand> {
        let mut demands = self.demands.lock().unwrap_or_else(PoisonError::into_inner);
        match images.is_empty() {
            true => demands.remove(who),
            false => demands.insert(who.to_owned(), images),
        };
        let mut sums: BTreeMap<&str, u32> = BTreeMap::new();
        for (image, count) in demands.values().flatten() {
            *sums.entry(image).or_default() += count;
        }
        let demand = |(image, count): (&str, u32)| ImageDemand {
            image: image.to_owned(),
            count,
        };
        sums.into_iter().map(demand).collect()
    }
}

impl Demanding<'_> {
    /// Replaces this demand and returns the sum of all demands.
    pub fn replace(&self, images: BTreeMap<String, u32>) -> Vec<ImageDemand> {
        self.places.demand(&self.who, images)
    }
}

impl Drop for Demanding<'_> {
    fn drop(&mut self) {
        self.replace(BTreeMap::new());
    }
}

#[cfg(test)]
mod tests;
