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

/// A group's update after a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AfterHold {
    pub update: GroupUpdate,
    /// Whether any pods were held back.
    pub held: bool,
    /// Names of pods to give back.
    pub give_back: Vec<String>,
}

impl AfterHold {
    fn unchanged(update: GroupUpdate) -> Self {
        Self {
            update,
            held: false,
            give_back: Vec::new(),
        }
    }
}

/// Holds back a group's pods: the attempt stays as if it had not been created.
pub fn held_back(mut update: GroupUpdate, hold: Option<&Hold>, pods: &[PodFacts]) -> AfterHold {
    let goes_on = matches!(
        update.state,
        GroupState::Starting { .. } | GroupState::Running | GroupState::Pausing { .. }
    );
    let Some(hold) = hold.filter(|_| goes_on) else {
        return AfterHold::unchanged(update);
    };
    let attempt: Vec<&PodFacts> = pods
        .iter()
        .filter(|pod| pod.attempt == update.status.current && !pod.deleting)
        .collect();
    let unbound = attempt.iter().all(|pod| pod.node_name.is_none() && !pod.is_finished());
    let given_back = hold.give_back && unbound && !attempt.is_empty();
    if update.create.is_empty() && !given_back {
        return AfterHold::unchanged(update);
    }
    let give_back = match given_back {
        true => attempt.iter().map(|pod| pod.name.clone()).collect(),
        false => Vec::new(),
    };
    update.create.clear();
    update.status.created = false;
    update.state = GroupState::Starting {
        message: hold.message.clone(),
    };
    AfterHold {
        update,
        held: true,
        give_back,
    }
}

#[cfg(test)]
mod tests;
