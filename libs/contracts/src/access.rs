//! Who may call which service: audiences of tokens, their mount paths, and the service accounts of callers.
//!
//! A token belongs to a service account and is projected into a pod for one service. The operator writes pods and
//! accounts with these names, services accept them, and `grpo-auth` checks them.

/// A service that requires a token with its own audience.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    Gateway,
    Driver,
    Trainer,
    EngineAgent,
}

impl Service {
    /// The audience of a token for this service.
    pub fn audience(self) -> &'static str {
        match self {
            Self::Gateway => "gateway.grpo.dev",
            Self::Driver => "driver.grpo.dev",
            Self::Trainer => "trainer.grpo.dev",
            Self::EngineAgent => "engine-agent.grpo.dev",
        }
    }
}

/// The audience of drivers' tokens for one pool's gateway. A gateway sees its callers' tokens: with the audience of all
/// gateways, the owners of a pool that serves other namespaces could use them at those namespaces' own gateways.
pub fn gateway_audience(namespace: &str, pool: &str) -> String {
    format!("{pool}.{namespace}.{}", Service::Gateway.audience())
}

/// The folder with a pod's tokens: one file for each service that the pod calls, named after the service's audience.
pub const TOKENS: &str = "/var/run/secrets/grpo.dev/tokens";
/// The volume of that folder.
pub const TOKENS_VOLUME: &str = "grpo-tokens";
/// Lifetime of a token in seconds; the kubelet replaces it after four fifths of it.
pub const TOKEN_SECONDS: u32 = 3600;
/// Where the token for the API server and the server's certificate authority are mounted in a pod.
pub const API_SERVER_ACCESS: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Names of the service accounts that the operator creates.
pub mod account {
    pub fn driver(run: &str) -> String {
        format!("{run}{}", super::DRIVER_SUFFIX)
    }

    pub fn trainer(run: &str) -> String {
        format!("{run}-trainer")
    }

    /// The account of an InferencePool's engine pods.
    pub fn engines(pool: &str) -> String {
        format!("{pool}-engines")
    }

    /// The account of a SandboxPool's gateway.
    pub fn gateway(pool: &str) -> String {
        format!("{pool}-gateway")
    }

    /// An account without a pod: with a token for it, people and programs of other systems can use a SandboxPool.
    pub fn sandbox_client(pool: &str) -> String {
        format!("{pool}-client")
    }
}

const DRIVER_SUFFIX: &str = "-driver";

/// The run whose driver has this account.
pub fn run_of_driver(account: &str) -> Option<&str> {
    account.strip_suffix(DRIVER_SUFFIX).filter(|run| !run.is_empty())
}
