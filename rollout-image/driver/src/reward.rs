//! `reward` of the run's spec, as the rule that records have of it.

use grpo_crds::grpo_run;
use grpo_records::RewardRule;
use grpo_records::reward::{Cost, Shaping};

/// What verdicts of the run are worth.
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
    }
}
