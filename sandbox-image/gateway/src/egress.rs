//! The result of the last egress probe: whether sandboxes reach nothing.
//!
//! A pool grants no lease until a probe has shown that sandboxes reach nothing, unless its spec has `allowUnenforced`.
//! The result is in the pool's report.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use grpo_sandbox_protocol::{EgressReport, ErrorBody, ErrorCode, FaultOrigin, Limits};
use tokio::sync::watch;

/// The run name of the probe's leases.
pub const PROBE_RUN: &str = "egress-probe";
/// How long a result counts, also after a restart of the gateway.
pub(crate) const HOLDS_FOR: Duration = Duration::from_secs(3600);

/// The last result, and its waiters.
pub struct Egress {
    found: watch::Sender<Option<EgressReport>>,
    limits: Mutex<Option<Limits>>,
}

impl Egress {
    /// Keeps the report of an earlier gateway if it is fresh and shows that sandboxes reach nothing. With `unenforced`,
    /// the fresh report of any completed probe is enough: a new probe takes the places of two sandboxes.
    pub fn restored(found: Option<EgressReport>, limits: Option<Limits>, unenforced: bool, now: i64) -> Self {
        let counts = |found: &EgressReport| is_settled(found, unenforced) && is_fresh(found, now);
        Self {
            found: watch::Sender::new(found.filter(counts)),
            limits: Mutex::new(limits),
        }
    }

    pub fn report(&self) -> Option<EgressReport> {
        self.found.borrow().clone()
    }

    /// Takes in the report of a probe. A probe that could not run shows nothing: the earlier result counts until it is
    /// old.
    pub(crate) fn found(&self, report: EgressReport, now: i64) {
        self.found.send_if_modified(|known| {
            let counts = |known: &EgressReport| known.failed.is_none() && is_fresh(known, now);
            let is_kept = report.failed.is_some() && known.as_ref().is_some_and(counts);
            if !is_kept {
                *known = Some(report);
            }
            !is_kept
        });
    }

    /// The limits of the probe's sandbox.
    pub fn limits(&self) -> Option<Limits> {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn bounded_by(&self, limits: Limits) {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = Some(limits);
    }

    /// Fails unless a probe has shown, or shows within `wait`, that sandboxes reach nothing.
    pub async fn shown_to_be_blocked(&self, wait: Duration) -> Result<(), ErrorBody> {
        let mut reports = self.found.subscribe();
        let _ = tokio::time::timeout(wait, reports.wait_for(Option::is_some)).await;
        let found = reports.borrow().clone();
        match found {
            Some(found) if found.is_blocked() => Ok(()),
            found => Err(ErrorBody::new(
                ErrorCode::EgressUnproven,
                FaultOrigin::Infrastructure,
                why_not(found.as_ref()),
            )),
        }
    }
}

/// Whether the next probe can wait.
pub(crate) fn is_settled(found: &EgressReport, unenforced: bool) -> bool {
    found.is_blocked() || unenforced && found.failed.is_none() && !found.tried.is_empty()
}

fn is_fresh(found: &EgressReport, now: i64) -> bool {
    now.saturating_sub(found.at) < HOLDS_FOR.as_millis() as i64
}

/// First pause after a probe with a bad result; it doubles.
const FIRST_PAUSE: Duration = Duration::from_secs(10);

/// The schedule of probes: before a result is old, or sooner after a bad one.
pub(crate) struct ProbePauses {
    pause: Duration,
    /// The last probe could not run.
    pub has_failed: bool,
}

impl Default for ProbePauses {
    fn default() -> Self {
        Self {
            pause: FIRST_PAUSE,
            has_failed: false,
        }
    }
}

impl ProbePauses {
    /// The pause before the next probe.
    pub fn next(&mut self, known: Option<&EgressReport>, unenforced: bool, now: i64) -> Duration {
        let Some(known) = known else {
            return Duration::ZERO;
        };
        let is_settled = is_settled(known, unenforced);
        let age = Duration::from_millis(now.saturating_sub(known.at).unsigned_abs());
        if is_settled && !self.has_failed {
            self.pause = FIRST_PAUSE;
            return (HOLDS_FOR * 9 / 10).saturating_sub(age);
        }
        let wait = self.pause;
        self.pause = (self.pause * 2).min(HOLDS_FOR);
        // When a result is old, a new probe must confirm or replace it.
        let left = HOLDS_FOR.saturating_sub(age);
        match is_settled && !left.is_zero() {
            true => wait.min(left),
            false => wait,
        }
    }
}

/// Why no lease is granted, and what to do.
pub(crate) fn why_not(found: Option<&EgressReport>) -> String {
    match found {
        None => "no probe has ended yet that could show that sandboxes reach nothing; ask again".to_owned(),
        Some(EgressReport { failed: Some(why), .. }) => format!(
            "whether sandboxes reach nothing could not be found out: {why}; the probe takes two of the pool's sandboxes \
             (one if max is 1) and is made again by itself, so free them or remove that cause"
        ),
        Some(found) => format!(
            "a sandbox of this pool reached {}: {}, or set allowUnenforced: true to lease all the same",
            found.reached.join(", "),
            found.cause()
        ),
    }
}

#[cfg(test)]
mod tests;
