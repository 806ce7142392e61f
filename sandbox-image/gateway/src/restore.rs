//! What a gateway that begins takes over from the one before: the leases of the ledger whose pods still live, and the
//! pods that nobody has leased.

use std::collections::{HashMap, HashSet};

use grpo_sandbox_protocol::{LedgerEntry, SandboxCause};
use kube::ResourceExt;

use crate::cause::cause;
use crate::index::{Found, Index};
use crate::ledger::Change;
use crate::pod::{image_if_made_from, slot};
use crate::slim_pod::SlimPod;

/// What every restored lease has at least, milliseconds, were its own time shorter: callers must find the new gateway
/// first.
const GRACE: i64 = 60_000;

/// Leases whose pods live go on; the others' holders will hear why not. Pods that no lease holds and that are as
/// `template` says are kept. Answers what goes out of the ledger.
pub fn restore(
    index: &mut Index,
    entries: Vec<LedgerEntry>,
    pods: &[SlimPod],
    template: &str,
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
        // Of a pod that was leased again after a reset the earlier lease may still be in the ledger: it was given back.
        let is_newest = newest.get(&entry.pod_uid) == Some(&entry.epoch);
        let found = pod
            .and_then(alive)
            .filter(|found| is_newest && found.restarts <= entry.restarts);
        if let Some(found) = found {
            // Renewals are not in the ledger, so the holder has its whole time to renew; the time of day that the
            // earlier gateway noted does not count.
            entry.expires_at = now + entry.ttl_millis.max(GRACE);
            index.restore(entry, found, now);
        } else {
            let why = pod.map_or(SandboxCause::Unknown, |pod| cause(pod, false));
            index.remember(&entry.lease, why);
            let (lease, epoch) = (entry.lease, entry.epoch);
            changes.push(Change::Remove { lease, epoch });
        }
    }
    let unleased = pods
        .iter()
        .filter(|pod| !leased.contains(&pod.name_any()) && may_come_up(pod));
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

fn may_come_up(pod: &SlimPod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let has_ended = matches!(phase, Some("Failed" | "Succeeded"));
    pod.metadata.deletion_timestamp.is_none() && !has_ended
}

/// Where the pod is reached, if it runs.
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
    })
}

#[cfg(test)]
mod tests;
