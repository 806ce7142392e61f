//! Sandbox calls for command-line agents: the relay to the driver, and killing a command.

use super::{ANSWER_BYTES, BRIEF, Call, EXEC_MARGIN, Sandbox, SandboxError};
use crate::retry::Budget;
use grpo_sandbox_protocol::{KillRequest, RelayRequest};
use std::convert::Infallible;
use std::time::Duration;

/// The pause between two renewals of a relay.
const RELAY_PAUSE: Duration = Duration::from_secs(10);

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

    /// Renews a relay until the future is dropped: a restarted gateway does not know it.
    pub async fn keep_relay(&self, relay: &RelayRequest) -> Infallible {
        loop {
            tokio::time::sleep(RELAY_PAUSE).await;
            if let Err(error) = self.relay_within(relay, BRIEF.total).await {
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
