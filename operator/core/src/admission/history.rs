//! The state that admission keeps between decisions: lifted pods, requeued runs and their pauses, and how long a run
//! with some of its pods has waited for the rest.

use std::{collections::HashMap, time::Duration};

use jiff::{SignedDuration, Timestamp};

use super::{
    facts::{HOSTNAME, PodNeeds},
    messages,
    standing::Standing,
    step::{BIND_DEADLINE, Chosen, Decision, Snapshot, Step, VOLUME_DEADLINE},
    verdict::Verdict,
};
use crate::backoff::Backoff;

/// Back-off of a requeued run: first and longest pause.
const REQUEUED: Backoff = Backoff::new(Duration::from_secs(15), Duration::from_secs(600));

/// State between decisions; lost with the process, which only restarts deadlines.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub(super) lifted: HashMap<String, Lifted>,
    pub(super) requeued: HashMap<String, Requeued>,
    pub(super) waiting_since: HashMap<String, Timestamp>,
}

#[derive(Clone, Debug)]
pub(super) struct Lifted {
    pub at: Timestamp,
    /// Whether the run had no pod on a node before.
    pub first: bool,
    /// Pods not bound after this time are requeued.
    pub wait: SignedDuration,
    /// No node is planned for the pods: an autoscaler adds some.
    pub adds_nodes: bool,
    /// At the last decision a volume was being made for some of the pods.
    pub waits_for_volumes: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Requeued {
    pub not_before: Timestamp,
    times: u32,
    /// An autoscaler was given time to add nodes, and did not.
    no_nodes: bool,
}

impl Lifted {
    /// Lifted pods of an earlier operator process: if one has a planned node, all have.
    pub(super) fn found(run: &Standing<'_>, snapshot: &Snapshot<'_>) -> Self {
        let is_planned = |pod: &&PodNeeds| {
            let member = pod.member.as_ref();
            member.is_some_and(|member| member.selector.contains_key(HOSTNAME))
        };
        let unplanned = snapshot.nodes.is_some() && !run.unbound.iter().any(is_planned);
        let adds_nodes = snapshot.scale_up.filter(|_| unplanned);
        Self {
            at: snapshot.now,
            first: false,
            wait: adds_nodes.unwrap_or(BIND_DEADLINE),
            adds_nodes: adds_nodes.is_some(),
            waits_for_volumes: false,
        }
    }

    /// Follows whether a volume is being made for some of the pods; returns the deadline of the lift. Pods that need
    /// the same volume elsewhere are bound only after it was made: from then on they have the usual time.
    pub(super) fn deadline(&mut self, makes_volumes: bool, now: Timestamp) -> Timestamp {
        if self.waits_for_volumes && !makes_volumes {
            self.at = now;
        }
        self.waits_for_volumes = makes_volumes;
        let wait = match makes_volumes {
            true => self.wait.max(VOLUME_DEADLINE),
            false => self.wait,
        };
        self.at + wait
    }
}

impl Requeued {
    pub(super) fn in_words(&self, now: Timestamp) -> Verdict {
        messages::requeue(self.not_before, self.no_nodes, now)
    }
}

impl History {
    pub(super) fn pause(&self, run: &str, now: Timestamp) -> Option<&Requeued> {
        self.requeued.get(run).filter(|requeued| requeued.not_before > now)
    }

    pub(super) fn pauses(&self, run: &str, now: Timestamp) -> bool {
        self.pause(run, now).is_some()
    }

    /// Whether the run's pods were lifted while none was on a node.
    pub(super) fn has_just_begun(&self, run: &str) -> bool {
        self.lifted.get(run).is_some_and(|lifted| lifted.first)
    }

    /// Records a requeue; returns when the pause ends.
    pub(super) fn requeue(&mut self, run: &str, no_nodes: bool, now: Timestamp) -> Timestamp {
        self.lifted.remove(run);
        self.waiting_since.remove(run);
        let times = self.requeued.get(run).map_or(0, |known| known.times);
        let pause = REQUEUED.pause(times);
        let not_before = now + pause;
        let times = times.saturating_add(1);
        let requeued = Requeued {
            not_before,
            times,
            no_nodes,
        };
        self.requeued.insert(run.to_owned(), requeued);
        not_before
    }

    pub(super) fn forget_all_but(&mut self, runs: &[Standing<'_>]) {
        let known = |uid: &String| runs.iter().any(|run| run.run.uid == *uid);
        self.lifted.retain(|uid, _| known(uid));
        self.waiting_since.retain(|uid, _| known(uid));
        // Once all pods of a run are on nodes, an earlier failure to place it no longer matters.
        let whole = |uid: &String| {
            runs.iter().any(|run| {
                run.run.uid == *uid && run.incomplete.is_empty() && run.gated.is_empty() && run.unbound.is_empty()
            })
        };
        self.requeued.retain(|uid, _| known(uid) && !whole(uid));
    }
}

/// Lifts the gates of these pods of a run, and waits until they are bound. `adds_nodes`: how long, if nodes are added
/// for them.
pub(super) fn lift(
    run: &Standing<'_>,
    pods: Vec<Chosen>,
    adds_nodes: Option<SignedDuration>,
    now: Timestamp,
    history: &mut History,
    decision: &mut Decision,
) {
    let uid = &run.run.uid;
    let lifted = Lifted {
        at: now,
        first: run.bound.is_empty(),
        wait: adds_nodes.unwrap_or(BIND_DEADLINE),
        adds_nodes: adds_nodes.is_some(),
        waits_for_volumes: false,
    };
    decision.wake(now + lifted.wait);
    history.lifted.insert(uid.clone(), lifted);
    if adds_nodes.is_some() {
        // From here on the deadline of the lift applies.
        history.waiting_since.remove(uid);
    }
    decision.step = Some(Step::Lift { run: uid.clone(), pods });
}
