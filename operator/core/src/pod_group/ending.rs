//! Finds why an attempt is over, if it is: the cause among all that its pods report, not a consequence.
//!
//! The end of one rank ends all others, and watches show the ends in any order. A pod that the cluster removed, or that
//! a kubelet refused, explains all ends. A rank that waited too long reports which ranks hang. A rank that ended by
//! itself explains the ranks that report a lost peer; the operator waits a moment for it.

use std::time::Duration;

use grpo_contracts::exit::{Hang, PEER_LOST_CODE, is_of_lost_peer};
use jiff::Timestamp;

use super::group::{PodGroups, UpdatePolicy, missing};
use crate::pods::{Failure, PodFacts, PodState};

/// How long to wait for the cause of a lost peer.
const CAUSE_TO_COME: Duration = Duration::from_secs(3);

/// Whether and why an attempt is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Nothing ended.
    None,
    /// The attempt is over but its cause is not known yet, or a deadline runs: check again after this time.
    NotYet(Duration),
    Over {
        failure: Failure,
        /// Nodes that later attempts avoid: a rank hung there, or the kubelet refused a pod.
        bad_nodes: Vec<String>,
    },
}

impl Ending {
    fn over(failure: Failure) -> Self {
        Self::Over {
            failure,
            bad_nodes: Vec::new(),
        }
    }
}

/// Examines the pods of one group's attempt. `created`: all of them had been created.
pub(super) fn ending(wanted: &PodGroups, created: bool, live: &[&PodFacts], now: Timestamp) -> Ending {
    let failures: Vec<&Failure> = live
        .iter()
        .filter_map(|pod| match &pod.state {
            PodState::Failed(failure) => Some(failure),
            _ => None,
        })
        .collect();
    if let Some(taken) = taken_away(live, &failures) {
        return Ending::Over {
            failure: taken,
            bad_nodes: refused_by(wanted, live),
        };
    }
    let mut reports = failures.iter().filter(|_| wanted.ranks_report_peers);
    if let Some((hang, at)) = reports.find_map(|failure| Some((failure.hang()?, failure.at))) {
        return hung(&hang, at, live);
    }
    let lost_peer = |failure: &&&Failure| wanted.ranks_report_peers && failure.exit_code.is_some_and(is_of_lost_peer);
    let by_themselves = failures.iter().filter(|failure| !lost_peer(failure));
    if let Some(first) = by_themselves.min_by_key(|failure| failure.at.unwrap_or(now)) {
        return Ending::over((*first).clone());
    }
    let ended = live.iter().find(|pod| pod.state == PodState::Succeeded);
    if let Some(pod) = ended.filter(|_| wanted.update != UpdatePolicy::Recreate) {
        return Ending::over(taken(format!("pod {} ended, though it is to serve", pod.name)));
    }
    let lost = missing(wanted.size, live);
    if let Some(rank) = lost.first().filter(|_| created) {
        // The pods do not tell whether the last ranks were deleted, or the run was suspended, made larger and resumed
        // before the operator saw it.
        let lacks_the_last = !live.is_empty() && live.iter().all(|pod| pod.rank < *rank);
        return Ending::over(taken(match lacks_the_last {
            true => format!(
                "the group has {rank} of the {} pods that the spec asks for now: the pod of rank {rank} was deleted, \
                 or the group was made larger",
                wanted.size
            ),
            false => format!("the pod of rank {rank} was deleted"),
        }));
    }
    let too_many = live.iter().find(|pod| pod.rank >= wanted.size);
    if let Some(pod) = too_many.filter(|_| wanted.update == UpdatePolicy::Recreate) {
        // The run was suspended, made smaller and resumed before the operator saw it.
        return Ending::over(taken(format!(
            "pod {} is of a larger group, and the spec asks for {} pods now",
            pod.name, wanted.size
        )));
    }
    // Among ranks that lost a peer, an aborted rank may be that peer.
    let aborted = failures
        .iter()
        .find(|failure| failure.exit_code != Some(PEER_LOST_CODE));
    if let Some(first) = aborted.or(failures.first()) {
        return cause_to_come(first, live, now).map_or_else(|| Ending::over((*first).clone()), Ending::NotYet);
    }
    start(wanted, live, now)
}

fn taken(message: String) -> Failure {
    Failure {
        disrupted: true,
        message,
        ..Failure::default()
    }
}

fn taken_away(live: &[&PodFacts], failures: &[&Failure]) -> Option<Failure> {
    if let Some(disrupted) = failures.iter().find(|failure| failure.disrupted) {
        return Some((*disrupted).clone());
    }
    let deleted = live.iter().find(|pod| pod.deleting && !pod.is_finished())?;
    let how = deleted.taken.as_deref().unwrap_or("was deleted");
    Some(taken(format!("pod {} {how}", deleted.name)))
}

/// Nodes whose kubelets refused a pod. Groups that serve finish no work, after which they would be forgotten.
fn refused_by(wanted: &PodGroups, live: &[&PodFacts]) -> Vec<String> {
    let counts = wanted.update == UpdatePolicy::Recreate;
    let refused = live
        .iter()
        .filter(|pod| counts && matches!(&pod.state, PodState::Failed(failure) if failure.refused));
    refused.filter_map(|pod| pod.node_name.clone()).collect()
}

/// A rank hung. If its pod is out of reach, the node is lost, which the cluster reports only later.
fn hung(hang: &Hang, at: Option<Timestamp>, live: &[&PodFacts]) -> Ending {
    let pods: Vec<&&PodFacts> = live.iter().filter(|pod| hang.pods.contains(&pod.rank)).collect();
    let places: Vec<String> = pods
        .iter()
        .map(|pod| match &pod.node_name {
            Some(node) => format!("pod {} on node {node}", pod.name),
            None => format!("pod {}", pod.name),
        })
        .collect();
    let gone: Vec<&str> = pods
        .iter()
        .filter(|pod| pod.is_out_of_reach())
        .map(|pod| pod.name.as_str())
        .collect();
    let mut message = hang.message.clone();
    if !places.is_empty() {
        message = format!("{message}; that is {}", places.join(", "));
    }
    if !gone.is_empty() {
        message = format!("{message}, whose node does not answer");
    }
    Ending::Over {
        failure: Failure {
            disrupted: !gone.is_empty(),
            message,
            at,
            ..Failure::default()
        },
        bad_nodes: pods.iter().filter_map(|pod| pod.node_name.clone()).collect(),
    }
}

fn cause_to_come(first: &Failure, live: &[&PodFacts], now: Timestamp) -> Option<Duration> {
    let others_run = live.iter().any(|pod| !pod.is_finished());
    let since = Duration::try_from(now.duration_since(first.at?)).unwrap_or_default();
    CAUSE_TO_COME
        .checked_sub(since)
        .filter(|left| others_run && !left.is_zero())
}

/// Checks that running pods become ready within the group's deadline. Waiting for nodes and images does not count.
fn start(wanted: &PodGroups, live: &[&PodFacts], now: Timestamp) -> Ending {
    let Some(deadline) = wanted.start else {
        return Ending::None;
    };
    let started: Option<Vec<Timestamp>> = live.iter().map(|pod| pod.started_at).collect();
    let last = started.filter(|_| missing(wanted.size, live).is_empty());
    let Some(last) = last.and_then(|all| all.into_iter().max()) else {
        return Ending::None;
    };
    let late: Vec<&&PodFacts> = live.iter().filter(|pod| !pod.has_been_ready).collect();
    if late.is_empty() {
        return Ending::None;
    }
    let since = Duration::try_from(now.duration_since(last)).unwrap_or_default();
    if let Some(left) = deadline.checked_sub(since).filter(|left| !left.is_zero()) {
        return Ending::NotYet(left);
    }
    Ending::over(Failure {
        message: format!(
            "{} of {} pods were not ready {} s after the last had started (spec.trainer.deadlines.start): {}",
            late.len(),
            wanted.size,
            deadline.as_secs(),
            who(&late)
        ),
        ..Failure::default()
    })
}

/// `rank 2 (pod demo-trainer-1-2 on node gpu-3)`
pub(super) fn who(pods: &[&&PodFacts]) -> String {
    let one = |pod: &&&PodFacts| {
        let node = pod.node_name.as_ref();
        let on = node.map(|node| format!(" on node {node}")).unwrap_or_default();
        format!("rank {} (pod {}{on})", pod.rank, pod.name)
    };
    pods.iter().map(one).collect::<Vec<_>>().join(", ")
}
