//! Sandbox calls for command-line agents: the relay to the driver, and killing a command.

use super::{ANSWER_BYTES, BRIEF, Blame, Call, EXEC_MARGIN, Sandbox, SandboxError};
use crate::retry::Budget;
use grpo_sandbox_protocol::{KillRequest, RelayRequest};
use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The pause between two renewals of a relay.
const RELAY_PAUSE: Duration = Duration::from_secs(10);

/// How long a relay has been without its gateway. The agent's time does not pass then.
#[derive(Debug)]
pub struct RelayOutages(Mutex<Renewals>);

#[derive(Debug)]
struct Renewals {
    /// The last renewal that succeeded.
    last: Instant,
    /// No later one did.
    failing: bool,
    /// Of the outages that are over.
    lost: Duration,
}

impl Default for RelayOutages {
    /// Of a relay that was set up just now.
    fn default() -> Self {
        Self(Mutex::new(Renewals {
            last: Instant::now(),
            failing: false,
            lost: Duration::ZERO,
        }))
    }
}

impl RelayOutages {
    /// All outages so far. Each is counted from the last renewal before it, so up to [`RELAY_PAUSE`] too long; one
    /// between two renewals is not seen.
    pub fn lost(&self) -> Duration {
        let renewals = self.lock();
        match renewals.failing {
            true => renewals.lost + renewals.last.elapsed(),
            false => renewals.lost,
        }
    }

    fn renewed(&self, succeeded: bool) {
        let mut renewals = self.lock();
        if succeeded {
            let outage = renewals.last.elapsed();
            if renewals.failing {
                renewals.lost += outage;
            }
            renewals.last = Instant::now();
        }
        renewals.failing = !succeeded;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Renewals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sandbox {
    /// Kills a command and everything that it started. A command that has ended is left as is.
    pub async fn kill(&self, id: &str) -> Result<(), SandboxError> {
        let kill = KillRequest {
            id: id.to_owned(),
            signal: None,
        };
        let call = self.file_call("ending command", id);
        let url = self.url("/exec/kill");
        let post = || self.gateway.http.post(&url).json(&kill);
        self.gateway.send(&call, post).await.map(|_| ())
    }

    /// Relays a port of the sandbox to a service. Waits for the gateway.
    pub async fn relay(&self, relay: &RelayRequest) -> Result<(), SandboxError> {
        self.relay_within(relay, self.gateway.patience).await
    }

    /// Renews a relay until the future is dropped: a restarted gateway does not know it. `outages`: of this relay.
    pub async fn keep_relay(&self, relay: &RelayRequest, outages: &RelayOutages) -> Infallible {
        loop {
            tokio::time::sleep(RELAY_PAUSE).await;
            let renewed = self.relay_within(relay, BRIEF.total).await;
            // A sandbox that does not answer may be the policy's work, and is no outage.
            let away = matches!(&renewed, Err(error) if error.blame() == Blame::Infrastructure);
            outages.renewed(!away);
            if let Err(error) = renewed {
                tracing::debug!(lease = %self.lease.id, %error, "leading a port");
            }
        }
    }

    async fn relay_within(&self, relay: &RelayRequest, total: Duration) -> Result<(), SandboxError> {
        let call = Call {
            doing: format!(
                "leading port {} under lease {} to the driver",
                relay.port, self.lease.id
            ),
            lease: &self.lease.id,
            object: "",
            budget: Budget {
                request: EXEC_MARGIN,
                total,
            },
            answer: ANSWER_BYTES,
        };
        let url = self.url("/relay");
        let put = || self.gateway.http.put(&url).json(relay);
        self.gateway.send(&call, put).await.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_outage_counts_from_the_last_renewal_before_it_to_the_first_after_it() {
        let outages = RelayOutages::default();
        let after = |seconds| tokio::time::advance(Duration::from_secs(seconds));
        let lost = || outages.lost().as_secs();
        after(10).await;
        outages.renewed(true);
        after(10).await;
        assert_eq!(lost(), 0);
        outages.renewed(false);
        assert_eq!(lost(), 10);
        after(5).await;
        outages.renewed(false);
        assert_eq!(lost(), 15, "it is not over");
        after(5).await;
        outages.renewed(true);
        after(10).await;
        assert_eq!(lost(), 20);
        outages.renewed(false);
        assert_eq!(lost(), 30, "a second one is added");
    }
}
