//! Maintains the prefetch pods that the image prefetcher plans, and reports their state to it.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1 as full;
use kube::api::{Api, DeleteParams, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Client, ResourceExt};

use super::{Core, now};
use crate::pod;
use crate::prefetcher::{ImagePrefetcher, Step};
use crate::pull::{pull_failure, volumes};
use crate::slim_pod::SlimPod;

/// Pause between two plans.
const LOOK: Duration = Duration::from_secs(1);
/// Pause after the API server refused a prefetch pod: a quota or an admission rule will refuse the next one too.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);

/// Prefetches the images that are wanted next, for ever. Steps run one after the other: the pull of an image takes
/// minutes, so no call waits for them.
pub async fn keep_prefetching(core: Arc<Core>, client: Client) {
    let pods: Api<full::Pod> = Api::namespaced(client.clone(), &core.template.namespace);
    let slim_pods: Api<SlimPod> = Api::namespaced(client, &core.template.namespace);
    let config = watcher::Config::default().labels(&pod::prefetch_selector(&core.template.pool));
    let mut events = watcher::watcher(slim_pods, config).default_backoff().boxed();
    let (mut is_known, mut listed) = (false, Vec::new());
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            event = events.next() => match event {
                None => return,
                Some(Err(error)) => tracing::debug!(%error, "watching prefetch pods"),
                Some(Ok(Event::Init)) => listed.clear(),
                Some(Ok(Event::InitApply(pod))) => {
                    listed.push(pod.name_any());
                    saw(&core, &pod);
                }
                Some(Ok(Event::InitDone)) => {
                    prefetcher(&core, |prefetcher| prefetcher.there_are(&listed));
                    is_known = true;
                }
                Some(Ok(Event::Apply(pod))) => saw(&core, &pod),
                Some(Ok(Event::Delete(pod))) => prefetcher(&core, |prefetcher| prefetcher.gone(&pod.name_any())),
            },
            _ = look.tick() => if is_known && core.is_ready() {
                for step in planned(&core) {
                    take(&core, &pods, step).await;
                }
            },
        }
    }
}

fn prefetcher<T>(core: &Core, look: impl FnOnce(&mut ImagePrefetcher) -> T) -> T {
    look(&mut core.prefetcher.lock().unwrap_or_else(PoisonError::into_inner))
}

fn planned(core: &Core) -> Vec<Step> {
    let now = now();
    let (to_come, held) = (
        core.look(|index| index.images_to_come(now)),
        prefetcher(core, |prefetcher| prefetcher.images()),
    );
    // The egress probe waits with sandboxd's own image, which every sandbox has anyway.
    let to_come: Vec<Arc<str>> = to_come
        .into_iter()
        .filter(|image| **image != *core.template.sandboxd_image)
        .collect();
    let wanted = core.look(|index| {
        held.into_iter()
            .filter(|image| index.is_wanted(image))
            .collect::<Vec<_>>()
    });
    prefetcher(core, |prefetcher| {
        prefetcher.plan(&to_come, |image| wanted.iter().any(|wanted| wanted == image), now)
    })
}

/// Takes in one prefetch pod as the API server shows it. Deletes it if it has ended, cannot pull its image, or was made
/// from another spec.
fn saw(core: &Core, found: &SlimPod) {
    let name = found.name_any();
    let ours = pod::template_digest(&core.template).unwrap_or_default();
    let Some(image) = pod::image_if_made_from(found, &ours) else {
        return prefetcher(core, |prefetcher| prefetcher.end(&name, now()));
    };
    if found.metadata.deletion_timestamp.is_some() {
        return;
    }
    let status = found.status.clone().unwrap_or_default();
    if matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")) {
        prefetcher(core, |prefetcher| prefetcher.pause(image, now()));
        return prefetcher(core, |prefetcher| prefetcher.end(&name, now()));
    }
    if let Some(failure) = pull_failure(found, volumes(&core.template)).filter(|failure| failure.is_final) {
        tracing::warn!(?failure, image, "pulling an image ahead of its sandboxes");
        core.with(|index| index.pull_failed_ahead(image, &failure, now()));
        return prefetcher(core, |prefetcher| prefetcher.end(&name, now()));
    }
    let node = found.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let is_there = status.phase.as_deref() == Some("Running");
    prefetcher(core, |prefetcher| {
        prefetcher.saw(name, image, node.filter(|_| is_there))
    });
}

async fn take(core: &Arc<Core>, pods: &Api<full::Pod>, step: Step) {
    match step {
        Step::Release { pod } => release(core, pods, &pod).await,
        Step::Prefetch { image } => {
            let made = match pod::prefetch(&core.template, &image) {
                Ok(pod) => pods.create(&PostParams::default(), &pod).await.map(|_| pod.name_any()),
                Err(error) => Err(kube::Error::SerdeError(error)),
            };
            match made {
                Ok(name) => {
                    core.metrics.wrote("create");
                    prefetcher(core, |prefetcher| prefetcher.saw(name, &image, None));
                }
                // An earlier try succeeded, or the previous pod of this name is still terminating: the watch tells
                // which.
                Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => {}
                Err(error) => {
                    tracing::warn!(%error, image, "creating a prefetch pod");
                    core.metrics.api_refused();
                    tokio::time::sleep(REFUSED_PAUSE).await;
                }
            }
        }
    }
}

async fn release(core: &Core, pods: &Api<full::Pod>, name: &str) {
    match pods.delete(name, &DeleteParams::default().grace_period(0)).await {
        Ok(_) => core.metrics.wrote("delete"),
        Err(kube::Error::Api(status)) if status.code == 404 => prefetcher(core, |prefetcher| prefetcher.gone(name)),
        Err(error) => tracing::warn!(%error, name, "deleting a prefetch pod; it will be tried again"),
    }
}
