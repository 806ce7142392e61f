//! How long the driver waits for the infrastructure before an episode is void or the run ends.

use crate::retry::{Budget, Pauses};
use std::time::Duration;

/// How long a lease outlives a dead driver: a restarted driver takes up its episodes within this time. The longest
/// restart is that of a driver whose store has a hundred thousand episodes.
const LEASE_TTL: Duration = Duration::from_secs(300);
/// How long the gateway, or all engines, may be unavailable before an episode is void.
const PATIENCE: Duration = Duration::from_secs(600);
/// How long an engine may be silent before it has to prove that it samples.
const SILENCE: Duration = Duration::from_secs(60);
/// Longer than an engine needs to download and load the largest model; after this time the fault is terminal.
const WEIGHTS_PATIENCE: Duration = Duration::from_secs(2 * 3600);
/// How long graders may be lost in a row before an episode with a durable patch is void.
pub(super) const GRADING_PATIENCE: Duration = Duration::from_secs(3600);
/// How long the trainer may make no progress before the run ends.
pub const TRAINER_PATIENCE: Duration = Duration::from_secs(3 * 3600);
/// Registries recover within minutes; a wrong image name delays a run no longer than this.
const IMAGE_PATIENCE: Duration = Duration::from_secs(900);
/// Between attempts at an episode, or at its grading, after a loss to the infrastructure.
const PAUSES: Pauses = Pauses {
    first: Duration::from_secs(5),
    longest: Duration::from_secs(300),
    factor: 3,
};

/// How long the driver waits for the infrastructure.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    pub gateway: Duration,
    /// For an image that cannot be pulled, from its first failure.
    pub images: Duration,
    pub engines: Budget,
    /// For weights that no engine serves although engines answer.
    pub weights: Duration,
    pub grading: Duration,
    pub trainer: Duration,
    /// For one episode, on top of the policy's own time.
    pub waiting: Duration,
    /// Between attempts after a loss to the infrastructure.
    pub pauses: Pauses,
    pub lease_ttl: Duration,
    /// How often a void episode is retried.
    pub void_retries: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            gateway: PATIENCE,
            images: IMAGE_PATIENCE,
            engines: Budget {
                request: SILENCE,
                total: PATIENCE,
            },
            weights: WEIGHTS_PATIENCE,
            grading: GRADING_PATIENCE,
            trainer: TRAINER_PATIENCE,
            waiting: Duration::from_secs(1800),
            pauses: PAUSES,
            lease_ttl: LEASE_TTL,
            void_retries: 3,
        }
    }
}
