//! Pods that have no address for long: each is named in the pool's report with what the cluster says about it, and one
//! whose node cannot set it up is replaced.
//!
//! A pod without an address may be right: it waits for a node, or its node pulls a large image. What its node could not
//! do stands in Events only, so these are asked for, of such pods alone.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::stream::{self, StreamExt};
use grpo_sandbox_protocol::StuckPod;
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, ListParams};

use super::{Core, now};
use crate::index::WithoutAddress;

/// A pod that has no address for so long is named, milliseconds.
const NAMED_AFTER: i64 = 120_000;
/// One that its node cannot set up is replaced after so long, milliseconds: the node tries again by itself before.
const REPLACED_AFTER: i64 = 300_000;
/// Between two looks.
const LOOK: Duration = Duration::from_secs(30);
/// Pods whose Events are asked for in one look: the rest have the same cause more often than not.
const LOOKED_AT: usize = 32;
/// Of them at one time.
const AT_ONCE: usize = 4;
/// Events of one pod that are read.
const EVENTS: u32 = 50;
/// The kubelet could not make the pod's network, user namespace or runtime.
const CANNOT_SET_UP: &str = "FailedCreatePodSandBox";

/// Looks for such pods for as long as the gateway lives.
pub async fn keep_looking(core: Arc<Core>, events: Api<Event>) {
    loop {
        tokio::time::sleep(LOOK).await;
        core.look_for_stuck(&events, now()).await;
    }
}

impl Core {
    /// Names pods that have no address for long, and replaces those that their nodes cannot set up.
    pub async fn look_for_stuck(self: &Arc<Self>, events: &Api<Event>, now: i64) {
        let mut pods = self.look(|index| index.without_address(NAMED_AFTER, now));
        // Only a node can fail to set a pod up.
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
                // It may have got its address, and a lease, while Events were read.
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

    /// Pods that have no address for long, as the last look found them.
    pub fn stuck(&self) -> Vec<StuckPod> {
        self.stuck.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The message without the ids in it: the kubelet gives each try to set a pod up another one, and a report is written
/// for each change.
fn without_ids(message: &str) -> String {
    let is_id = |word: &&str| word.len() >= 32 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let words = message.split(|c: char| !c.is_ascii_alphanumeric());
    words.filter(|word| !is_id(word)).collect::<Vec<_>>().join(" ")
}

/// The last thing that went wrong with the pod, unless its image was pulled after it: then its node has set it up.
/// Events that cannot be read say nothing.
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
