//! The pods of one run as admission counts them: bound, lifted, gated, missing. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    facts::{Candidate, Member, PodNeeds},
    messages,
    verdict::Verdict,
};
use crate::names::role;

/// The pods of one run that count: pods of its newest attempts that are not being deleted.
pub struct Standing<'a> {
    pub run: &'a Candidate,
    pub bound: Vec<&'a PodNeeds>,
    pub unbound: Vec<&'a PodNeeds>,
    pub gated: Vec<&'a PodNeeds>,
    /// Roles with too few pods.
    pub incomplete: Vec<&'static str>,
    pub priority: i32,
}

impl<'a> Standing<'a> {
    pub fn of(run: &'a Candidate, members: &[(&'a PodNeeds, &'a Member)]) -> Self {
        let newest = |role: &str| {
            members
                .iter()
                .filter(|(_, member)| member.role == role)
                .map(|(_, member)| member.attempt)
                .max()
        };
        // Each replica of an engine has its own attempts; for other roles only the newest attempt counts.
        let counts = |member: &Member| member.role == role::ENGINE || Some(member.attempt) == newest(&member.role);
        let counted: Vec<_> = members.iter().filter(|(_, member)| counts(member)).collect();
        let incomplete = run
            .whole
            .iter()
            .filter(|(role, wanted)| {
                let there = counted.iter().filter(|(_, member)| member.role == **role).count();
                there < **wanted as usize
            })
            .map(|(role, _)| *role)
            .collect();
        let of = |wanted: &dyn Fn(&PodNeeds, &Member) -> bool| -> Vec<&'a PodNeeds> {
            counted
                .iter()
                .filter(|(pod, member)| wanted(pod, member))
                .map(|(pod, _)| *pod)
                .collect()
        };
        Self {
            run,
            bound: of(&|pod, _| pod.node.is_some()),
            unbound: of(&|pod, member| pod.node.is_none() && !member.gated && member.other_gates.is_empty()),
            gated: of(&|pod, member| pod.node.is_none() && member.gated),
            incomplete,
            priority: counted.iter().map(|(_, member)| member.priority).max().unwrap_or(0),
        }
    }

    pub fn all(&self) -> impl Iterator<Item = &'a PodNeeds> + '_ {
        self.bound.iter().chain(&self.unbound).chain(&self.gated).copied()
    }

    /// Claims without a volume that lifted pods mount, while the scheduler waits until the volumes are made: it has
    /// chosen a node for the claim, or has not said that the pods fit nowhere. It does not take back what it said of a
    /// pod that fits later, so the claim decides.
    pub fn volumes_being_made(&self) -> BTreeSet<&'a str> {
        let members = self.unbound.iter().copied().filter_map(|pod| pod.member.as_deref());
        let claims = members.flat_map(|member| member.claims.iter().map(move |claim| (member, claim)));
        claims
            .filter(|(_, claim)| !self.run.volumes.contains_key(*claim))
            .filter(|(member, claim)| !member.unschedulable || self.run.provisioning.contains(*claim))
            .map(|(_, claim)| claim.as_str())
            .collect()
    }

    pub fn without_gates(&self) -> Verdict {
        if self.incomplete.is_empty() {
            messages::admitted()
        } else {
            messages::pods_missing(&self.incomplete)
        }
    }

    /// Whether the run works: driver and trainer are on nodes, and an engine if the run has its own engines. Then only
    /// further replicas may be waiting.
    pub fn works(&self) -> bool {
        let is = |pod: &PodNeeds, role: &str| pod.member.as_ref().is_some_and(|member| member.role == role);
        let waits = || self.unbound.iter().chain(&self.gated);
        let placed = |role: &str| {
            !self.incomplete.contains(&role)
                && self.bound.iter().any(|pod| is(pod, role))
                && !waits().any(|pod| is(pod, role))
        };
        let replica = |pod: &PodNeeds| pod.member.as_ref().map(|member| member.group);
        let serves = || {
            let mut engines = self.bound.iter().filter(|pod| is(pod, role::ENGINE));
            engines.any(|engine| !waits().any(|pod| is(pod, role::ENGINE) && replica(pod) == replica(engine)))
        };
        let mut roles = self.run.whole.iter().filter(|(_, pods)| **pods > 0);
        roles.all(|(role, _)| if *role == role::ENGINE { serves() } else { placed(role) })
    }

    /// Sets of gated pods that are useful only together: all ranks of the trainer, the nodes of one engine replica, the
    /// driver.
    pub fn sets(&self) -> Vec<Vec<&'a PodNeeds>> {
        let mut sets: BTreeMap<(u8, u32), Vec<&'a PodNeeds>> = BTreeMap::new();
        for pod in &self.gated {
            let Some(member) = pod.member.as_deref() else { continue };
            let key = match member.role.as_str() {
                role::TRAINER if self.incomplete.contains(&role::TRAINER) => continue,
                role::TRAINER => (0, 0),
                role::DRIVER => (1, 0),
                _ => (2, member.group),
            };
            sets.entry(key).or_default().push(pod);
        }
        sets.into_values().collect()
    }
}
