//! Admission in clusters that add nodes when pods need them. Pure.
//!
//! An autoscaler adds nodes for pods that the scheduler cannot place, and ignores gated pods. So a run that fits on no
//! present nodes is lifted unplanned: no pod is pinned to a node. This is the last choice, for one run at a time.
//! Meanwhile runs that fit beside it are admitted: what its pods could take of the present nodes is reserved. The run
//! may hold some of its pods while the rest waits for nodes; pods without a node after the time in the operator's
//! settings are requeued.

use super::{
    facts::Candidate,
    fit::{Budget, Capacity, VolumePlaces, place},
    history::{History, lift},
    messages,
    standing::Standing,
    step::{Chosen, Decision, Snapshot, chosen},
};

/// Lifts the first run that waits for capacity, if nodes may be added and no other step was decided; runs that work and
/// wait for further replicas come last. `ahead`: the run that has some of its pods and blocks the others.
pub fn ask_for_nodes(
    snapshot: &Snapshot<'_>,
    standings: &[Standing<'_>],
    ahead: Option<&Candidate>,
    history: &mut History,
    decision: &mut Decision,
) {
    let Some(wait) = snapshot.scale_up else { return };
    let underway = standings.iter().any(|run| !run.unbound.is_empty());
    if snapshot.nodes.is_none() || decision.step.is_some() || underway {
        return;
    }
    let turn = |run: &&Standing<'_>| ahead.is_none_or(|ahead| ahead.uid == run.run.uid);
    let waits = |run: &&Standing<'_>| {
        let pauses = history.pauses(&run.run.uid, snapshot.now);
        !run.gated.is_empty() && run.incomplete.is_empty() && !pauses
    };
    let waiting = || standings.iter().filter(turn).filter(waits);
    let Some(run) = waiting().find(|run| !run.works()).or_else(|| waiting().next()) else {
        return;
    };
    if run.run.unclaimed {
        decision.tell(run, messages::claims_pool());
        return;
    }
    let pods: Vec<Chosen> = run.gated.iter().map(|pod| chosen(pod)).collect();
    lift(run, pods, Some(wait), snapshot.now, history, decision);
    decision.tell(run, messages::nodes_wanted(&run.gated, wait));
}

/// Reserves the capacity that the pending pods of a run could get: the scheduler gives them the first new node, so
/// another run admitted onto it would not be bound.
pub fn reserve(capacity: &mut Capacity<'_>, run: &Standing<'_>, budget: &mut Budget) {
    let volumes = VolumePlaces {
        node: None,
        terms: Some(&run.run.volumes),
    };
    for pod in &run.unbound {
        let node = place(capacity, &[pod], volumes, budget).and_then(|nodes| nodes.into_iter().next());
        if let Some(node) = node {
            capacity.take(&node, &pod.requests);
        }
    }
}

#[cfg(test)]
mod tests;
