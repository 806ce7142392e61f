//! Decides which run's gates are lifted now, which pods are requeued, and the verdict on each run that waits. Pure.
//!
//! The rules, in order:
//! 1. While lifted pods are not bound, no other run is admitted, unless nodes are added for them, or a volume is made
//!    for them that takes long. Pods not bound by the deadline are requeued; a run that has just begun is requeued
//!    whole, so that it holds nothing.
//! 2. A run that has pods and waits for the rest (a failed rank, a new engine replica) comes before runs without pods,
//!    and blocks them: they would take what it waits for. If it has waited too long and one of them would fit in its
//!    place, it is requeued whole. A run that works and only waits for further replicas delays no other run, and is
//!    never requeued.
//! 3. Among the other runs, by priority and then by age: the first that fits whole. A run that does not fit delays no
//!    other run.
//! 4. If the cluster adds nodes for pods without one, and no run fits: the first that does not fit
//!    ([`super::scale_up`]).

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
};

use jiff::{SignedDuration, Timestamp};

use super::{
    facts::{Candidate, HOSTNAME, Member, PodNeeds},
    fit::{Budget, Capacity, VolumePlaces, place},
    history::{Lifted, lift},
    messages,
    scale_up::{ask_for_nodes, reserve},
    standing::Standing,
    step::chosen,
    verdict::Verdict,
};
pub use super::{
    history::History,
    step::{BIND_DEADLINE, Chosen, Decision, Snapshot, Step, VOLUME_DEADLINE},
};

/// A run with some of its pods may wait this long for the rest while other runs wait too.
pub const PATIENCE: SignedDuration = SignedDuration::from_secs(300);

/// Decides on all runs.
pub fn decide(snapshot: &Snapshot<'_>, history: &mut History) -> Decision {
    let mut members: HashMap<&str, Vec<(&PodNeeds, &Member)>> = HashMap::new();
    for pod in &snapshot.pods {
        if let Some(member) = pod.member.as_deref().filter(|member| !member.deleting) {
            members.entry(&member.run).or_default().push((pod, member));
        }
    }
    let mut budget = Budget::default();
    let mut standings: Vec<Standing<'_>> = snapshot
        .candidates
        .iter()
        .map(|run| {
            let named = members.get(run.uid.as_str()).into_iter().flatten();
            let own: Vec<_> = named.filter(|(pod, member)| run.has(pod, member)).copied().collect();
            Standing::of(run, &own)
        })
        .collect();
    standings.sort_by_key(|run| {
        (
            run.bound.is_empty(),
            Reverse(run.priority),
            run.run.created,
            run.run.uid.clone(),
        )
    });
    history.forget_all_but(&standings);
    let mut decision = Decision {
        step: None,
        verdicts: BTreeMap::new(),
        again_at: None,
    };
    let mut capacity = snapshot.nodes.map(|nodes| Capacity::free(nodes, &snapshot.pods));
    if binding(snapshot, &standings, history, &mut decision) {
        return decision;
    }
    let pending = || standings.iter().filter(|run| !run.unbound.is_empty());
    for run in pending() {
        capacity
            .iter_mut()
            .for_each(|capacity| reserve(capacity, run, &mut budget));
    }
    // A run that lost some pods also blocks other runs while nodes are added for it.
    let torn = pending().find(|run| !history.has_just_begun(&run.run.uid) && !run.works());
    let mut ahead: Option<&Candidate> = torn.map(|run| run.run);
    for run in standings.iter().filter(|run| run.unbound.is_empty()) {
        let verdict = if run.gated.is_empty() {
            history.waiting_since.remove(&run.run.uid);
            run.without_gates()
        } else if let Some(pause) = history.pause(&run.run.uid, snapshot.now) {
            decision.wake(pause.not_before);
            pause.in_words(snapshot.now)
        } else if let Some(ahead) = ahead {
            messages::behind(ahead)
        } else if run.bound.is_empty() {
            begin(run, capacity.as_ref(), snapshot, history, &mut decision, &mut budget)
        } else {
            let complete = complete_again(run, capacity.as_ref(), snapshot, history, &mut decision, &mut budget);
            if !complete.admitted && !run.works() {
                ahead = Some(run.run);
            }
            complete
        };
        decision.tell(run, verdict);
        if decision.step.is_some() {
            ahead = ahead.or(Some(run.run));
        }
    }
    impatience(
        snapshot,
        &standings,
        capacity.as_ref(),
        history,
        &mut decision,
        &mut budget,
    );
    ask_for_nodes(snapshot, &standings, ahead, history, &mut decision);
    decision
}

/// Handles lifted pods that are not bound yet. Returns true if no other decision may follow now. A run for which nodes
/// are added, or a slow volume is made, blocks no others here: what its pods need is reserved.
fn binding(
    snapshot: &Snapshot<'_>,
    standings: &[Standing<'_>],
    history: &mut History,
    decision: &mut Decision,
) -> bool {
    let unbound = |uid: &String| {
        standings
            .iter()
            .any(|run| run.run.uid == *uid && !run.unbound.is_empty())
    };
    history.lifted.retain(|uid, _| unbound(uid));
    let mut before_others = None;
    for run in standings.iter().filter(|run| !run.unbound.is_empty()) {
        let uid = run.run.uid.clone();
        let lifted = history
            .lifted
            .entry(uid)
            .or_insert_with(|| Lifted::found(run, snapshot));
        let volumes = run.volumes_being_made();
        let deadline = lifted.deadline(!volumes.is_empty(), snapshot.now);
        let (usual, wait, adds_nodes) = (lifted.at + BIND_DEADLINE, lifted.wait, lifted.adds_nodes);
        if snapshot.now >= deadline {
            // A run that held nothing before must not keep the half that was bound.
            let pods: Vec<&PodNeeds> = if lifted.first {
                run.all().collect()
            } else {
                run.unbound.clone()
            };
            if !adds_nodes {
                tell_behind(run, standings, decision);
            }
            take_back(run, pods, adds_nodes, snapshot.now, history, decision);
            return true;
        }
        if !adds_nodes && snapshot.now >= usual {
            decision.wake(deadline);
            decision.tell(run, messages::volumes_wanted(&volumes, &run.unbound, VOLUME_DEADLINE));
            if snapshot.nodes.is_none() {
                before_others = before_others.or(Some(run));
            }
            continue;
        }
        decision.wake(if adds_nodes { deadline } else { usual });
        if !adds_nodes {
            decision.tell(run, messages::being_bound(&run.unbound));
            before_others = before_others.or(Some(run));
            continue;
        }
        decision.tell(run, messages::nodes_wanted(&run.unbound, wait));
        if !run.gated.is_empty() && run.incomplete.is_empty() {
            // A pod that was created again, or whose gate could not be lifted: no node is added for a gated pod.
            let pods = run.gated.iter().map(|pod| chosen(pod)).collect();
            decision.step = Some(Step::Lift {
                run: run.run.uid.clone(),
                pods,
            });
            return true;
        }
    }
    if let Some(run) = before_others {
        tell_behind(run, standings, decision);
    }
    before_others.is_some()
}

/// Tells all waiting runs that another run's pods are still to be bound.
fn tell_behind(ahead: &Standing<'_>, standings: &[Standing<'_>], decision: &mut Decision) {
    for other in standings.iter().filter(|other| other.unbound.is_empty()) {
        let verdict = if other.gated.is_empty() {
            other.without_gates()
        } else {
            messages::behind(ahead.run)
        };
        decision.tell(other, verdict);
    }
}

/// A run without a pod on a node: all of it, or nothing.
fn begin(
    run: &Standing<'_>,
    capacity: Option<&Capacity<'_>>,
    snapshot: &Snapshot<'_>,
    history: &mut History,
    decision: &mut Decision,
    budget: &mut Budget,
) -> Verdict {
    if !run.incomplete.is_empty() {
        return messages::pods_missing(&run.incomplete);
    }
    let Some(places) = places(run, &run.gated, capacity, budget) else {
        // Without known nodes everything fits, so `capacity` is set here.
        return messages::does_not_fit(
            &run.gated,
            &run.run.volumes,
            capacity,
            snapshot.nodes.unwrap_or_default(),
            budget,
        );
    };
    if run.run.unclaimed {
        return messages::claims_pool();
    }
    lift(run, places, None, snapshot.now, history, decision);
    messages::admitted()
}

/// A run that lost some of its pods, or gets more engines: lifts each set of pods that belong together, if it fits.
fn complete_again(
    run: &Standing<'_>,
    capacity: Option<&Capacity<'_>>,
    snapshot: &Snapshot<'_>,
    history: &mut History,
    decision: &mut Decision,
    budget: &mut Budget,
) -> Verdict {
    let mut capacity = capacity.cloned();
    let mut lifted = Vec::new();
    let mut left: Vec<&PodNeeds> = Vec::new();
    for set in run.sets() {
        match places(run, &set, capacity.as_ref(), budget) {
            Some(places) => {
                if let Some(capacity) = &mut capacity {
                    for (pod, place) in set.iter().zip(&places) {
                        if let Some(node) = &place.node {
                            capacity.take(node, &pod.requests);
                        }
                    }
                }
                lifted.extend(places);
            }
            None => left.extend(set),
        }
    }
    if !lifted.is_empty() {
        lift(run, lifted, None, snapshot.now, history, decision);
    }
    if left.is_empty() {
        history.waiting_since.remove(&run.run.uid);
        return messages::admitted();
    }
    if run.works() {
        history.waiting_since.remove(&run.run.uid);
    } else {
        history.waiting_since.entry(run.run.uid.clone()).or_insert(snapshot.now);
    }
    messages::does_not_fit(
        &left,
        &run.run.volumes,
        capacity.as_ref(),
        snapshot.nodes.unwrap_or_default(),
        budget,
    )
}

/// Requeues a run that holds some pods, cannot get the rest, and has delayed others for too long, if one of them fits
/// in its place.
fn impatience(
    snapshot: &Snapshot<'_>,
    standings: &[Standing<'_>],
    capacity: Option<&Capacity<'_>>,
    history: &mut History,
    decision: &mut Decision,
    budget: &mut Budget,
) {
    if decision.step.is_some() {
        return;
    }
    let waiting: Vec<&Standing<'_>> = standings
        .iter()
        .filter(|run| run.bound.is_empty() && !run.gated.is_empty() && run.incomplete.is_empty())
        .collect();
    let torn = |run: &&Standing<'_>| !run.bound.is_empty() && run.unbound.is_empty() && !run.works();
    for run in standings.iter().filter(torn) {
        let uid = &run.run.uid;
        let Some(since) = history.waiting_since.get(uid).copied().filter(|_| !waiting.is_empty()) else {
            continue;
        };
        if snapshot.now < since + PATIENCE {
            decision.wake(since + PATIENCE);
            continue;
        }
        let without = capacity.map(|capacity| capacity.without(&run.bound));
        let mut others = waiting.iter();
        if others.any(|other| places(other, &other.gated, without.as_ref(), budget).is_some()) {
            take_back(run, run.all().collect(), false, snapshot.now, history, decision);
            return;
        }
    }
}

/// Requeues these pods of a run; the run then pauses.
fn take_back(
    run: &Standing<'_>,
    pods: Vec<&PodNeeds>,
    no_nodes: bool,
    now: Timestamp,
    history: &mut History,
    decision: &mut Decision,
) {
    let uid = &run.run.uid;
    decision.step = Some(Step::Requeue {
        run: uid.clone(),
        pods: pods.into_iter().map(chosen).collect(),
    });
    let until = history.requeue(uid, no_nodes, now);
    decision.wake(until);
    decision.tell(run, messages::requeue(until, no_nodes, now));
}

/// The places of these pods of a run, if all of them fit.
fn places(
    run: &Standing<'_>,
    pods: &[&PodNeeds],
    capacity: Option<&Capacity<'_>>,
    budget: &mut Budget,
) -> Option<Vec<Chosen>> {
    let Some(capacity) = capacity else {
        return Some(pods.iter().map(|pod| chosen(pod)).collect());
    };
    // Pods that share a volume join the node of those already bound.
    let with_store = run
        .bound
        .iter()
        .find(|pod| pod.member.as_ref().is_some_and(|member| member.together))
        .and_then(|pod| pod.node.as_deref());
    let volumes = VolumePlaces {
        node: with_store,
        terms: Some(&run.run.volumes),
    };
    let nodes = place(capacity, pods, volumes, budget)?;
    let host = |node: &str| {
        let (facts, _) = capacity.nodes.iter().find(|(facts, _)| facts.name == node)?;
        facts.labels.get(HOSTNAME).cloned()
    };
    // The scheduler spreads pods, this code packs them: without the pin, two small pods could take half of two nodes
    // each, and a large pod needs one of these nodes.
    let pinned = |pod: &PodNeeds| pod.member.as_ref().is_some_and(|member| !member.beyond_us);
    Some(
        pods.iter()
            .zip(nodes)
            .map(|(pod, node)| Chosen {
                host: host(&node).filter(|_| pinned(pod)),
                node: Some(node.to_string()),
                ..chosen(pod)
            })
            .collect(),
    )
}
