//! What a run waits for at the pool that judges its turns (`reward.process`).
//!
//! The judge keeps the weights it booted with. A pool that a run owns or has claimed follows that run's weights, so it
//! is no judge.

use grpo_crds::{GrpoRun, InferencePool};
use kube::Resource;

use super::{Blocker, RunObservation, pool_in_words, unready as conditions_unready};

pub const MISSING: &str = "JudgeMissing";
pub const CLAIMED: &str = "JudgeClaimed";

/// The pool is not there, or follows a run.
pub fn unusable(seen: &RunObservation) -> Option<Blocker> {
    let words = pool_in_words::<InferencePool>(seen.judge_name()?);
    let Some(pool) = &seen.judge else {
        let message = format!(
            "reward.process: there is no {words} in this namespace; make it, or correct reward.process.poolRef in another run"
        );
        return Some((MISSING, message));
    };
    let owners = pool.metadata.owner_references.iter().flatten();
    let owner = owners.into_iter().find(|owner| owner.kind == GrpoRun::kind(&()));
    let claim = pool.status.as_ref().and_then(|status| status.claimed_by.as_ref());
    let run = owner.map(|owner| &owner.name).or(claim.map(|claim| &claim.name))?;
    let message = format!(
        "reward.process: {words} follows the weights of GrpoRun {run}, and a judge keeps its own; name a pool that no run samples from"
    );
    Some((CLAIMED, message))
}

/// The pool serves nothing yet.
pub fn unready(seen: &RunObservation) -> Option<Blocker> {
    let words = pool_in_words::<InferencePool>(seen.judge_name()?);
    let conditions = seen
        .judge
        .as_ref()?
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice());
    conditions_unready("JudgeNotReady", &format!("reward.process: {words}"), conditions)
}
