//! The image prefetcher: makes nodes pull and keep images before the pool has room for their sandboxes.
//!
//! ```text
//! images wanted next ──► [`ImagePrefetcher::plan`] ──► one prefetch pod per image ──► a node has the image
//!     ──► the sandbox is made near it
//! ```
//!
//! A large task image takes minutes to pull. While every place of the pool is taken, no sandbox pulls the next images,
//! so each group of episodes would begin with a wait. A prefetch pod costs 32 MiB and no place. Only the kubelet may
//! remove images from a node, and it removes images that no pod uses. So `warm.images` bounds how many images are kept
//! from it, and the kubelet may remove images that no run wants any more.
//!
//! The name of a prefetch pod follows from its image, so that late events, another gateway or a lost answer never make
//! a second one.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// How long an unwanted image is kept, in milliseconds: demand comes in waves.
const LINGER: i64 = 60_000;
/// Back-off of an image after its prefetch pod was ended from outside, milliseconds: its node may have no room on its
/// disk.
const ENDED_PAUSE: i64 = 300_000;
/// Pause before a deletion is ordered again, milliseconds, until the prefetch pod is seen to be gone.
const DELETE_AGAIN: i64 = 10_000;

/// One image and its prefetch pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PrefetchPod {
    pod: String,
    /// The node that has the image. `None` until the pull is done.
    node: Option<String>,
    unwanted_since: Option<i64>,
}

/// The next step for one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Prefetch { image: String },
    Release { pod: String },
}

/// The images that are prefetched.
#[derive(Default)]
pub struct ImagePrefetcher {
    most: usize,
    /// By image.
    prefetched: BTreeMap<String, PrefetchPod>,
    /// Prefetch pods in removal, and when their deletion is ordered next.
    going: BTreeMap<String, i64>,
    /// Images in back-off, and its end.
    paused: HashMap<String, i64>,
}

impl ImagePrefetcher {
    pub fn new(most: usize) -> Self {
        Self {
            most,
            ..Self::default()
        }
    }

    /// The steps for the images that are wanted now. `to_come`: images that are wanted and have no pod, the most urgent
    /// first. A wanted image is never released for another one, which would only trade their places.
    pub fn plan(&mut self, to_come: &[Arc<str>], is_wanted: impl Fn(&str) -> bool, now: i64) -> Vec<Step> {
        self.paused.retain(|_, until| *until > now);
        for (image, held) in &mut self.prefetched {
            match is_wanted(image) {
                true => held.unwanted_since = None,
                false => drop(held.unwanted_since.get_or_insert(now)),
            }
        }
        let missing: Vec<&Arc<str>> = to_come
            .iter()
            .filter(|image| !self.prefetched.contains_key(&***image) && !self.paused.contains_key(&***image))
            .take(self.most)
            .collect();
        let stay = self
            .prefetched
            .values()
            .filter(|held| !self.going.contains_key(&held.pod))
            .count();
        let over = (stay + missing.len()).saturating_sub(self.most);
        let mut unwanted: Vec<(i64, &str)> = self
            .prefetched
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
        let room = self.most.saturating_sub(self.prefetched.len());
        let mut steps = Vec::new();
        for (pod, again_at) in self.going.iter_mut().filter(|(_, at)| **at <= now) {
            *again_at = now + DELETE_AGAIN;
            steps.push(Step::Release { pod: pod.clone() });
        }
        // A place is free when its prefetch pod is seen to be gone.
        steps.extend(missing.into_iter().take(room).map(|image| Step::Prefetch {
            image: image.to_string(),
        }));
        steps
    }

    /// Ends a prefetch pod.
    pub(crate) fn end(&mut self, pod: &str, now: i64) {
        self.going.entry(pod.to_owned()).or_insert(now);
    }

    /// A prefetch pod exists. `node`: the node that has the image, if one has it.
    pub(crate) fn saw(&mut self, pod: String, image: &str, node: Option<String>) {
        let held = self.prefetched.entry(image.to_owned()).or_default();
        held.pod = pod;
        if node.is_some() {
            held.node = node;
        }
    }

    /// A prefetch pod is gone.
    pub(crate) fn gone(&mut self, pod: &str) {
        self.prefetched.retain(|_, held| held.pod != pod);
        self.going.remove(pod);
    }

    /// The complete list of existing prefetch pods.
    pub(crate) fn there_are(&mut self, listed: &[String]) {
        self.prefetched.retain(|_, held| listed.contains(&held.pod));
        self.going.retain(|pod, _| listed.contains(pod));
    }

    pub(crate) fn pause(&mut self, image: &str, now: i64) {
        self.paused.insert(image.to_owned(), now + ENDED_PAUSE);
    }

    /// The images that are prefetched.
    pub(crate) fn images(&self) -> Vec<String> {
        self.prefetched.keys().cloned().collect()
    }

    /// A node that has the image.
    pub fn node_of(&self, image: &str) -> Option<String> {
        self.prefetched.get(image)?.node.clone()
    }

    /// Number of prefetched images, and how many of them a node has.
    pub fn counts(&self) -> (usize, usize) {
        (
            self.prefetched.len(),
            self.prefetched.values().filter(|held| held.node.is_some()).count(),
        )
    }
}

#[cfg(test)]
mod tests;
