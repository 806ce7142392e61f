//! The run's `reward` as the rule in records, and the client of a [`service`] that decides the final reward.

pub mod service;

use crate::retry::Budget;
use grpo_contracts::RunConfig;
use grpo_crds::grpo_run;
use grpo_records::RewardRule;
use grpo_records::reward::{Cost, Shaping};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The service that decides the final reward.
#[derive(Clone, Debug)]
pub struct RewardServiceSettings {
    pub url: String,
    /// The file with the token.
    pub token: Option<PathBuf>,
    /// Requests at one time.
    pub concurrency: u32,
    /// `request`: for one request. `total`: for one episode while the service is silent.
    pub budget: Budget,
}

/// The run's service; `patience` is the time to wait for it.
pub fn service(spec: &grpo_run::HttpReward, patience: Duration) -> RewardServiceSettings {
    RewardServiceSettings {
        url: spec.url.clone(),
        token: (spec.token_secret_ref.as_ref())
            .map(|_| Path::new(RunConfig::REWARD_TOKEN_MOUNT).join(RunConfig::REWARD_TOKEN_FILE)),
        concurrency: spec.concurrency,
        budget: Budget {
            request: spec.timeout.duration(),
            total: patience,
        },
    }
}

/// The reward rule of the run.
pub fn rule(spec: &grpo_run::Reward) -> RewardRule {
    let cost = |cost: &grpo_run::Cost| Cost {
        each: cost.each,
        most: cost.most,
    };
    let free = |given: &Option<grpo_run::Cost>| given.as_ref().map(cost).unwrap_or_default();
    let shaping = |shaping: &grpo_run::Shaping| Shaping {
        pass_ratio: shaping.pass_ratio,
        turns: free(&shaping.turns),
        calls: (shaping.calls.iter().flatten())
            .map(|call| (call.tool.clone(), cost(&call.cost)))
            .collect(),
        patch_lines: free(&shaping.patch_lines),
        low: shaping.low,
        high: shaping.high,
    };
    RewardRule {
        resolved: spec.resolved,
        unresolved: spec.unresolved,
        shaping: spec.shaping.as_ref().map(shaping),
        asks: spec.http.is_some(),
    }
}
