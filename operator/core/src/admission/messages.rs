//! Messages for waiting runs: what is missing, how much, where, and what to do about it.

use std::collections::{BTreeMap, BTreeSet};

use grpo_contracts::reason::Reason;
use jiff::{SignedDuration, Timestamp};

use super::{
    facts::{Candidate, NodeFacts, PodNeeds, VolumeTerms},
    fit::{Budget, Capacity, GPU, VolumePlaces, place},
    verdict::Verdict,
};
use crate::quantity::in_words;

/// Maximum number of nodes named in a message.
const NODES_NAMED: usize = 6;

fn waits(reason: Reason, message: String) -> Verdict {
    Verdict {
        admitted: false,
        reason,
        message,
    }
}

/// The reason of a run that waits for nothing in admission.
pub const ADMITTED: Reason = Reason::Admitted;

pub fn admitted() -> Verdict {
    Verdict {
        admitted: true,
        reason: ADMITTED,
        message: "all of it fits; its pods may be scheduled".to_owned(),
    }
}

/// The reason of a run that fits, and must take the claim on its pool before it begins.
pub const CLAIMS_POOL: Reason = Reason::ClaimsPool;

pub fn claims_pool() -> Verdict {
    waits(
        CLAIMS_POOL,
        "all of it fits; it takes the claim on its InferencePool before its pods are scheduled".to_owned(),
    )
}

/// For a run that works: why further replicas of its engines wait.
pub fn works_while(replicas: &Verdict) -> Verdict {
    Verdict {
        admitted: true,
        reason: Reason::ReplicasWait,
        message: format!(
            "the run works; further engine replicas wait ({}): {}",
            replicas.reason, replicas.message
        ),
    }
}

pub fn behind(other: &Candidate) -> Verdict {
    waits(
        Reason::BehindAnotherRun,
        format!(
            "GrpoRun {}/{} comes first and is being placed; runs are admitted one at a time. To go before it, give this run a higher priorityClassName",
            other.namespace, other.name
        ),
    )
}

pub fn pods_missing(roles: &[&str]) -> Verdict {
    waits(
        Reason::WaitsForPods,
        format!("not all of its pods are made yet: {} missing", roles.join(" and ")),
    )
}

pub fn being_bound(unbound: &[&PodNeeds]) -> Verdict {
    Verdict {
        admitted: true,
        reason: Reason::BeingScheduled,
        message: format!(
            "its pods were admitted; the scheduler has not bound {} of them yet ({})",
            unbound.len(),
            first_names(unbound)
        ),
    }
}

/// For a run whose pods wait for volumes that are made for them, at most this long.
pub fn volumes_wanted(claims: &BTreeSet<&str>, unbound: &[&PodNeeds], wait: SignedDuration) -> Verdict {
    let claims: Vec<&str> = claims.iter().copied().collect();
    let plural = if claims.len() == 1 { "" } else { "s" };
    Verdict {
        admitted: true,
        reason: Reason::BeingScheduled,
        message: format!(
            "its pods were admitted; {} of them ({}) wait for the volume of PersistentVolumeClaim{plural} {}. Pods without a node after {} min are deleted \
             and tried again later. `kubectl describe pvc {}` shows what the provisioner does",
            unbound.len(),
            first_names(unbound),
            claims.join(", "),
            wait.as_mins(),
            claims.join(" ")
        ),
    }
}

fn first_names(pods: &[&PodNeeds]) -> String {
    let names: Vec<&str> = pods.iter().take(4).map(|pod| pod.name.as_str()).collect();
    names.join(", ")
}

/// For a run that does not fit on the present nodes, while an autoscaler may add some.
pub fn nodes_wanted(unbound: &[&PodNeeds], wait: SignedDuration) -> Verdict {
    Verdict {
        admitted: true,
        reason: Reason::WaitsForNodes,
        message: format!(
            "no present nodes hold it; {} of its pods are pending, so that the cluster's autoscaler adds nodes: {}. Pods without a node after {} min are \
             deleted and tried again later. `kubectl get events` shows what the autoscaler does",
            unbound.len(),
            wants(unbound),
            wait.as_mins().max(1)
        ),
    }
}

/// For a run requeued until this time. `no_nodes`: an autoscaler was given time to add nodes.
pub fn requeue(until: Timestamp, no_nodes: bool, now: Timestamp) -> Verdict {
    let seconds = until.duration_since(now).as_secs().max(0) + 1;
    let (why, see) = match no_nodes {
        true => (
            "nodes for all of its pods did not come in time",
            "what the autoscaler missed: a limit of the node pool, a quota of the provider, or a selector that no node pool has",
        ),
        false => (
            "the scheduler did not place all of its pods",
            "what the scheduler missed: volumes, affinities or ports that admission does not look at",
        ),
    };
    waits(
        Reason::Requeued,
        format!(
            "{why}, so they were taken back and hold nothing; the next try is in {seconds} s. `kubectl get events` shows {see}"
        ),
    )
}

/// The reason of a run that would not fit even on empty nodes.
pub const NEVER_FITS: Reason = Reason::NeverFits;

/// Why these pods of a run do not fit.
pub fn does_not_fit(
    pods: &[&PodNeeds],
    volumes: &VolumeTerms,
    capacity: Option<&Capacity<'_>>,
    nodes: &[NodeFacts],
    budget: &mut Budget,
) -> Verdict {
    let wants = wants(pods);
    let Some(capacity) = capacity else {
        return waits(Reason::WaitsForCapacity, format!("waits for {wants}"));
    };
    let places = VolumePlaces {
        node: None,
        terms: Some(volumes),
    };
    let ever = place(&Capacity::total(nodes), pods, places, budget).is_some();
    let scarce = scarce(pods, capacity);
    let on_nodes = free_in_words(pods, capacity, &scarce);
    if ever {
        return waits(
            Reason::WaitsForCapacity,
            format!(
                "waits for {wants}, all at once; {on_nodes}. It begins by itself when that is free: end or suspend other runs (`kubectl get grporuns -A`), or add nodes"
            ),
        );
    }
    let volume = match volumes_in_words(volumes) {
        Some(claims) => format!(", each where the volumes that it mounts can be reached ({claims})"),
        None => String::new(),
    };
    let one_node = if pods.iter().filter(|pod| is_together(pod)).count() > 1 {
        ", with the pods that share its ReadWriteOnce volume on one node"
    } else {
        ""
    };
    waits(
        NEVER_FITS,
        format!(
            "wants {wants}{one_node}{volume}, which these nodes could not hold even if nothing else ran; {on_nodes}. Ask for less, correct nodeSelector and tolerations in podTemplate, or add nodes"
        ),
    )
}

/// The claims whose volumes not every node can reach: `PersistentVolumeClaims rows, run-store`.
fn volumes_in_words(volumes: &VolumeTerms) -> Option<String> {
    let bound: Vec<&str> = volumes
        .iter()
        .filter(|(_, terms)| !terms.is_empty())
        .map(|(claim, _)| claim.as_str())
        .collect();
    let plural = if bound.len() == 1 { "" } else { "s" };
    (!bound.is_empty()).then(|| format!("PersistentVolumeClaim{plural} {}", bound.join(", ")))
}

fn is_together(pod: &PodNeeds) -> bool {
    pod.member.as_ref().is_some_and(|member| member.together)
}

/// `2 trainer pods of 8 GPUs, 4 engine pods of 2 GPUs, 1 driver pod`, or CPU and memory where there are no GPUs.
fn wants(pods: &[&PodNeeds]) -> String {
    let mut groups: BTreeMap<(String, String), usize> = BTreeMap::new();
    for pod in pods {
        let role = pod.member.as_ref().map_or("", |member| &member.role).to_owned();
        *groups.entry((role, each(pod))).or_default() += 1;
    }
    let groups = groups.iter().rev().map(|((role, each), count)| {
        let plural = if *count == 1 { "" } else { "s" };
        format!("{count} {role} pod{plural} of {each}")
    });
    groups.collect::<Vec<_>>().join(", ")
}

fn each(pod: &PodNeeds) -> String {
    let amount = |resource: &str| pod.requests.get(resource).copied().unwrap_or(0);
    let devices: Vec<String> = pod
        .requests
        .iter()
        .filter(|(resource, _)| resource.contains('/'))
        .map(|(resource, amount)| format!("{} {resource}", in_words(resource, *amount)))
        .collect();
    if devices.is_empty() {
        format!(
            "{} CPU and {}",
            in_words("cpu", amount("cpu")),
            in_words("memory", amount("memory"))
        )
    } else {
        devices.join(" and ")
    }
}

/// The scarcest resource on the nodes that may take these pods, relative to the requests.
fn scarce(pods: &[&PodNeeds], capacity: &Capacity<'_>) -> String {
    let mut wanted = super::facts::Amounts::new();
    for pod in pods {
        super::facts::add(&mut wanted, &pod.requests);
    }
    let free = |resource: &str| -> i64 {
        let usable = capacity.nodes.iter().filter(|(node, _)| node.usable);
        usable
            .map(|(_, free)| free.get(resource).copied().unwrap_or(0).max(0))
            .sum()
    };
    if wanted.contains_key(GPU) {
        return GPU.to_owned();
    }
    wanted
        .iter()
        .max_by_key(|(resource, wanted)| i128::from(**wanted) * 1_000_000 / i128::from(free(resource).max(1)))
        .map_or_else(|| "cpu".to_owned(), |(resource, _)| resource.to_string())
}

/// `free nvidia.com/gpu: node-a 2 of 8, node-b 0 of 8; 3 nodes may not take its pods`.
fn free_in_words(pods: &[&PodNeeds], capacity: &Capacity<'_>, resource: &str) -> String {
    let members: Vec<_> = pods.iter().filter_map(|pod| pod.member.as_deref()).collect();
    let may = |node: &NodeFacts| members.iter().any(|member| node.admits(member));
    let (usable, closed): (Vec<_>, Vec<_>) = capacity.nodes.iter().partition(|(node, _)| may(node));
    let mut with: Vec<(&str, i64, i64)> = usable
        .iter()
        .map(|(node, free)| {
            let of = |amounts: &super::facts::Amounts| amounts.get(resource).copied().unwrap_or(0);
            (node.name.as_str(), of(free).max(0), of(&node.allocatable))
        })
        .filter(|(_, _, all)| *all > 0)
        .collect();
    with.sort_by_key(|(name, free, _)| (std::cmp::Reverse(*free), *name));
    let total: i64 = with.iter().map(|(_, free, _)| *free).sum();
    let asked: i64 = pods
        .iter()
        .map(|pod| pod.requests.get(resource).copied().unwrap_or(0))
        .sum();
    let mut named: Vec<String> = with
        .iter()
        .take(NODES_NAMED)
        .map(|(name, free, all)| format!("{name} {} of {}", in_words(resource, *free), in_words(resource, *all)))
        .collect();
    if with.len() > NODES_NAMED {
        named.push(format!("{} more nodes", with.len() - NODES_NAMED));
    }
    let mut words = if with.is_empty() {
        format!("no node that may take its pods has any {resource}")
    } else {
        format!(
            "{} {resource} asked, {} free: {}",
            in_words(resource, asked),
            in_words(resource, total),
            named.join(", ")
        )
    };
    if !closed.is_empty() {
        words.push_str(&format!(
            "; {} other nodes are not ready, cordoned, tainted, or not selected",
            closed.len()
        ));
    }
    words
}
