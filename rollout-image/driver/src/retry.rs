//! Retries: the time limit of one request, the limit of all requests together, and the pauses between them.
//!
//! Every client of the driver (gateway, engines, trainer, graders) and the retries of void episodes take their pauses
//! from here. Progress restarts the time: patience measures how long nothing happened, not how long work takes. A
//! server may ask for a longer pause (`Retry-After`). Requests that share a server share one wait for its [`Outage`].

use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The longest pause that a server may ask for.
const LONGEST_ASKED: Duration = Duration::from_secs(300);

/// The pause that a server asks for, within bounds.
pub fn asked_pause(seconds: u64) -> Duration {
    Duration::from_secs(seconds).min(LONGEST_ASKED)
}

/// Two separate limits: a request that hangs must not use up the time of other requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// For one request.
    pub request: Duration,
    /// For all requests of one operation, with the pauses between them, while nothing happens.
    pub total: Duration,
}

/// Growing pauses (back-off).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pauses {
    pub first: Duration,
    pub longest: Duration,
    /// Factor from one pause to the next.
    pub factor: u32,
}

impl Pauses {
    /// Pauses that double.
    pub const fn doubling(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            factor: 2,
        }
    }
}

/// The total is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nothing happened within {within:?}")]
pub struct Exhausted {
    pub within: Duration,
}

/// Retries of one operation until it succeeds or its time is over.
#[derive(Clone, Debug)]
pub struct Retry {
    total: Duration,
    pauses: Pauses,
    since: Instant,
    next: Duration,
    /// Seed that lengthens each pause by up to half; without it pauses are exact.
    jitter: Option<u64>,
    made: u64,
}

impl Retry {
    pub fn new(total: Duration, pauses: Pauses) -> Self {
        Self {
            total,
            pauses,
            since: Instant::now(),
            next: pauses.first,
            jitter: None,
            made: 0,
        }
    }

    /// Spreads the pauses of operations that began together; the same name gives the same pauses.
    pub fn with_jitter(self, name: &str) -> Self {
        let hashed = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self {
            jitter: Some(hashed),
            ..self
        }
    }

    /// Progress: restarts the time and the pauses.
    pub fn progress(&mut self) {
        self.since = Instant::now();
        self.next = self.pauses.first;
    }

    /// A sign that waiting makes sense: restarts the time, and leaves the pauses as long as they are.
    pub fn still_alive(&mut self) {
        self.since = Instant::now();
    }

    /// Time since the last progress.
    pub fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }

    /// Sleeps until the next try; returns an error at once if that would be after the end.
    pub async fn pause(&mut self) -> Result<(), Exhausted> {
        self.pause_after(Duration::ZERO).await
    }

    /// Sleeps for as long as a server asks, and then for the usual pause, whose jitter spreads the requests that were
    /// told the same.
    pub async fn pause_after(&mut self, asked: Duration) -> Result<(), Exhausted> {
        let pause = asked + self.step();
        if self.elapsed() + pause > self.total {
            return Err(Exhausted { within: self.total });
        }
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// The next pause; the one after it is longer.
    fn step(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * self.pauses.factor).min(self.pauses.longest);
        self.made += 1;
        match self.jitter {
            Some(seed) => pause + pause.mul_f64(0.5 * unit(seed.wrapping_add(self.made))),
            None => pause,
        }
    }
}

/// The current outage of a server, if any: all requests to it share one wait for its end.
#[derive(Debug)]
pub struct Outage {
    /// An outage whose last failure is older than this says nothing about now.
    quiet: Duration,
    failing: Mutex<Option<Failing>>,
}

/// Times of the first and the last failure in a row.
#[derive(Clone, Copy, Debug)]
struct Failing {
    since: Instant,
    last: Instant,
}

impl Outage {
    /// `pauses` and `request`: those of the requests to the server.
    pub fn new(pauses: Pauses, request: Duration) -> Self {
        Self {
            quiet: 2 * (pauses.longest + request),
            failing: Mutex::default(),
        }
    }

    /// Notes a failed request. Returns the time since the first failure of this outage: time without any request does
    /// not count.
    pub fn failed(&self) -> Duration {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let since = failing
            .filter(|failing| now - failing.last < self.quiet)
            .map_or(now, |failing| failing.since);
        *failing = Some(Failing { since, last: now });
        now - since
    }

    /// The server answered: the next failure begins another outage.
    pub fn over(&self) {
        *self.failing.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// A number in [0, 1) from `seed`: the finisher of splitmix64.
fn unit(seed: u64) -> f64 {
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests;
