//! Which run's gates are lifted now, which pods go back behind them, and what each run that waits is told. Pure.
//!
//! The rules, in the order in which they are asked:
//! 1. While lifted pods are not bound, no other run is admitted. Pods that are not bound by the deadline go back, and a
//!    run that has just begun goes back whole, so that it holds nothing.
//! 2. A run that already has pods and waits for the rest (a failed rank, a new engine replica) comes before runs that
//!    have none, and none of those are admitted meanwhile: they would take what it waits for. If it has waited too long
//!    and one of them would fit in its place, it goes back whole. A run that does its work and waits for further
//!    replicas only delays no other run, and never goes back.
//! 3. Of the others, by priority and then by age, the first that fits as a whole. A run that does not fit delays no
//!    other run.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};

use super::{
    facts::{Candidate, HOSTNAME, Member, NodeFacts, PodNeeds},
    fit::{Budget, Capacity, StorePlace, place},
    messages,
    standing::Standing,
    verdict::Verdict,
};
use crate::backoff::Backoff;

/// Lifted pods are bound after this long, or go back.
pub const BIND_DEADLINE: SignedDuration = SignedDuration::from_secs(30);
/// A run with some of its pods may wait so long for the others while other runs wait too.
pub const PATIENCE: SignedDuration = SignedDuration::from_secs(300);
/// A run that went back waits so long before it is tried again, doubled each time up to the longest.
const REQUEUED: Backoff = Backoff::new(Duration::from_secs(15), Duration::from_secs(600));

/// Everything a decision is made from.
#[derive(Clone, Debug)]
pub struct Snapshot<'a> {
    /// None: the operator may not look at nodes. Then everything fits until the scheduler shows otherwise.
    pub nodes: Option<&'a [NodeFacts]>,
    pub pods: Vec<&'a PodNeeds>,
    pub candidates: Vec<&'a Candidate>,
    pub now: Timestamp,
}

/// What is remembered from one decision to the next; lost with the process, which only starts deadlines anew.
#[derive(Clone, Debug, Default)]
pub struct History {
    lifted: HashMap<String, Lifted>,
    requeued: HashMap<String, Requeued>,
    waiting_since: HashMap<String, Timestamp>,
}

#[derive(Clone, Debug)]
struct Lifted {
    at: Timestamp,
    /// The run had no pod before.
    first: bool,
}

#[derive(Clone, Debug)]
struct Requeued {
    not_before: Timestamp,
    times: u32,
}

/// A pod to be let go or taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// The node that is planned for it.
    pub node: Option<String>,
    /// Its hostname, when the scheduler is bound to it.
    pub host: Option<String>,
    pub other_gates: Vec<String>,
}

/// What is done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Lift { run: String, pods: Vec<Chosen> },
    Requeue { run: String, pods: Vec<Chosen> },
}

#[derive(Debug)]
pub struct Decision {
    pub step: Option<Step>,
    pub verdicts: BTreeMap<String, Verdict>,
    /// Something is due then even if nothing happens.
    pub again_at: Option<Timestamp>,
}

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
    let capacity = snapshot.nodes.map(|nodes| Capacity::free(nodes, &snapshot.pods));
    if binding(snapshot, &standings, history, &mut decision) {
        return decision;
    }
    let mut ahead: Option<&Candidate> = None;
    for run in &standings {
        let verdict = if run.gated.is_empty() {
            history.waiting_since.remove(&run.run.uid);
            run.without_gates()
        } else if let Some(pause) = history.pause(&run.run.uid, snapshot.now) {
            decision.wake(pause);
            messages::requeue(pause, snapshot.now)
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
    decision
}

/// Lifted pods that are not bound yet. True: nothing else is decided before they are.
fn binding(
    snapshot: &Snapshot<'_>,
    standings: &[Standing<'_>],
    history: &mut History,
    decision: &mut Decision,
) -> bool {
    let Some(run) = standings.iter().find(|run| !run.unbound.is_empty()) else {
        history.lifted.clear();
        return false;
    };
    let uid = &run.run.uid;
    let lifted = history.lifted.entry(uid.clone()).or_insert(Lifted {
        at: snapshot.now,
        first: false,
    });
    let deadline = lifted.at + BIND_DEADLINE;
    for other in standings.iter().filter(|other| other.run.uid != *uid) {
        let verdict = if other.gated.is_empty() {
            other.without_gates()
        } else {
            messages::behind(run.run)
        };
        decision.tell(other, verdict);
    }
    if snapshot.now < deadline {
        decision.wake(deadline);
        decision.tell(run, messages::being_bound(&run.unbound));
        return true;
    }
    // A run that had nothing before must not keep the half that found a place.
    let pods: Vec<&PodNeeds> = if lifted.first {
        run.all().collect()
    } else {
        run.unbound.clone()
    };
    take_back(run, pods, snapshot.now, history, decision);
    true
}

/// A run without any pod on a node: all of it, or nothing.
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
        // Without nodes to look at everything fits, so there is capacity here.
        return messages::does_not_fit(
            &run.gated,
            &run.run.store_terms,
            capacity,
            snapshot.nodes.unwrap_or_default(),
            budget,
        );
    };
    if run.run.unclaimed {
        return messages::claims_pool();
    }
    lift(run, places, snapshot.now, history, decision);
    messages::admitted()
}

/// A run that lost some of its pods, or gets more engines: each set of pods that belong together, as far as there is
/// capacity.
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
        lift(run, lifted, snapshot.now, history, decision);
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
        &run.run.store_terms,
        capacity.as_ref(),
        snapshot.nodes.unwrap_or_default(),
        budget,
    )
}

/// A run that holds a part and cannot get the rest goes back when it has kept others waiting for too long and one of
/// them fits without it.
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
    for run in standings.iter().filter(|run| !run.bound.is_empty() && !run.works()) {
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
            take_back(run, run.all().collect(), snapshot.now, history, decision);
            return;
        }
    }
}

/// Lets these pods of a run go, and waits for them to be bound.
fn lift(run: &Standing<'_>, pods: Vec<Chosen>, now: Timestamp, history: &mut History, decision: &mut Decision) {
    let uid = &run.run.uid;
    let first = run.bound.is_empty();
    history.lifted.insert(uid.clone(), Lifted { at: now, first });
    decision.wake(now + BIND_DEADLINE);
    decision.step = Some(Step::Lift { run: uid.clone(), pods });
}

/// Takes these pods of a run back behind the gate, and lets it pause.
fn take_back(run: &Standing<'_>, pods: Vec<&PodNeeds>, now: Timestamp, history: &mut History, decision: &mut Decision) {
    let uid = &run.run.uid;
    decision.step = Some(Step::Requeue {
        run: uid.clone(),
        pods: pods.into_iter().map(chosen).collect(),
    });
    let until = history.requeue(uid, now);
    decision.wake(until);
    decision.tell(run, messages::requeue(until, now));
}

/// Where these pods of a run go, if all of them fit.
fn places(
    run: &Standing<'_>,
    pods: &[&PodNeeds],
    capacity: Option<&Capacity<'_>>,
    budget: &mut Budget,
) -> Option<Vec<Chosen>> {
    let Some(capacity) = capacity else {
        return Some(pods.iter().map(|pod| chosen(pod)).collect());
    };
    // Pods that share a volume go where the others already are.
    let with_store = run
        .bound
        .iter()
        .find(|pod| pod.member.as_ref().is_some_and(|member| member.together))
        .and_then(|pod| pod.node.as_deref());
    let store = StorePlace {
        node: with_store,
        terms: &run.run.store_terms,
    };
    let nodes = place(capacity, pods, store, budget)?;
    let host = |node: &str| {
        let (facts, _) = capacity.nodes.iter().find(|(facts, _)| facts.name == node)?;
        facts.labels.get(HOSTNAME).cloned()
    };
    // The scheduler spreads where this packs: without the pin, two small pods could take the halves of two nodes that a
    // large one needs.
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

fn chosen(pod: &PodNeeds) -> Chosen {
    Chosen {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.to_string(),
        node: None,
        host: None,
        other_gates: pod
            .member
            .as_ref()
            .map(|member| member.other_gates.clone())
            .unwrap_or_default(),
    }
}

impl Decision {
    /// What a run is told. One that does its work stays admitted while further replicas wait.
    fn tell(&mut self, run: &Standing<'_>, verdict: Verdict) {
        let verdict = match !verdict.admitted && run.works() {
            true => messages::works_while(&verdict),
            false => verdict,
        };
        self.verdicts.insert(run.run.uid.clone(), verdict);
    }

    fn wake(&mut self, at: Timestamp) {
        self.again_at = Some(self.again_at.map_or(at, |known| known.min(at)));
    }
}

impl History {
    fn pause(&self, run: &str, now: Timestamp) -> Option<Timestamp> {
        let until = self.requeued.get(run)?.not_before;
        (until > now).then_some(until)
    }

    /// The run went back; until when it pauses.
    fn requeue(&mut self, run: &str, now: Timestamp) -> Timestamp {
        self.lifted.remove(run);
        self.waiting_since.remove(run);
        let times = self.requeued.get(run).map_or(0, |known| known.times);
        let pause = REQUEUED.pause(times);
        let not_before = now + pause;
        let times = times.saturating_add(1);
        self.requeued.insert(run.to_owned(), Requeued { not_before, times });
        not_before
    }

    fn forget_all_but(&mut self, runs: &[Standing<'_>]) {
        let known = |uid: &String| runs.iter().any(|run| run.run.uid == *uid);
        self.lifted.retain(|uid, _| known(uid));
        self.waiting_since.retain(|uid, _| known(uid));
        // Once a run has all of its pods on nodes, an earlier failure to place it says nothing any more.
        let whole = |uid: &String| {
            runs.iter().any(|run| {
                run.run.uid == *uid && run.incomplete.is_empty() && run.gated.is_empty() && run.unbound.is_empty()
            })
        };
        self.requeued.retain(|uid, _| known(uid) && !whole(uid));
    }
}
