//! Pods that have had no address for long. Each is named in the pool's report with the cluster's message, and replaced
//! if its node cannot set it up.
//!
//! A pod without an address may be healthy: it waits for a node, or its node pulls a large image. The failures of a
//! node are only in Events, so the gateway reads the Events of these pods alone.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::stream::{self, StreamExt};
use grpo_sandbox_protocol::StuckPod;
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, ListParams};

use super::{Core, now};
use crate::index::WithoutAddress;

/// A pod without an address for this long is reported, milliseconds.
const NAMED_AFTER: i64 = 120_000;
/// A pod that its node cannot set up is replaced after this time, milliseconds. Before, the node itself retries.
const REPLACED_AFTER: i64 = 300_000;
/// Pause between two checks.
const LOOK: Duration = Duration::from_secs(30);
/// Pods whose Events are read in one check. The rest usually have the same cause.
const LOOKED_AT: usize = 32;
/// Concurrent reads of Events.
const AT_ONCE: usize = 4;
/// Events that are read for one pod.
const EVENTS: u32 = 50;
/// Reason of the kubelet's Event: it could not make the pod's network, user namespace or runtime.
const CANNOT_SET_UP: &str = "FailedCreatePodSandBox";

/// Checks for stuck pods for as long as the gateway lives.
pub async fn keep_looking(core: Arc<Core>, events: Api<Event>) {
    loop {
        tokio::time::sleep(LOOK).await;
        core.look_for_stuck(&events, now()).await;
    }
}

impl Core {
    /// Reports pods that have had no address for long, and replaces pods that their nodes cannot set up.
    pub async fn look_for_stuck(self: &Arc<Self>, events: &Api<Event>, now: i64) {
        let mut pods = self.look(|index| index.without_address(NAMED_AFTER, now));
        // Pods with a node come first: only a node can fail to set up a pod.
        pods.sort_by_key(|pod| (pod.node.is_empty(), pod.since));
        let asked = pods.into_iter().take(LOOKED_AT).map(|pod| async move {
            let last = last_warning(events, &pod.uid).await;
            (pod, last)
        });
        let found: Vec<_> = stream::iter(asked).buffered(AT_ONCE).collect().await;
        let mut stuck = Vec::new();
        for (pod, warning) in found {
            let cannot = warning
                .as_ref()
                .is_some_and(|warning| warning.reason.as_deref() == Some(CANNOT_SET_UP));
            if cannot && pod.since + REPLACED_AFTER <= now {
                tracing::warn!(
                    name = pod.name,
                    node = pod.node,
                    "the node cannot set the pod up; it is replaced"
                );
                // The pod may have got its address and a lease while Events were read.
                self.apply(|index| index.discard_without_address(&pod, now));
            }
            stuck.push(told(pod, warning));
        }
        let before = std::mem::replace(
            &mut *self.stuck.lock().unwrap_or_else(PoisonError::into_inner),
            stuck.clone(),
        );
        let same = |(before, now): (&StuckPod, &StuckPod)| {
            (&before.pod, before.since) == (&now.pod, now.since)
                && without_ids(&before.message) == without_ids(&now.message)
        };
        if before.len() != stuck.len() || !before.iter().zip(&stuck).all(same) {
            self.report();
        }
    }

    /// The stuck pods of the last check.
    pub fn stuck(&self) -> Vec<StuckPod> {
        self.stuck.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Removes ids from the message: the kubelet uses a new id in each try to set up a pod, and every changed report causes
/// a write.
fn without_ids(message: &str) -> String {
    let is_id = |word: &&str| word.len() >= 32 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let words = message.split(|c: char| !c.is_ascii_alphanumeric());
    words.filter(|word| !is_id(word)).collect::<Vec<_>>().join(" ")
}

/// The pod's last warning. `None` if its image was pulled after it, because then its node has set it up, or if its
/// Events cannot be read.
async fn last_warning(events: &Api<Event>, uid: &str) -> Option<Event> {
    let of_pod = format!("involvedObject.uid={uid}");
    let listed = events.list(&ListParams::default().fields(&of_pod).limit(EVENTS)).await;
    let listed = listed.inspect_err(|error| tracing::debug!(%error, uid, "reading a pod's Events"));
    let when = |event: &Event| {
        let seen = event.last_timestamp.as_ref().map(|time| time.0);
        let made = event.metadata.creation_timestamp.as_ref().map(|time| time.0);
        seen.max(made)
    };
    let events = listed.ok()?.items;
    let pulls = |event: &&Event| matches!(event.reason.as_deref(), Some("Pulling" | "Pulled"));
    let pulled = events.iter().filter(pulls).map(when).max().flatten();
    let warnings = events
        .into_iter()
        .filter(|event| event.type_.as_deref() == Some("Warning"));
    let last = warnings.max_by_key(when)?;
    (when(&last) >= pulled).then_some(last)
}

fn told(pod: WithoutAddress, warning: Option<Event>) -> StuckPod {
    let silent = match pod.node.is_empty() {
        true => "it waits for a node",
        false => "its node sets it up or pulls its image; no Event says more",
    };
    StuckPod {
        message: warning
            .and_then(|warning| warning.message)
            .unwrap_or_else(|| silent.to_owned()),
        pod: pod.name,
        node: pod.node,
        since: pod.since,
    }
}
