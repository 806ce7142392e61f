//! Waits for a state of some objects: by a watch, with a deadline, and with the last observation in the error.

use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use kube::runtime::watcher;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    #[error("waited {limit:?} in vain for {what}; there is: {there}")]
    TimedOut {
        what: String,
        limit: Duration,
        there: String,
    },
    #[error("watching for {what}: {source}")]
    Watch { what: String, source: watcher::Error },
}

/// Objects by name.
pub type Objects<K> = BTreeMap<String, K>;

/// Watches until `found` returns a value for the objects that the configuration selects.
pub async fn until<K, T>(
    api: Api<K>,
    config: watcher::Config,
    limit: Duration,
    what: &str,
    mut found: impl FnMut(&Objects<K>) -> Option<T>,
) -> Result<T, WaitError>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut objects = Objects::new();
    match tokio::time::timeout(limit, watch(api, config, what, &mut objects, &mut found)).await {
        Ok(result) => result,
        Err(_) => Err(WaitError::TimedOut {
            what: what.to_owned(),
            limit,
            there: names(&objects),
        }),
    }
}

async fn watch<K, T>(
    api: Api<K>,
    config: watcher::Config,
    what: &str,
    objects: &mut Objects<K>,
    found: &mut impl FnMut(&Objects<K>) -> Option<T>,
) -> Result<T, WaitError>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let events = watcher(api, config);
    futures::pin_mut!(events);
    let mut whole = false;
    loop {
        let event = events.try_next().await.map_err(|source| WaitError::Watch {
            what: what.to_owned(),
            source,
        })?;
        match event {
            Some(watcher::Event::Init) => {
                objects.clear();
                whole = false;
            }
            Some(watcher::Event::InitDone) => whole = true,
            Some(watcher::Event::Apply(one) | watcher::Event::InitApply(one)) => {
                objects.insert(one.name_any(), one);
            }
            Some(watcher::Event::Delete(one)) => {
                objects.remove(&one.name_any());
            }
            // A watcher's stream restarts by itself and does not end.
            None => std::future::pending().await,
        }
        if whole && let Some(answer) = found(objects) {
            return Ok(answer);
        }
    }
}

fn names<K>(objects: &Objects<K>) -> String {
    if objects.is_empty() {
        return "nothing".into();
    }
    objects.keys().cloned().collect::<Vec<_>>().join(", ")
}

/// Objects of one name.
pub fn named(name: &str) -> watcher::Config {
    watcher::Config::default().fields(&format!("metadata.name={name}"))
}

/// Objects with these labels.
pub fn labelled(selector: &str) -> watcher::Config {
    watcher::Config::default().labels(selector)
}

/// Whether the pod has condition Ready and stays: a pod that is being deleted keeps the condition for a moment.
pub fn is_ready(pod: &Pod) -> bool {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True");
    ready && pod.metadata.deletion_timestamp.is_none()
}

#[cfg(test)]
mod tests;
