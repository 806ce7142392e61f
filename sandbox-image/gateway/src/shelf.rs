//! Images that nodes pull and keep before the pool has room for their sandboxes.
//!
//! ```text
//! what runs want next ──► [`Shelf::plan`] ──► a pod for each image, which does nothing ──► its node has the image, and the sandbox is made near it
//! ```
//!
//! A large task image takes minutes to pull. While every place of the pool is taken, nobody has pulled the next ones,
//! and each group of episodes would begin by waiting. A pod that only holds an image costs 32 MiB and no place. Only
//! the kubelet may remove images from a node, and it removes those that no pod has; so `warm.images` bounds what is
//! kept from it, and what nobody wants any more is left to it.
//!
//! A holder's name follows from its image, so that late events, another gateway or a lost answer never make a second
//! one.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1 as full;
use kube::api::{Api, DeleteParams, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Client, ResourceExt};

use crate::core::{Core, now};
use crate::pod;
use crate::pull::pull_failure;
use crate::seen::Pod;

/// An image that nobody wants is kept for so long, milliseconds: demand comes in waves.
const LINGER: i64 = 60_000;
/// An image whose holder was ended from outside is left alone for so long, milliseconds: its node may have no room on
/// its disk.
const ENDED_PAUSE: i64 = 300_000;
/// A deletion is ordered again after so long, milliseconds, until the holder is seen to be gone.
const DELETE_AGAIN: i64 = 10_000;
/// Looks at what is wanted are so far apart.
const LOOK: Duration = Duration::from_secs(1);
/// After the API server refused a holder: a quota or an admission rule will refuse the next one too.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);

/// One holder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Held {
    pod: String,
    /// Where the image is, once it is.
    node: Option<String>,
    unwanted_since: Option<i64>,
}

/// What is to be done about one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Hold { image: String },
    Release { pod: String },
}

/// The images that are held.
#[derive(Default)]
pub struct Shelf {
    most: usize,
    /// By image.
    held: BTreeMap<String, Held>,
    /// Holders that go, and when their deletion is ordered next.
    going: BTreeMap<String, i64>,
    /// Images that are left alone, until when.
    paused: HashMap<String, i64>,
}

impl Shelf {
    pub fn new(most: usize) -> Self {
        Self {
            most,
            ..Self::default()
        }
    }

    /// What follows from what is wanted now. `to_come`: images that are wanted and not there, the most urgent first. An
    /// image that is wanted is never released for another one, which would only trade their places.
    pub fn plan(&mut self, to_come: &[Arc<str>], is_wanted: impl Fn(&str) -> bool, now: i64) -> Vec<Step> {
        self.paused.retain(|_, until| *until > now);
        for (image, held) in &mut self.held {
            match is_wanted(image) {
                true => held.unwanted_since = None,
                false => drop(held.unwanted_since.get_or_insert(now)),
            }
        }
        let missing: Vec<&Arc<str>> = to_come
            .iter()
            .filter(|image| !self.held.contains_key(&***image) && !self.paused.contains_key(&***image))
            .take(self.most)
            .collect();
        let stay = self
            .held
            .values()
            .filter(|held| !self.going.contains_key(&held.pod))
            .count();
        let over = (stay + missing.len()).saturating_sub(self.most);
        let mut unwanted: Vec<(i64, &str)> = self
            .held
            .values()
            .filter(|held| !self.going.contains_key(&held.pod))
            .filter_map(|held| Some((held.unwanted_since?, held.pod.as_str())))
            .collect();
        unwanted.sort();
        let is_over = |(nth, (since, _)): &(usize, (i64, &str))| *nth < over || since + LINGER <= now;
        let released = unwanted.into_iter().enumerate().filter(is_over);
        let released: Vec<String> = released.map(|(_, (_, pod))| pod.to_owned()).collect();
        for pod in released {
            self.end(&pod, now);
        }
        let room = self.most.saturating_sub(self.held.len());
        let mut steps = Vec::new();
        for (pod, again_at) in self.going.iter_mut().filter(|(_, at)| **at <= now) {
            *again_at = now + DELETE_AGAIN;
            steps.push(Step::Release { pod: pod.clone() });
        }
        // A place is free when its holder is seen to be gone.
        steps.extend(missing.into_iter().take(room).map(|image| Step::Hold {
            image: image.to_string(),
        }));
        steps
    }

    /// The holder is to go.
    fn end(&mut self, pod: &str, now: i64) {
        self.going.entry(pod.to_owned()).or_insert(now);
    }

    /// A holder is there, on this node if it has the image.
    fn saw(&mut self, pod: String, image: &str, node: Option<String>) {
        let held = self.held.entry(image.to_owned()).or_default();
        held.pod = pod;
        if node.is_some() {
            held.node = node;
        }
    }

    /// A holder is gone.
    fn gone(&mut self, pod: &str) {
        self.held.retain(|_, held| held.pod != pod);
        self.going.remove(pod);
    }

    /// All holders there are.
    fn there_are(&mut self, listed: &[String]) {
        self.held.retain(|_, held| listed.contains(&held.pod));
        self.going.retain(|pod, _| listed.contains(pod));
    }

    fn pause(&mut self, image: &str, now: i64) {
        self.paused.insert(image.to_owned(), now + ENDED_PAUSE);
    }

    /// A node that has the image.
    pub fn node_of(&self, image: &str) -> Option<String> {
        self.held.get(image)?.node.clone()
    }

    /// Images that are held, and those of them that a node has.
    pub fn counts(&self) -> (usize, usize) {
        (
            self.held.len(),
            self.held.values().filter(|held| held.node.is_some()).count(),
        )
    }
}

/// Holds what is wanted next, for ever. Steps are taken one after the other: an image is pulled for minutes, so nobody
/// waits for them.
pub async fn keep_holding(core: Arc<Core>, client: Client) {
    let pods: Api<full::Pod> = Api::namespaced(client.clone(), &core.template.namespace);
    let seen: Api<Pod> = Api::namespaced(client, &core.template.namespace);
    let config = watcher::Config::default().labels(&pod::holders(&core.template.pool));
    let mut events = watcher::watcher(seen, config).default_backoff().boxed();
    let (mut is_known, mut listed) = (false, Vec::new());
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            event = events.next() => match event {
                None => return,
                Some(Err(error)) => tracing::debug!(%error, "watching pods that hold images"),
                Some(Ok(Event::Init)) => listed.clear(),
                Some(Ok(Event::InitApply(pod))) => {
                    listed.push(pod.name_any());
                    saw(&core, &pod);
                }
                Some(Ok(Event::InitDone)) => {
                    shelf(&core, |shelf| shelf.there_are(&listed));
                    is_known = true;
                }
                Some(Ok(Event::Apply(pod))) => saw(&core, &pod),
                Some(Ok(Event::Delete(pod))) => shelf(&core, |shelf| shelf.gone(&pod.name_any())),
            },
            _ = look.tick() => if is_known && core.is_ready() {
                for step in planned(&core) {
                    take(&core, &pods, step).await;
                }
            },
        }
    }
}

fn shelf<T>(core: &Core, look: impl FnOnce(&mut Shelf) -> T) -> T {
    look(&mut core.shelf.lock().unwrap_or_else(PoisonError::into_inner))
}

fn planned(core: &Core) -> Vec<Step> {
    let now = now();
    let (to_come, held) = (
        core.look(|index| index.images_to_come(now)),
        shelf(core, |shelf| shelf.held.keys().cloned().collect::<Vec<_>>()),
    );
    // The probe of the walls waits with the image that every sandbox has anyway.
    let to_come: Vec<Arc<str>> = to_come
        .into_iter()
        .filter(|image| **image != *core.template.sandboxd_image)
        .collect();
    let wanted = core.look(|index| {
        held.into_iter()
            .filter(|image| index.is_wanted(image))
            .collect::<Vec<_>>()
    });
    shelf(core, |shelf| {
        shelf.plan(&to_come, |image| wanted.iter().any(|wanted| wanted == image), now)
    })
}

/// One holder as the API server has it. One that has ended, that cannot have its image or that another spec made goes.
fn saw(core: &Core, found: &Pod) {
    let name = found.name_any();
    let ours = pod::template_digest(&core.template).unwrap_or_default();
    let Some(image) = pod::image_if_made_from(found, &ours) else {
        return shelf(core, |shelf| shelf.end(&name, now()));
    };
    if found.metadata.deletion_timestamp.is_some() {
        return;
    }
    let status = found.status.clone().unwrap_or_default();
    if matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")) {
        shelf(core, |shelf| shelf.pause(image, now()));
        return shelf(core, |shelf| shelf.end(&name, now()));
    }
    if let Some(failure) = pull_failure(found, &core.template.sandboxd_image).filter(|failure| failure.is_final) {
        tracing::warn!(?failure, image, "pulling an image ahead of its sandboxes");
        core.with(|index| index.pull_failed_ahead(image, &failure, now()));
        return shelf(core, |shelf| shelf.end(&name, now()));
    }
    let node = found.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let is_there = status.phase.as_deref() == Some("Running");
    shelf(core, |shelf| shelf.saw(name, image, node.filter(|_| is_there)));
}

async fn take(core: &Arc<Core>, pods: &Api<full::Pod>, step: Step) {
    match step {
        Step::Release { pod } => release(core, pods, &pod).await,
        Step::Hold { image } => {
            let made = match pod::holder(&core.template, &image) {
                Ok(pod) => pods.create(&PostParams::default(), &pod).await.map(|_| pod.name_any()),
                Err(error) => Err(kube::Error::SerdeError(error)),
            };
            match made {
                Ok(name) => {
                    core.metrics.wrote("create");
                    shelf(core, |shelf| shelf.saw(name, &image, None));
                }
                // An earlier try was heard, or the last one of this name still goes: the watch tells which.
                Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => {}
                Err(error) => {
                    tracing::warn!(%error, image, "making a pod that holds an image");
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
        Err(kube::Error::Api(status)) if status.code == 404 => shelf(core, |shelf| shelf.gone(name)),
        Err(error) => tracing::warn!(%error, name, "deleting a pod that holds an image; it will be tried again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shelf(most: usize, held: &[&str]) -> Shelf {
        let mut shelf = Shelf::new(most);
        for image in held {
            shelf.saw(format!("pod-{image}"), image, Some("node".into()));
        }
        shelf
    }

    fn images(names: &[&str]) -> Vec<Arc<str>> {
        names.iter().map(|name| Arc::from(*name)).collect()
    }

    fn hold(image: &str) -> Step {
        Step::Hold { image: image.into() }
    }

    fn release(image: &str) -> Step {
        Step::Release {
            pod: format!("pod-{image}"),
        }
    }

    #[test]
    fn the_most_urgent_images_are_held_and_never_more_than_there_may_be() {
        let to_come = images(&["a", "b", "c"]);
        assert_eq!(shelf(2, &[]).plan(&to_come, |_| true, 0), [hold("a"), hold("b")]);
        assert_eq!(shelf(2, &["x"]).plan(&to_come, |_| true, 0), [hold("a")]);
        assert_eq!(shelf(2, &["a", "b"]).plan(&to_come, |_| true, 0), []);
        assert_eq!(shelf(0, &[]).plan(&to_come, |_| true, 0), []);
    }

    #[test]
    fn what_nobody_wants_makes_room_at_once_and_goes_after_a_while_otherwise() {
        let is_wanted = |image: &str| image != "old";
        let mut full = shelf(2, &["old", "new"]);
        assert_eq!(full.plan(&images(&["next"]), is_wanted, 0), [release("old")]);
        assert_eq!(
            full.plan(&images(&["next"]), is_wanted, 1),
            [],
            "its place is not free yet"
        );
        full.gone("pod-old");
        assert_eq!(full.plan(&images(&["next"]), is_wanted, 1), [hold("next")]);

        let mut roomy = shelf(3, &["old", "new"]);
        assert_eq!(roomy.plan(&[], is_wanted, 0), []);
        assert_eq!(roomy.plan(&[], is_wanted, LINGER - 1), []);
        assert_eq!(roomy.plan(&[], is_wanted, LINGER), [release("old")]);
        let mut again = shelf(3, &["old", "new"]);
        assert_eq!(again.plan(&[], is_wanted, 0), []);
        assert_eq!(again.plan(&[], |_| true, LINGER), [], "wanted again");
        assert_eq!(again.plan(&[], is_wanted, LINGER + 1), []);
    }

    #[test]
    fn a_deletion_is_ordered_until_the_holder_is_gone() {
        let mut shelf = shelf(2, &["a"]);
        shelf.end("pod-a", 0);
        shelf.end("pod-of-another-spec", 0);
        let both = [release("a"), release("of-another-spec")];
        assert_eq!(shelf.plan(&[], |_| true, 0), both);
        assert_eq!(shelf.plan(&[], |_| true, DELETE_AGAIN - 1), []);
        assert_eq!(shelf.plan(&[], |_| true, DELETE_AGAIN), both);
        shelf.there_are(&[]);
        assert_eq!(shelf.plan(&images(&["a"]), |_| true, 2 * DELETE_AGAIN), [hold("a")]);
    }

    #[test]
    fn an_image_whose_holder_was_ended_from_outside_is_left_alone_for_a_while() {
        let mut shelf = shelf(2, &["a"]);
        shelf.pause("a", 0);
        shelf.gone("pod-a");
        assert_eq!(shelf.plan(&images(&["a", "b"]), |_| true, 1), [hold("b")]);
        assert_eq!(shelf.plan(&images(&["a"]), |_| true, ENDED_PAUSE), [hold("a")]);
    }

    #[test]
    fn a_sandbox_is_made_near_its_image_once_a_node_has_it() {
        let mut shelf = Shelf::new(2);
        shelf.saw("p".into(), "a", None);
        assert_eq!((shelf.node_of("a"), shelf.counts()), (None, (1, 0)));
        shelf.saw("p".into(), "a", Some("node-1".into()));
        assert_eq!(
            (shelf.node_of("a").as_deref(), shelf.counts()),
            (Some("node-1"), (1, 1))
        );
    }
}
