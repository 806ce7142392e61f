//! Images with failed pulls, each with a back-off that doubles. A successful start clears it; until then one pod at a
//! time tries the image.
//!
//! Every pod has sandboxd's own image as a volume, and the pool's agent image if there is one. If a pull of one of
//! these fails, no task's image is to blame.

use std::collections::HashMap;

use grpo_sandbox_protocol::{ErrorBody, ErrorCode, FaultOrigin, ImageTrouble};

use crate::pull::{Culprit, PullFailure};

/// First and longest back-off of an image, milliseconds.
const FIRST_PAUSE: i64 = 5_000;
const LONGEST_PAUSE: i64 = 300_000;
/// A failure this long ago does not count, milliseconds.
const FORGOTTEN_AFTER: i64 = 600_000;

#[derive(Default)]
struct Trouble {
    until: i64,
    failures: u32,
    what: String,
}

impl Trouble {
    fn again(&mut self, what: String, now: i64) {
        self.what = what;
        if self.is_forgotten(now) {
            self.failures = 0;
        }
        // Pods that were ordered together fail together; this counts as one failure.
        if now >= self.until {
            self.until = now + (FIRST_PAUSE << self.failures.min(10)).min(LONGEST_PAUSE);
            self.failures += 1;
        }
    }

    fn is_forgotten(&self, now: i64) -> bool {
        self.until.saturating_add(FORGOTTEN_AFTER) <= now
    }

    fn shown(&self, image: &str, code: ErrorCode) -> ImageTrouble {
        ImageTrouble {
            image: image.to_owned(),
            code,
            message: self.what.clone(),
            failures: self.failures,
            until: self.until,
        }
    }

    fn is_over(&self, now: i64) -> bool {
        self.until <= now
    }
}

/// The failed pulls of all images.
#[derive(Default)]
pub struct Pulls {
    tasks: HashMap<String, Trouble>,
    /// An image that every pod has as a volume.
    volume: Option<(String, Trouble)>,
}

/// The trouble of the volumes' images. If both failed, the report names the later one.
fn volume_trouble<'a>(volume: &'a mut Option<(String, Trouble)>, image: &str) -> &'a mut Trouble {
    let (told, trouble) = volume.get_or_insert_with(Default::default);
    image.clone_into(told);
    trouble
}

impl Pulls {
    /// A pod for this image could not be started.
    pub fn failed(&mut self, image: &str, failure: &PullFailure, now: i64) {
        self.tasks.retain(|_, trouble| !trouble.is_forgotten(now));
        let (trouble, what) = match &failure.culprit {
            Culprit::Task => {
                let what = format!(
                    "image {image} cannot be pulled: {}; correct the task's image or the pool's imageRewrites",
                    failure.message
                );
                (self.tasks.entry(image.to_owned()).or_default(), what)
            }
            Culprit::Sandboxd { image } => {
                let what = format!(
                    "the image of sandboxd, {image}, cannot be pulled: {}; no sandbox can start until it can; correct the operator's --sandboxd-image",
                    failure.message
                );
                (volume_trouble(&mut self.volume, image), what)
            }
            Culprit::Agent { image } => {
                let what = format!(
                    "the image of the agent, {image}, cannot be pulled: {}; no sandbox can start until it can; correct the run's agent.cli.image \
                     or the pool's agentImage",
                    failure.message
                );
                (volume_trouble(&mut self.volume, image), what)
            }
        };
        trouble.again(what, now);
    }

    /// A pod of this image has started.
    pub fn succeeded(&mut self, image: &str) {
        self.tasks.remove(image);
        self.volume = None;
    }

    /// Why no pod of this image is started now. If a volume's image fails, no pod starts; the caller may retry, because
    /// the task is not at fault.
    pub fn refusal(&self, image: &str, now: i64) -> Option<ErrorBody> {
        let volume = self.volume.as_ref();
        let volume = volume.map(|(_, trouble)| (ErrorCode::Unavailable, trouble));
        let task = self
            .tasks
            .get(image)
            .map(|trouble| (ErrorCode::ImageUnavailable, trouble));
        let mut troubles = volume.into_iter().chain(task);
        let (code, trouble) = troubles.find(|(_, trouble)| !trouble.is_over(now))?;
        Some(ErrorBody::new(code, FaultOrigin::Infrastructure, &trouble.what))
    }

    /// Whether the image failed and no pod of it has started since: then one pod at a time tries it, when it may be
    /// tried.
    pub fn is_suspect(&self, image: &str, now: i64) -> bool {
        let task = self.tasks.get(image);
        task.is_some_and(|trouble| !trouble.is_forgotten(now)) || self.a_volume_is_suspect(now)
    }

    /// As [`Self::is_suspect`], for the volumes' images, which every pod has.
    pub fn a_volume_is_suspect(&self, now: i64) -> bool {
        let trouble = self.volume.as_ref();
        trouble.is_some_and(|(_, trouble)| !trouble.is_forgotten(now))
    }

    /// The images in back-off.
    pub fn troubles(&self, now: i64) -> Vec<ImageTrouble> {
        let volume = self.volume.iter().map(|(image, t)| (image, t, ErrorCode::Unavailable));
        let tasks = self
            .tasks
            .iter()
            .map(|(image, t)| (image, t, ErrorCode::ImageUnavailable));
        let troubles = volume.chain(tasks).filter(|(_, trouble, _)| !trouble.is_over(now));
        let mut shown: Vec<ImageTrouble> = troubles.map(|(image, t, code)| t.shown(image, code)).collect();
        shown.sort_by(|a, b| a.image.cmp(&b.image));
        shown
    }

    /// When the next back-off ends.
    pub fn next_try(&self, now: i64) -> Option<i64> {
        let volume = self.volume.as_ref().map(|(_, trouble)| trouble);
        let troubles = self.tasks.values().chain(volume);
        troubles.filter(|trouble| !trouble.is_over(now)).map(|t| t.until).min()
    }
}

#[cfg(test)]
mod tests;
