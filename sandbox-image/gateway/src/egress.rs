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
    /// As an earlier gateway left it. What is old says nothing, nor what was not good, unless nobody waits for better
    /// (`unenforced`): a probe takes two sandboxes' places.
    pub fn restored(found: Option<EgressReport>, limits: Option<Limits>, unenforced: bool, now: i64) -> Self {
        let is_fresh = |found: &EgressReport| now.saturating_sub(found.at) < HOLDS_FOR.as_millis() as i64;
        Self {
            found: watch::Sender::new(found.filter(|found| is_settled(found, unenforced) && is_fresh(found))),
            limits: Mutex::new(limits),
        }
    }

    pub fn report(&self) -> Option<EgressReport> {
        self.found.borrow().clone()
    }

    /// A probe has ended with this report.
    pub(crate) fn found(&self, report: EgressReport) {
        self.found.send_replace(Some(report));
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

pub(crate) fn why_not(found: Option<&EgressReport>) -> String {
    let what = match found {
        None => "no probe has ended yet that could show that sandboxes reach nothing".to_owned(),
        Some(EgressReport { failed: Some(why), .. }) => {
            format!("whether sandboxes reach nothing could not be found out: {why}")
        }
        Some(found) => format!(
            "a sandbox of this pool reached {}: the cluster does not enforce its NetworkPolicy",
            found.reached.join(", ")
        ),
    };
    format!("{what}; install a network plugin that does, or set allowUnenforced: true to lease all the same")
}

#[cfg(test)]
mod tests;
