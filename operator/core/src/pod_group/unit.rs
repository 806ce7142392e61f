//! The pods of one attempt of one group.

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};

use super::group::missing;
use crate::{
    names::PodKey,
    pods::{PodFacts, PodState},
};

/// A pod that still exists this long after its deletion deadline is on a lost node.
pub(super) const LOST_AFTER: SignedDuration = SignedDuration::from_secs(60);

/// The pods of one attempt of one group.
#[derive(Clone, Debug)]
pub(super) struct Unit<'a> {
    pub(super) group: u32,
    pub(super) attempt: u32,
    pub(super) pods: Vec<&'a PodFacts>,
}

impl Unit<'_> {
    /// Whether the group is being removed. Of a group that drains, the first pod goes first.
    pub(super) fn is_ending(&self) -> bool {
        self.pods.iter().any(|pod| pod.deleting) || self.first().is_none()
    }

    fn first(&self) -> Option<&PodFacts> {
        self.pods.iter().copied().find(|pod| pod.rank == 0)
    }

    /// Whether the first pod finishes its requests, for which it needs the group's other pods. On a node that does not
    /// answer it finishes nothing, and the others hold their devices for nothing.
    pub(super) fn drains(&self, now: Timestamp) -> bool {
        let works = |pod: &PodFacts| !pod.deleting && !pod.is_finished();
        let answers = |pod: &PodFacts| !pod.node_silent && !is_lost(pod, now);
        let runs = |pod: &PodFacts| matches!(pod.state, PodState::Running { .. }) && answers(pod);
        self.pods.iter().all(|pod| pod.rank == 0 || works(pod))
            && self.first().is_some_and(|first| first.deleting && runs(first))
    }

    /// Names of the pods to delete now, of a group that is removed: the first pod of a group that serves, and the
    /// others when it is gone.
    pub(super) fn to_delete(&self, now: Timestamp) -> Vec<String> {
        if self.drains(now) {
            return Vec::new();
        }
        let works = |pod: &PodFacts| !pod.deleting && !pod.is_finished();
        match self.first() {
            Some(first) if first.is_ready() && self.pods.iter().all(|pod| works(pod)) => vec![first.name.clone()],
            _ => self.undeleted().collect(),
        }
    }

    /// Whether all of its pods are on lost nodes, so that it holds nothing.
    pub(super) fn is_lost(&self, now: Timestamp) -> bool {
        self.pods.iter().all(|pod| is_lost(pod, now))
    }

    pub(super) fn is_made_from(&self, template: &str) -> bool {
        self.pods.iter().all(|pod| pod.template.as_deref() == Some(template))
    }

    /// The first pod decides for its group: a replica's agent is in it.
    pub(super) fn is_ready(&self) -> bool {
        self.pods.iter().any(|pod| pod.rank == 0 && pod.is_ready())
    }

    /// Names of pods that are not being deleted yet.
    pub(super) fn undeleted(&self) -> impl Iterator<Item = String> {
        self.pods.iter().filter(|pod| !pod.deleting).map(|pod| pod.name.clone())
    }

    pub(super) fn missing(&self, size: u32) -> impl Iterator<Item = PodKey> {
        let (group, attempt) = (self.group, self.attempt);
        missing(size, &self.pods)
            .into_iter()
            .map(move |rank| PodKey { group, attempt, rank })
    }
}

/// Whether a pod is on a lost node, so that it holds nothing.
fn is_lost(pod: &PodFacts, now: Timestamp) -> bool {
    pod.deleting && pod.gone_by.is_some_and(|by| now >= by + LOST_AFTER)
}

/// Whether processes of the pod may use devices. No node takes a pod that is being deleted.
pub fn may_use_devices(pod: &PodFacts, now: Timestamp) -> bool {
    let never_starts = pod.deleting && pod.node_name.is_none();
    !(pod.is_finished() || never_starts || is_lost(pod, now))
}

/// The time until the first of these pods counts as lost, if they are being deleted.
pub fn until_lost<'a>(pods: impl Iterator<Item = &'a PodFacts>, now: Timestamp) -> Option<Duration> {
    pods.filter_map(|pod| pod.gone_by)
        .filter_map(|by| Duration::try_from((by + LOST_AFTER).duration_since(now)).ok())
        .filter(|left| !left.is_zero())
        .min()
}

/// Which pod uses the devices that another one is to have, and what to do if it does not end.
pub fn devices_in_use(pod: &PodFacts) -> String {
    let node = pod.node_name.as_ref();
    let on = node.map(|node| format!(" on node {node}")).unwrap_or_default();
    format!(
        "pod {}{on} may still use the same devices, and is waited for until it has ended, or its node counts as lost; \
         `kubectl describe pod {0}` tells why it does not end",
        pod.name
    )
}

/// The units of these pods, by group and attempt.
pub(super) fn units(pods: &[PodFacts]) -> Vec<Unit<'_>> {
    let mut units: BTreeMap<(u32, u32), Vec<&PodFacts>> = BTreeMap::new();
    for pod in pods {
        units.entry((pod.group, pod.attempt)).or_default().push(pod);
    }
    units
        .into_iter()
        .map(|((group, attempt), pods)| Unit { group, attempt, pods })
        .collect()
}

/// Number of groups that exist, and of those that serve. `size`: pods in each group.
pub fn counts(pods: &[PodFacts], size: u32) -> (u32, u32) {
    let units = units(pods);
    let staying = || units.iter().filter(|unit| !unit.is_ending());
    let is_whole =
        |unit: &Unit<'_>| missing(size, &unit.pods).is_empty() && !unit.pods.iter().any(|pod| pod.is_finished());
    let ready = staying().filter(|unit| is_whole(unit) && unit.is_ready());
    (count(staying().count()), count(ready.count()))
}

/// Names of pods whose group has no pod on a node.
pub fn unbound(pods: &[PodFacts]) -> Vec<String> {
    let mut units = units(pods);
    units.retain(|unit| unit.pods.iter().all(|pod| pod.node_name.is_none()));
    units.iter().flat_map(Unit::undeleted).collect()
}

pub(super) fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
