//! Decides when a run's missing pods are not created: a ResourceQuota is short, or Kueue has not admitted the run.
//! Behind our own gate pods wait without harm. Kueue is asked when the run lacks nothing. After its admission the run
//! takes the claim on a shared pool, and then makes its pods.

use crate::{
    grpo_run::{
        blockers::Blocker,
        observation::RunObservation,
        queue::{self, QueueVerdict},
        status::claims,
    },
    pod_group::{GroupState, GroupUpdate},
    pods::PodFacts,
};

/// Why no pods are created now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    pub message: String,
    /// Delete the attempt if none of its pods is on a node.
    pub give_back: bool,
}

/// The hold on a run's pods, if quota, preconditions or claim require one.
pub fn hold(seen: &RunObservation, blockers: &[Blocker]) -> Option<Hold> {
    if let Some(wait) = &seen.quota {
        return Some(Hold {
            message: wait.message.clone(),
            give_back: wait.refused,
        });
    }
    let verdict = queue::verdict(seen);
    if verdict == QueueVerdict::NoQueue {
        return None;
    }
    let message = match (blockers.first(), verdict) {
        (Some((_, message)), _) => message.clone(),
        (None, QueueVerdict::Waits(message) | QueueVerdict::Evicted(message)) => message,
        (None, _) if lacks_claim(seen) => format!(
            "its pods are made when it has the claim on InferencePool {} ({})",
            seen.inference_name(),
            grpo_crds::GROUP
        ),
        (None, _) => return None,
    };
    Some(Hold {
        message,
        give_back: false,
    })
}

/// Whether the run samples from a shared pool that it has not claimed yet.
fn lacks_claim(seen: &RunObservation) -> bool {
    let spec = &seen.run.spec;
    spec.mode.needs_engines() && spec.inference.pool_ref.is_some() && !claims(seen)
}

/// Holds back a group's pods, and returns whether any were held: the attempt stays as if it had not been created.
pub fn held_back(mut update: GroupUpdate, hold: Option<&Hold>, pods: &[PodFacts]) -> (GroupUpdate, bool) {
    let goes_on = matches!(
        update.state,
        GroupState::Starting { .. } | GroupState::Running | GroupState::Pausing { .. }
    );
    let Some(hold) = hold.filter(|_| goes_on) else {
        return (update, false);
    };
    let attempt: Vec<&PodFacts> = pods
        .iter()
        .filter(|pod| pod.attempt == update.status.current && !pod.deleting)
        .collect();
    let unbound = attempt.iter().all(|pod| pod.node_name.is_none() && !pod.is_finished());
    let given_back = hold.give_back && unbound && !attempt.is_empty();
    if update.create.is_empty() && !given_back {
        return (update, false);
    }
    if given_back {
        update.delete.extend(attempt.iter().map(|pod| pod.name.clone()));
    }
    update.create.clear();
    update.status.created = false;
    update.state = GroupState::Starting {
        message: hold.message.clone(),
    };
    (update, true)
}

#[cfg(test)]
mod tests;
