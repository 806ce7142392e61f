//! Nodes whose kubelet refuses pods that the scheduler gave them, each with a back-off that doubles. A pod that starts
//! on the node clears it.
//!
//! Scheduler and kubelet may disagree for long: about a node's free resources, its labels or its devices. Without a
//! pause the pool would make pods for such a node as fast as the API server takes them.

use std::collections::BTreeMap;

use grpo_sandbox_protocol::StuckPod;

/// First and longest back-off of a node, milliseconds. The same as after creations that the API server refuses.
const FIRST_PAUSE: i64 = 500;
const LONGEST_PAUSE: i64 = 30_000;
/// Refusals in a row until the node is reported. Fewer are common: the kubelet still counts pods that have just ended.
const REPORTED_AFTER: u32 = 4;
/// After this time without another refusal a node is no longer reported, milliseconds.
const REPORTED_FOR: i64 = 2 * LONGEST_PAUSE;
/// A refusal this long ago does not count, milliseconds.
const FORGOTTEN_AFTER: i64 = 600_000;

struct Refusing {
    until: i64,
    in_a_row: u32,
    since: i64,
    /// The last refused pod, and the kubelet's message.
    pod: String,
    message: String,
}

/// The refusals of all nodes.
#[derive(Default)]
pub struct NodeRefusals(BTreeMap<String, Refusing>);

impl NodeRefusals {
    /// The node refused a pod. Returns until when the pod keeps its place. Pods that were ordered together are refused
    /// together; this counts as one refusal.
    pub fn refused(&mut self, node: &str, pod: &str, message: &str, now: i64) -> i64 {
        self.0.retain(|_, refusing| refusing.until + FORGOTTEN_AFTER > now);
        let refusing = self.0.entry(node.to_owned()).or_insert_with(|| Refusing {
            until: now,
            in_a_row: 0,
            since: now,
            pod: String::new(),
            message: String::new(),
        });
        if now >= refusing.until {
            refusing.until = now + (FIRST_PAUSE << refusing.in_a_row.min(10)).min(LONGEST_PAUSE);
            refusing.in_a_row += 1;
        }
        pod.clone_into(&mut refusing.pod);
        message.clone_into(&mut refusing.message);
        refusing.until
    }

    /// A pod has started on the node.
    pub fn succeeded(&mut self, node: &str) {
        self.0.remove(node);
    }

    /// The nodes that refuse again and again, by name.
    pub fn lasting(&self, now: i64) -> Vec<StuckPod> {
        let lasting = self.0.iter().filter(|(_, refusing)| {
            refusing.in_a_row >= REPORTED_AFTER && refusing.until.saturating_add(REPORTED_FOR) > now
        });
        lasting
            .map(|(node, refusing)| StuckPod {
                pod: refusing.pod.clone(),
                node: node.clone(),
                message: format!(
                    "the kubelet refused to run it: {}; the pool tries again after a pause",
                    refusing.message
                ),
                since: refusing.since,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests;
