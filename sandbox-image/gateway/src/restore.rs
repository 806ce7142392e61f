//! What a gateway that begins takes over from the one before: the leases of the ledger whose pods still live.

use std::collections::HashMap;

use grpo_sandbox_protocol::{LedgerEntry, SandboxCause};
use k8s_openapi::api::core::v1::Pod;

use crate::cause::cause;
use crate::index::{Found, Index};
use crate::ledger::Change;
use crate::pod::slot;

/// What every restored lease has at least, milliseconds: renewals are not in the ledger, so its holder must have time to renew it again.
const GRACE: i64 = 60_000;

/// Leases whose pods live go on; the others' holders will hear why not. Answers what goes out of the ledger.
pub fn restore(index: &mut Index, entries: Vec<LedgerEntry>, pods: &[Pod], now: i64) -> Vec<Change> {
    let by_uid: HashMap<&str, &Pod> = pods
        .iter()
        .filter_map(|pod| Some((pod.metadata.uid.as_deref()?, pod)))
        .collect();
    let (count, mut changes) = (entries.len(), Vec::new());
    for mut entry in entries {
        let pod = by_uid.get(entry.pod_uid.as_str()).copied();
        if let Some(found) = pod.and_then(alive) {
            entry.expires_at = entry.expires_at.max(now + GRACE);
            index.restore(entry, found, now);
        } else {
            let why = pod.map_or(SandboxCause::Unknown, |pod| cause(pod, false));
            index.remember(&entry.lease, why);
            changes.push(Change::Remove { lease: entry.lease });
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

/// Where the pod is reached, if it runs.
fn alive(pod: &Pod) -> Option<Found> {
    let status = pod.status.as_ref()?;
    if status.phase.as_deref() != Some("Running") || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    Some(Found {
        ip: status.pod_ip.clone()?,
        node: node.unwrap_or_default(),
        slot: slot(pod),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Bounds;
    use grpo_sandbox_protocol::Priority;

    fn entry(lease: &str) -> LedgerEntry {
        LedgerEntry {
            lease: lease.into(),
            run: "r".into(),
            sandbox: format!("pod-{lease}"),
            pod_uid: format!("uid-{lease}"),
            image: "x".into(),
            epoch: 3,
            expires_at: 1_000,
            priority: Priority::Agent,
        }
    }

    fn pod(lease: &str, status: &str) -> Pod {
        let text = format!(
            "metadata: {{name: pod-{lease}, uid: uid-{lease}, labels: {{grpo.dev/sandbox-slot: '1'}}}}\n\
             spec: {{nodeName: node, containers: []}}\nstatus: {status}"
        );
        serde_yaml_ng::from_str(&text).unwrap()
    }

    #[test]
    fn a_lease_whose_pod_runs_goes_on_with_a_minute_to_renew_it_and_the_others_are_lost() {
        let mut index = Index::new(Bounds {
            max: 4,
            reserved: 1,
            warm_max: 4,
            per_node: None,
            max_ttl_millis: 100_000,
            idle_millis: 100_000,
        });
        let pods = [
            pod("a", "{phase: Running, podIP: 10.0.0.1}"),
            pod("b", "{phase: Failed, reason: Evicted}"),
        ];
        let entries = ["a", "b", "c"].map(entry).into();
        let changes = restore(&mut index, entries, &pods, 50_000);
        assert_eq!(index.leases["a"].entry.expires_at, 110_000);
        assert_eq!(index.sandboxes["pod-a"].slot, Some(1));
        assert_eq!(index.cause_of("b"), Some(SandboxCause::Disrupted));
        assert_eq!(index.cause_of("c"), Some(SandboxCause::Unknown));
        assert_eq!(changes.len(), 2);
    }
}
