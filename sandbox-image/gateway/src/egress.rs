//! Whether sandboxes reach nothing, as the last probe found.
//!
//! Until a probe has shown that they reach nothing, a pool leases nothing unless it says `allowUnenforced`; what was
//! found is in the pool's report.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use grpo_sandbox_protocol::{EgressReport, ErrorBody, ErrorCode, FaultOrigin, Limits};
use tokio::sync::watch;

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
mod tests {
    use super::*;

    fn found(reached: &[&str], failed: Option<&str>) -> EgressReport {
        EgressReport {
            at: 1_000_000,
            tried: vec!["the API server (10.0.0.1:443)".into()],
            reached: reached.iter().map(|&what| what.to_owned()).collect(),
            failed: failed.map(str::to_owned),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_leased_until_a_probe_has_shown_walls() {
        let egress = Egress::restored(None, None, false, 0);
        let early = egress.shown_to_be_blocked(Duration::from_secs(1)).await.unwrap_err();
        assert_eq!(early.code, ErrorCode::EgressUnproven);
        let waits = egress.shown_to_be_blocked(Duration::from_secs(60));
        let (waited, ()) = tokio::join!(waits, async {
            egress.found.send_replace(Some(found(&[], None)));
        });
        assert_eq!(waited, Ok(()));
        egress
            .found
            .send_replace(Some(found(&["the API server (10.0.0.1:443)"], None)));
        let refused = egress.shown_to_be_blocked(Duration::from_secs(60)).await.unwrap_err();
        assert!(
            refused.message.contains("reached the API server (10.0.0.1:443)"),
            "{refused}"
        );
    }

    #[test]
    fn a_gateway_that_begins_believes_only_a_fresh_report_of_walls() {
        let restored = |millis: i64, found, unenforced| {
            let egress = Egress::restored(Some(found), None, unenforced, 1_000_000 + millis);
            egress.report().is_some()
        };
        let after = |millis, found| restored(millis, found, false);
        assert!(after(60_000, found(&[], None)));
        assert!(!after(3_600_000, found(&[], None)));
        assert!(!after(60_000, found(&["x"], None)) && !after(60_000, found(&[], Some("no sandbox"))));
        let nothing_tried = EgressReport {
            tried: Vec::new(),
            ..found(&[], None)
        };
        assert!(!after(60_000, nothing_tried));
        // Where nobody waits for better, what is known is known.
        assert!(restored(60_000, found(&["x"], None), true));
        assert!(!restored(60_000, found(&[], Some("no sandbox")), true));
    }
}
