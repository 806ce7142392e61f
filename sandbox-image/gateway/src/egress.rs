//! Whether sandboxes reach nothing, as the last probe found.
//!
//! Until a probe has shown that they reach nothing, a pool leases nothing unless it says `allowUnenforced`; what was
//! found is in the pool's report.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use grpo_sandbox_protocol::{EgressReport, ErrorBody, ErrorCode, FaultOrigin, Limits};
use tokio::sync::watch;

/// Under whose name the probe's sandboxes are leased.
pub const PROBE_RUN: &str = "egress-probe";
/// What was shown is believed for so long, also by a gateway that restarts.
pub(crate) const HOLDS_FOR: Duration = Duration::from_secs(3600);

/// What the last probe found, for those who wait for it.
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

    /// A probe has ended with this report. One that could not be made shows nothing: what an earlier one has shown
    /// counts until it is old.
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

    /// What the probe's sandbox was bounded by.
    pub fn limits(&self) -> Option<Limits> {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn bounded_by(&self, limits: Limits) {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = Some(limits);
    }

    /// Fails unless a probe has shown, or shows within the time, that sandboxes reach nothing.
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

/// Whether it need not be tried again soon.
pub(crate) fn is_settled(found: &EgressReport, unenforced: bool) -> bool {
    found.is_blocked() || unenforced && found.failed.is_none() && !found.tried.is_empty()
}

fn is_fresh(found: &EgressReport, now: i64) -> bool {
    now.saturating_sub(found.at) < HOLDS_FOR.as_millis() as i64
}

/// Before the next probe when the last one showed nothing good; it doubles.
const FIRST_PAUSE: Duration = Duration::from_secs(10);

/// When probes are made: again before what was shown is old, sooner when it was not good.
pub(crate) struct ProbePauses {
    pause: Duration,
    /// The last probe could not be made.
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
    /// How long the next probe is waited for.
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
        // What an earlier probe has shown must be shown again, or given up, when it is old.
        let left = HOLDS_FOR.saturating_sub(age);
        match is_settled && !left.is_zero() {
            true => wait.min(left),
            false => wait,
        }
    }
}

/// Why no lease is given, and what is to be done.
pub(crate) fn why_not(found: Option<&EgressReport>) -> String {
    match found {
        None => "no probe has ended yet that could show that sandboxes reach nothing; ask again".to_owned(),
        Some(EgressReport { failed: Some(why), .. }) => format!(
            "whether sandboxes reach nothing could not be found out: {why}; the probe takes two of the pool's sandboxes \
             (one if max is 1) and is made again by itself, so free them or remove that cause"
        ),
        Some(found) => format!(
            "a sandbox of this pool reached {}: the cluster does not enforce its NetworkPolicy; \
             install a network plugin that does, or set allowUnenforced: true to lease all the same",
            found.reached.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests;
