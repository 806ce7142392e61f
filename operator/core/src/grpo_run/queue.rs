//! What Kueue says about a run with `queueName`, and what the operator does with the run's Workload then.
//!
//! | the run | its Workload |
//! |---|---|
//! | lacks something, and has no pod on a node | deleted: its quota would be of no use |
//! | could begin | created; no pod is created until Kueue admits it |
//! | is admitted | kept; the run takes the claim on a shared pool, and makes its pods |
//! | works, or lost a pod of driver or trainer after that | Kueue is told whether its pods are ready |
//! | is evicted | kept: the run gives all back, and then the quota |
//! | is suspended, or over | deleted when none of its pods is left |

use super::{
    decision::WorkloadStep,
    observation::{Asked, QueueState, RunObservation},
};
use crate::{admission::gate::EngineQuota, kueue::Placement, names::role};

/// Kueue's verdict on a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueVerdict {
    /// The run has no queue: admission of this operator decides.
    NoQueue,
    Waits(String),
    Admitted(String),
    /// Kueue takes the quota back: the run has to end all of its pods.
    Evicted(String),
}

pub fn verdict(seen: &RunObservation) -> QueueVerdict {
    let Some(queue) = &seen.run.spec.queue_name else {
        return QueueVerdict::NoQueue;
    };
    let begun = seen.has_pods() || seen.engines_left;
    // Pods that end now may be those of an evicted run.
    let works = seen.driver_pods.iter().any(|pod| !pod.deleting && !pod.is_finished());
    match &seen.queue {
        // What Kueue says cannot be learnt now, and to end a run that works would only lose its work.
        QueueState::NotServed | QueueState::NotAllowed if works => {
            QueueVerdict::Admitted("Kueue admitted it".to_owned())
        }
        QueueState::NotServed => QueueVerdict::Waits(
            "spec.queueName needs Kueue, and this cluster does not serve kueue.x-k8s.io/v1beta2: install Kueue 0.15 or later, or leave \
             spec.queueName out of another run"
                .to_owned(),
        ),
        QueueState::NotAllowed => QueueVerdict::Waits(
            "spec.queueName needs Kueue's ResourceFlavors, and an operator of one namespace (watchNamespace) may not read them: install the \
             operator for all namespaces, or leave spec.queueName out of another run"
                .to_owned(),
        ),
        QueueState::Unasked | QueueState::LacksClass(_) if begun => {
            QueueVerdict::Evicted("its Workload is gone, so it has no quota; it asks for quota again".to_owned())
        }
        QueueState::LacksClass(class) => QueueVerdict::Waits(format!(
            "there is no {class}, which decides the run's place in LocalQueue {queue}; create it, or name another one"
        )),
        QueueState::Unasked => QueueVerdict::Waits(format!("its Workload for LocalQueue {queue} is being made")),
        QueueState::Asked(asked) => of_workload(asked, queue, begun, &seen.owner.namespace),
    }
}

fn of_workload(asked: &Asked, queue: &str, begun: bool, namespace: &str) -> QueueVerdict {
    let workload = &asked.workload;
    if let Some(evicted) = workload.eviction() {
        return QueueVerdict::Evicted(format!("Kueue evicted it ({}): {}", evicted.reason, evicted.message));
    }
    let lacks_flavor = asked.lacks_flavor.as_ref().filter(|_| !begun);
    if let Some(flavor) = lacks_flavor.filter(|_| workload.is_admitted()) {
        return QueueVerdict::Waits(format!(
            "Kueue admitted it to ResourceFlavor {flavor}, which is missing, so its pods cannot be placed; create it again"
        ));
    }
    if workload.is_admitted() {
        let queue = workload
            .status
            .admission
            .as_ref()
            .map(|admission| &admission.cluster_queue);
        return QueueVerdict::Admitted(match queue {
            Some(queue) => format!("Kueue admitted it to ClusterQueue {queue}"),
            None => "Kueue admitted it".to_owned(),
        });
    }
    match begun {
        true => QueueVerdict::Evicted("Kueue took its admission back".to_owned()),
        false => QueueVerdict::Waits(format!(
            "waits for quota in LocalQueue {queue} of namespace {namespace}: {}. `kubectl describe workloads.kueue.x-k8s.io -n {namespace}` \
             shows more",
            workload.wait().trim_end_matches('.')
        )),
    }
}

/// Where Kueue places the pods of a pod set. Empty for a run without a queue.
pub fn placement(seen: &RunObservation, pod_set: &str) -> Placement {
    match &seen.queue {
        QueueState::Asked(asked) => asked.placements.get(pod_set).cloned().unwrap_or_default(),
        _ => Placement::default(),
    }
}

/// What the run's own engines may use of its quota. `None` for a run without a queue, and before it is admitted.
pub fn engine_quota(seen: &RunObservation) -> Option<EngineQuota> {
    let QueueState::Asked(asked) = &seen.queue else {
        return None;
    };
    asked.workload.is_admitted().then(|| EngineQuota {
        pods: asked.workload.pods(role::ENGINE),
        placement: placement(seen, role::ENGINE),
    })
}

/// Whether a pod may still use the run's quota.
fn uses_quota(seen: &RunObservation) -> bool {
    seen.has_pods() || seen.engines_left
}

/// The step for a run that is suspended or over, or lacks something: its Workload is deleted with its last pod.
pub fn released(seen: &RunObservation) -> WorkloadStep {
    match &seen.queue {
        QueueState::Asked(_) if !uses_quota(seen) => WorkloadStep::Delete,
        _ => WorkloadStep::Leave,
    }
}

/// The step for an evicted run: its quota is returned with its last pod.
pub fn returned(seen: &RunObservation) -> WorkloadStep {
    match &seen.queue {
        QueueState::Asked(asked) if !uses_quota(seen) && asked.workload.holds_quota() => {
            WorkloadStep::Status(asked.workload.without_quota(seen.now))
        }
        _ => WorkloadStep::Leave,
    }
}

#[cfg(test)]
mod tests;
