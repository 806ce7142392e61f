//! Who may call which service: audiences of tokens, where they are mounted, and the service accounts of callers.
//!
//! A token is a service account's, projected into a pod for one service. The operator writes pods and accounts by these
//! names, services accept them, and `grpo-auth` checks.

/// A service that asks for a token of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    Gateway,
    Driver,
    Trainer,
    EngineAgent,
}

impl Service {
    /// What a token for it names as its audience.
    pub fn audience(self) -> &'static str {
        match self {
            Self::Gateway => "gateway.grpo.dev",
            Self::Driver => "driver.grpo.dev",
            Self::Trainer => "trainer.grpo.dev",
            Self::EngineAgent => "engine-agent.grpo.dev",
        }
    }
}

/// The folder with a pod's tokens: one file for each service it calls, named as the audience.
pub const TOKENS: &str = "/var/run/secrets/grpo.dev/tokens";
/// The volume of that folder.
pub const TOKENS_VOLUME: &str = "grpo-tokens";
/// Seconds that a token is valid; the kubelet replaces it after four fifths of them.
pub const TOKEN_SECONDS: u32 = 3600;
/// Where a pod finds its token for the API server, and the API server's certificate authority.
pub const API_SERVER_ACCESS: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Names of the service accounts that the operator makes.
pub mod account {
    pub fn driver(run: &str) -> String {
        format!("{run}{}", super::DRIVER_SUFFIX)
    }

    pub fn trainer(run: &str) -> String {
        format!("{run}-trainer")
    }

    /// Of the engine pods of an InferencePool.
    pub fn engines(pool: &str) -> String {
        format!("{pool}-engines")
    }

    /// Of a SandboxPool's gateway.
    pub fn gateway(pool: &str) -> String {
        format!("{pool}-gateway")
    }

    /// Has no pod: a token for it lets people and other systems' programs use a SandboxPool.
    pub fn sandbox_client(pool: &str) -> String {
        format!("{pool}-client")
    }
}

const DRIVER_SUFFIX: &str = "-driver";

/// The run whose driver has this account.
pub fn run_of_driver(account: &str) -> Option<&str> {
    account.strip_suffix(DRIVER_SUFFIX).filter(|run| !run.is_empty())
}
