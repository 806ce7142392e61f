//! Which replicas come and which go. Pure, and about counts only: what a replica's pods look like is decided elsewhere.
//!
//! A replica that is broken (a pod of it ended, or is missing) goes whole and at once. Others go so that at least
//! `replicas - maxUnavailable` ready ones stay; new ones come so that at most `replicas + maxSurge` exist, those that
//! still end included, because they still hold their devices. A pod that should have ended long ago is on a lost node
//! and holds nothing.

use std::collections::{BTreeMap, BTreeSet};

use grpo_crds::inference_pool::{Failures, UpdatePolicy};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::{
    backoff::FAILED_PODS,
    pods::{PodFacts, PodState},
    quota::QuotaWait,
};

/// A pod that is still there so long after it should have been gone is on a lost node.
const LOST_AFTER: SignedDuration = SignedDuration::from_secs(60);

/// What is wanted of a pool.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    pub replicas: u32,
    /// Pods of each.
    pub nodes: u32,
    /// What they are to be made from.
    pub template: &'a str,
    pub update: &'a UpdatePolicy,
}

/// What is to be done.
#[derive(Debug, Default, PartialEq)]
pub struct ReplicaUpdate {
    /// Numbers of the replicas to make.
    pub create: Vec<u32>,
    /// Names of the pods to delete.
    pub delete: Vec<String>,
    pub failures: Option<Failures>,
    /// Nothing happens before then by itself, but something is to be done.
    pub again_at: Option<Timestamp>,
    /// Replicas made from an earlier spec.
    pub outdated: u32,
}

/// The pods of one number.
#[derive(Debug)]
struct Replica<'a> {
    number: u32,
    pods: Vec<&'a PodFacts>,
}

impl Replica<'_> {
    fn is_ending(&self) -> bool {
        self.pods.iter().any(|pod| pod.deleting)
    }

    fn is_lost(&self, now: Timestamp) -> bool {
        let lost = |pod: &&PodFacts| pod.deleting && pod.gone_by.is_some_and(|by| now >= by + LOST_AFTER);
        self.pods.iter().all(lost)
    }

    /// It cannot go on: one of its pods ended, or is not there any more.
    fn is_broken(&self, nodes: u32) -> bool {
        self.pods.iter().any(|pod| pod.is_finished())
            || (0..nodes).any(|node| !self.pods.iter().any(|pod| pod.node == node))
    }

    fn failed_by_itself(&self) -> bool {
        self.pods
            .iter()
            .any(|pod| matches!(&pod.state, PodState::Failed(failure) if !failure.disrupted))
            && !self
                .pods
                .iter()
                .any(|pod| matches!(&pod.state, PodState::Failed(failure) if failure.disrupted))
    }

    fn is_made_from(&self, template: &str) -> bool {
        self.pods.iter().all(|pod| pod.template.as_deref() == Some(template))
    }

    /// Ready is what its agent says, and the agent is in the first pod.
    fn is_ready(&self) -> bool {
        self.pods.iter().any(|pod| pod.node == 0 && pod.is_ready())
    }

    fn names(&self) -> impl Iterator<Item = String> {
        self.pods.iter().filter(|pod| !pod.deleting).map(|pod| pod.name.clone())
    }
}

pub fn update_replicas(
    wanted: &Wanted<'_>,
    pods: &[PodFacts],
    failures: Option<&Failures>,
    now: Timestamp,
) -> ReplicaUpdate {
    let replicas = replicas(pods);
    let mut update = ReplicaUpdate {
        failures: failures.cloned(),
        ..ReplicaUpdate::default()
    };
    let exist = replicas.iter().filter(|replica| !replica.is_lost(now)).count();
    let (ending, staying): (Vec<_>, Vec<_>) = replicas.iter().partition(|replica| replica.is_ending());
    // The others of a replica whose pod is being deleted go too.
    update.delete.extend(ending.iter().flat_map(|replica| replica.names()));
    let (broken, sound): (Vec<_>, Vec<_>) = staying.into_iter().partition(|replica| replica.is_broken(wanted.nodes));
    for replica in &broken {
        update.delete.extend(replica.names());
    }
    if broken.iter().any(|replica| replica.failed_by_itself()) {
        update.failures = Some(Failures {
            consecutive: failures.map_or(0, |failures| failures.consecutive).saturating_add(1),
            last: Time(now),
        });
    }
    let (current, outdated): (Vec<_>, Vec<_>) = sound
        .into_iter()
        .partition(|replica| replica.is_made_from(wanted.template));
    update.outdated = count(outdated.len());
    let ready = count(
        current
            .iter()
            .chain(&outdated)
            .filter(|replica| replica.is_ready())
            .count(),
    );
    let all_ready = count(current.iter().filter(|replica| replica.is_ready()).count()) >= wanted.replicas;
    if all_ready && broken.is_empty() {
        update.failures = None;
    }

    let mut spare = ready.saturating_sub(wanted.replicas.saturating_sub(wanted.update.max_unavailable));
    for replica in outdated.iter().filter(|replica| !replica.is_ready()) {
        update.delete.extend(replica.names());
    }
    for replica in outdated.iter().filter(|replica| replica.is_ready()) {
        if spare > 0 {
            spare -= 1;
            update.delete.extend(replica.names());
        }
    }
    // Of those nobody wants any more, the ones that do not serve go first, then those that came last.
    let mut surplus: Vec<_> = current.iter().collect();
    surplus.sort_by_key(|replica| (replica.is_ready(), std::cmp::Reverse(replica.number)));
    let too_many = current.len().saturating_sub(wanted.replicas as usize);
    for replica in surplus.into_iter().take(too_many) {
        update.delete.extend(replica.names());
    }

    let missing = wanted.replicas.saturating_sub(count(current.len()));
    let capacity = (wanted.replicas + wanted.update.max_surge).saturating_sub(count(exist));
    if let Some(resume) = update
        .failures
        .as_ref()
        .map(resume_at)
        .filter(|resume| *resume > now && missing > 0)
    {
        update.again_at = Some(resume);
    } else {
        let taken: BTreeSet<u32> = replicas.iter().map(|replica| replica.number).collect();
        update.create = (0..)
            .filter(|number| !taken.contains(number))
            .take(missing.min(capacity) as usize)
            .collect();
        if missing > capacity {
            // Somebody has to look when a pod that never ends counts as lost.
            update.again_at = ending
                .iter()
                .flat_map(|replica| replica.pods.iter().filter_map(|pod| pod.gone_by))
                .map(|by| by + LOST_AFTER)
                .filter(|at| *at > now)
                .min();
        }
    }
    update
}

impl ReplicaUpdate {
    /// The same while a ResourceQuota is short: nothing is made. A refused pool gives back the replicas that are not on
    /// nodes, so that others can use the quota.
    pub fn held_back(mut self, wait: Option<&QuotaWait>, pods: &[PodFacts]) -> Self {
        let Some(wait) = wait else { return self };
        self.create.clear();
        self.again_at = Some(self.again_at.map_or(wait.until, |at| at.min(wait.until)));
        if wait.refused {
            self.delete.extend(unbound(pods));
            self.delete.sort_unstable();
            self.delete.dedup();
        }
        self
    }
}

/// Names of the pods of replicas of which no pod is on a node.
pub fn unbound(pods: &[PodFacts]) -> Vec<String> {
    let mut replicas = replicas(pods);
    replicas.retain(|replica| replica.pods.iter().all(|pod| pod.node_name.is_none()));
    replicas.iter().flat_map(Replica::names).collect()
}

/// Replicas that exist, and those of them that serve.
pub fn counts(pods: &[PodFacts], nodes: u32) -> (u32, u32) {
    let replicas = replicas(pods);
    let staying = || replicas.iter().filter(|replica| !replica.is_ending());
    let ready = staying().filter(|replica| !replica.is_broken(nodes) && replica.is_ready());
    (count(staying().count()), count(ready.count()))
}

fn replicas(pods: &[PodFacts]) -> Vec<Replica<'_>> {
    let mut numbers: BTreeMap<u32, Vec<&PodFacts>> = BTreeMap::new();
    for pod in pods {
        numbers.entry(pod.rank).or_default().push(pod);
    }
    numbers
        .into_iter()
        .map(|(number, pods)| Replica { number, pods })
        .collect()
}

/// When the next replica is made after failures in a row.
fn resume_at(failures: &Failures) -> Timestamp {
    let pause = FAILED_PODS.pause(failures.consecutive.saturating_sub(1));
    failures.last.0.saturating_add(pause).unwrap_or(Timestamp::MAX)
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
