//! Which attempt of a run's driver gives an order, and how engine agents and trainers refuse an earlier attempt.
//!
//! A driver on a node that only the API server has lost may still work beside its successor. Journal and store are
//! fenced; orders to engine agents and to the trainer are fenced here: they carry the header [`HEADER`], and a server
//! refuses an order of an attempt that a later one of the same run has followed. The refusal is a 409 with the header
//! [`NEWER_HEADER`], which no other 409 has. A server notices an attempt by its requests for a status too, so that a
//! driver that finds nothing to order is also known; such a request is never refused.
//!
//! Limits:
//! * An order without the header is carried out, because a driver of an earlier version sends none, and a rollback to
//!   it must work.
//! * A server remembers only what it has heard since its process started. A new process takes orders of an earlier
//!   attempt until the later one has called it.

use std::fmt;
use std::sync::{Mutex, PoisonError};

/// The request header with the [`DriverEpoch`] that gives an order.
pub const HEADER: &str = "grpo-driver";

/// The header of a refusal, with the attempt that gives the orders now.
pub const NEWER_HEADER: &str = "grpo-newer-driver";

/// The error code in the body of a refusal.
pub const SUPERSEDED: &str = "DriverSuperseded";

/// Longest value of [`HEADER`] in bytes. A uid has 36.
const LONGEST: usize = 100;

/// An attempt of a run's driver: `<run uid>/<attempt>` as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverEpoch {
    /// The run's uid.
    pub run: String,
    /// The attempt of the driver's pod group; it only grows.
    pub attempt: u32,
}

/// The header's value names no attempt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the header {} must be <run uid>/<attempt>, of at most {} bytes", HEADER, LONGEST)]
pub struct NoDriverEpoch;

/// An order of an attempt that a later one has followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("attempt {attempt} of the driver gives no orders any more: attempt {newer} does")]
pub struct Superseded {
    pub attempt: u32,
    pub newer: u32,
}

impl fmt::Display for DriverEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.run, self.attempt)
    }
}

impl DriverEpoch {
    /// Reads a value of [`HEADER`].
    pub fn parse(value: &[u8]) -> Result<Self, NoDriverEpoch> {
        let text = str::from_utf8(value).ok().filter(|text| text.len() <= LONGEST);
        let (run, attempt) = text.and_then(|text| text.rsplit_once('/')).ok_or(NoDriverEpoch)?;
        // A sign is no part of a number on the wire, and `parse` takes one.
        if run.is_empty() || !attempt.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(NoDriverEpoch);
        }
        Ok(Self {
            run: run.to_owned(),
            attempt: attempt.parse().map_err(|_| NoDriverEpoch)?,
        })
    }

    /// Reads the header of a request: `value` is that of [`HEADER`]. `None`: the request has no such header.
    pub fn of_header(value: Option<&[u8]>) -> Result<Option<Self>, NoDriverEpoch> {
        value.map(Self::parse).transpose()
    }

    /// The refusal that a driver of this epoch has got: `newer` is the value of [`NEWER_HEADER`] in the answer. `None`:
    /// the answer has no such header, and is about something else.
    pub fn refused(&self, newer: Option<&[u8]>) -> Option<Superseded> {
        let newer = str::from_utf8(newer?).ok()?.parse().ok()?;
        Some(Superseded {
            attempt: self.attempt,
            newer,
        })
    }
}

/// The newest attempt that a server has heard of.
#[derive(Debug, Default)]
pub struct Fence(Mutex<Option<DriverEpoch>>);

impl Fence {
    /// Carries an order out, or refuses it if a later attempt of the same run is known. `order` runs while the fence is
    /// locked: it must only hand the order over. So an order that was admitted never takes effect after one of a later
    /// attempt.
    ///
    /// An order of another run replaces what is remembered, because another run may claim the pool later.
    pub fn admit<T>(&self, from: Option<DriverEpoch>, order: impl FnOnce() -> T) -> Result<T, Superseded> {
        let mut newest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(from) = from {
            if let Some(known) = newest.as_ref()
                && known.run == from.run
                && known.attempt > from.attempt
            {
                return Err(Superseded {
                    attempt: from.attempt,
                    newer: known.attempt,
                });
            }
            *newest = Some(from);
        }
        Ok(order())
    }

    /// Remembers the attempt that asks for a status: `value` is that of [`HEADER`] in its request. A malformed header
    /// is ignored, because the request orders nothing.
    pub fn notice_header(&self, value: Option<&[u8]>) {
        if let Ok(Some(from)) = DriverEpoch::of_header(value) {
            self.notice(from);
        }
    }

    /// Another run's attempt does not count: several runs may ask one pool.
    fn notice(&self, from: DriverEpoch) {
        let mut newest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_later = newest
            .as_ref()
            .is_none_or(|known| known.run == from.run && known.attempt < from.attempt);
        if is_later {
            *newest = Some(from);
        }
    }
}

#[cfg(test)]
mod tests;
