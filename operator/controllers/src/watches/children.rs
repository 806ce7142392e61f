//! Watches the objects that the operator has applied.

use std::{collections::HashSet, sync::Arc};

use futures::StreamExt;
use grpo_operator_core::names;
use kube::{
    Api, Resource,
    core::{ObjectMeta, PartialObjectMeta},
    runtime::{
        WatchStreamExt,
        watcher::{Event, watcher},
    },
};

use super::{
    config::{Pauses, every_object},
    triggers::Triggers,
};
use crate::{
    applied::{Applied, Key, Sighting, version},
    cluster::Cluster,
    parent::Parent,
};

/// Notices children of one kind that differ from what the operator applied. Ends only with the process.
pub async fn follow_children<K>(api: Api<PartialObjectMeta<K>>, cluster: Arc<Cluster>, triggers: Triggers)
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Send + serde::de::DeserializeOwned + 'static,
{
    let config = every_object().labels(names::MANAGED_SELECTOR);
    let mut events = watcher(api, config).backoff(Pauses::default()).boxed();
    let mut listed = HashSet::new();
    while let Some(event) = events.next().await {
        let (metadata, deleted) = match event {
            Ok(Event::InitApply(child)) => {
                listed.insert(key_of::<K>(&child.metadata));
                (child.metadata, false)
            }
            Ok(Event::Apply(child)) => (child.metadata, false),
            Ok(Event::Delete(child)) => (child.metadata, true),
            Ok(Event::Init) => {
                listed = HashSet::new();
                continue;
            }
            Ok(Event::InitDone) => {
                for parent in cluster.applied.missed(&K::kind(&()), &std::mem::take(&mut listed)) {
                    triggers.pull(parent).await;
                }
                continue;
            }
            Err(error) => {
                tracing::warn!(kind = %K::kind(&()), %error, "a watch of children was interrupted; it begins anew");
                triggers.metrics.interrupted(&K::kind(&()));
                continue;
            }
        };
        if is_to_be_looked_at::<K>(&cluster.applied, &metadata, deleted)
            && let Some(parent) = Parent::of_owned(&metadata)
        {
            triggers.pull(parent).await;
        }
    }
}

fn key_of<K: Resource<DynamicType = ()>>(metadata: &ObjectMeta) -> Key {
    Key::of(
        &K::kind(&()),
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default(),
    )
}

fn is_to_be_looked_at<K: Resource<DynamicType = ()>>(applied: &Applied, metadata: &ObjectMeta, deleted: bool) -> bool {
    let key = key_of::<K>(metadata);
    let version = version(&K::kind(&()), metadata);
    let sighting = if deleted {
        Sighting::Deleted
    } else {
        Sighting::At(version.as_deref())
    };
    applied.seen(&key, sighting)
}
