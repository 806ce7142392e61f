//! Takes over the previous gateway's state: the leases of the ledger whose pods still live, and the pods without a
//! lease.

use std::collections::{HashMap, HashSet};

use grpo_crds::sandbox_pool::PackageIndex;
use grpo_sandbox_protocol::{LedgerEntry, SandboxCause};
use kube::ResourceExt;

use crate::cause::cause;
use crate::index::{Found, Index};
use crate::ledger::Change;
use crate::package_index::reaches_packages;
use crate::pod::{image_if_made_from, index_of, is_graders, slot};
use crate::slim_pod::SlimPod;

/// Minimum time of a restored lease, milliseconds, even if its own time was shorter: callers must find the new gateway
/// first.
const GRACE: i64 = 60_000;

/// Restores leases with live pods; the other holders learn the cause. Keeps pods without a lease that match `template`.
/// If the pool has a package index and a grader's pod does not reach it, its lease is given up: the grading would lack
/// its packages. Returns the entries to remove from the ledger.
pub fn restore(
    index: &mut Index,
    entries: Vec<LedgerEntry>,
    pods: &[SlimPod],
    template: &str,
    packages: Option<&PackageIndex>,
    now: i64,
) -> Vec<Change> {
    let by_uid: HashMap<&str, &SlimPod> = pods
        .iter()
        .filter_map(|pod| Some((pod.metadata.uid.as_deref()?, pod)))
        .collect();
    let (count, mut changes) = (entries.len(), Vec::new());
    let leased: HashSet<String> = entries.iter().map(|entry| entry.sandbox.clone()).collect();
    let mut newest: HashMap<String, u64> = HashMap::new();
    for entry in &entries {
        let epoch = newest.entry(entry.pod_uid.clone()).or_default();
        *epoch = entry.epoch.max(*epoch);
    }
    for mut entry in entries {
        let pod = by_uid.get(entry.pod_uid.as_str()).copied();
        // After a reset the pod may have been leased again while the ledger still has the earlier lease: that one was
        // released.
        let is_newest = newest.get(&entry.pod_uid) == Some(&entry.epoch);
        let is_cut_off = |pod: &&SlimPod| packages.is_some_and(|packages| is_cut_off(&entry, pod, packages));
        let cut_off = pod.filter(is_cut_off).map(|_| SandboxCause::Disrupted);
        let found = pod
            .and_then(alive)
            .filter(|found| is_newest && found.restarts <= entry.restarts && cut_off.is_none());
        if let Some(found) = found {
            // Renewals are not in the ledger, so the holder gets its whole time to renew. The expiry that the earlier
            // gateway noted, by the time of day, does not count.
            entry.expires_at = now + entry.ttl_millis.max(GRACE);
            index.restore(entry, found, now);
        } else {
            let ended = || pod.map_or(SandboxCause::Unknown, |pod| cause(pod, false));
            let why = cut_off.unwrap_or_else(ended);
            index.remember(&entry.lease, why);
            let (lease, epoch) = (entry.lease, entry.epoch);
            changes.push(Change::Remove { lease, epoch });
        }
    }
    let unleased = pods
        .iter()
        .filter(|&pod| !leased.contains(&pod.name_any()) && !is_graders(pod) && may_come_up(pod));
    for pod in unleased {
        if let Some(image) = image_if_made_from(pod, template)
            && index.has_room()
        {
            index.adopt(&pod.name_any(), image, slot(pod), pod.restarts(), now);
        }
    }
    if count > 0 {
        tracing::info!(
            leases = count,
            alive = index.leases.len(),
            "restored leases from the ledger"
        );
    }
    changes
}

/// Whether a grader's pod has no access to this index.
fn is_cut_off(entry: &LedgerEntry, pod: &SlimPod, packages: &PackageIndex) -> bool {
    reaches_packages(entry) && index_of(pod) != Some(&packages.url)
}

fn may_come_up(pod: &SlimPod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let has_ended = matches!(phase, Some("Failed" | "Succeeded"));
    pod.metadata.deletion_timestamp.is_none() && !has_ended
}

/// The pod's address and state, if it runs.
fn alive(pod: &SlimPod) -> Option<Found> {
    let status = pod.status.as_ref()?;
    if status.phase.as_deref() != Some("Running") || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    Some(Found {
        ip: status.pod_ip.clone()?,
        node: node.unwrap_or_default(),
        slot: slot(pod),
        restarts: pod.restarts(),
        is_graders: is_graders(pod),
    })
}

#[cfg(test)]
mod tests;
