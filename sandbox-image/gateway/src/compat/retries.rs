//! Tells a repeated call from a new one, for clients that do not name their calls.
//!
//! A call is *unheard* if its caller disconnected before the answer: its client will soon repeat it. The next call with
//! exactly the same content within [`AGAIN_WITHIN`] counts as the repetition and gets the name of the first. Under that
//! name the gateway returns the effect of the first call. Two simultaneous callers with the same content, both still
//! connected, are two calls.
//!
//! The record is in memory only. Two cases cannot be told apart: an answer that was lost after it had been sent, and a
//! call that a restart of the gateway interrupted. For these a client must name its calls.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::Rng;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

/// Clients repeat a call after about a second, and give up after ten.
pub const AGAIN_WITHIN: Duration = Duration::from_secs(60);
/// Longer than [`AGAIN_WITHIN`]: the effect of an unheard call is undone before the call is forgotten.
const FORGOTTEN_AFTER: Duration = AGAIN_WITHIN.saturating_mul(2);
/// Maximum unheard calls in the record.
const REMEMBERED: usize = 4096;

/// Digest of a call's content.
pub type Said = [u8; 32];

/// Calls whose callers disconnected. Cloning is cheap.
#[derive(Clone, Default)]
pub struct Retries(Arc<Mutex<VecDeque<Unheard>>>);

struct Unheard {
    said: Said,
    name: String,
    since: Instant,
}

/// A call in progress. If it is dropped before [`Attempt::heard`], it is unheard.
pub struct Attempt {
    retries: Retries,
    said: Said,
    pub name: String,
    is_heard: bool,
}

/// Digest of the parts of a call. The boundaries between parts count.
pub fn said(parts: &[&[u8]]) -> Said {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// The first `digits` hexadecimal digits of the digest.
pub fn hex(said: &Said, digits: usize) -> String {
    said.iter().take(digits / 2).map(|byte| format!("{byte:02x}")).collect()
}

/// `digits` random hexadecimal digits.
pub fn random_hex(digits: usize) -> String {
    let mut rng = rand::rng();
    (0..digits)
        .map(|_| char::from_digit(rng.random_range(0..16), 16).unwrap_or('0'))
        .collect()
}

impl Retries {
    /// Begins a call: under the name of an unheard call with the same content, or under a new one.
    pub fn begin(&self, said: Said, new_name: impl FnOnce() -> String) -> Attempt {
        let is_again = |unheard: &Unheard| unheard.said == said && unheard.since.elapsed() <= AGAIN_WITHIN;
        let name = self.take(is_again).unwrap_or_else(new_name);
        Attempt {
            retries: self.clone(),
            said,
            name,
            is_heard: false,
        }
    }

    /// Returns whether this call is still unheard. From now on no repeated call can take it up.
    pub fn give_up(&self, name: &str) -> bool {
        self.take(|unheard| unheard.name == name).is_some()
    }

    fn take(&self, which: impl Fn(&Unheard) -> bool) -> Option<String> {
        let mut unheard = self.lock();
        let at = unheard.iter().position(which)?;
        unheard.remove(at).map(|unheard| unheard.name)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Unheard>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Attempt {
    /// The caller got the answer.
    pub fn heard(mut self) {
        self.is_heard = true;
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.is_heard {
            return;
        }
        let mut unheard = self.retries.lock();
        while unheard.len() >= REMEMBERED
            || unheard
                .front()
                .is_some_and(|first| first.since.elapsed() > FORGOTTEN_AFTER)
        {
            unheard.pop_front();
        }
        unheard.push_back(Unheard {
            said: self.said,
            name: std::mem::take(&mut self.name),
            since: Instant::now(),
        });
    }
}

#[cfg(test)]
mod tests;
