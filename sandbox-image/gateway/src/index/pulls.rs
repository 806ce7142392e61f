//! Images that could not be pulled, and how long each is left alone: longer every time, and forgotten once it could be.
//!
//! sandboxd's own image is one of every pod's. When that cannot be had no task's image is to blame, and none is.

use std::collections::HashMap;

use grpo_sandbox_protocol::{ErrorBody, ErrorCode, Fault};

use crate::pull::{Culprit, PullFailure};

/// First and longest time that an image is left alone, milliseconds.
const FIRST_PAUSE: i64 = 5_000;
const LONGEST_PAUSE: i64 = 300_000;
/// A failure that is over for so long counts as none, milliseconds.
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
        // Pods that were ordered together fail together: that is one failure.
        if now >= self.until {
            self.until = now + (FIRST_PAUSE << self.failures.min(10)).min(LONGEST_PAUSE);
            self.failures += 1;
        }
    }

    fn is_forgotten(&self, now: i64) -> bool {
        self.until.saturating_add(FORGOTTEN_AFTER) <= now
    }

    fn is_over(&self, now: i64) -> bool {
        self.until <= now
    }
}

/// What is known of the images.
#[derive(Default)]
pub struct Pulls {
    tasks: HashMap<String, Trouble>,
    sandboxd: Option<Trouble>,
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
                (self.sandboxd.get_or_insert_default(), what)
            }
        };
        trouble.again(what, now);
    }

    /// A pod of this image started.
    pub fn succeeded(&mut self, image: &str) {
        self.tasks.remove(image);
        self.sandboxd = None;
    }

    /// Why no pod of this image is started now. Without sandboxd's image none is; the caller may ask again, as the task is not at fault.
    pub fn refusal(&self, image: &str, now: i64) -> Option<ErrorBody> {
        let sandboxd = self.sandboxd.as_ref().map(|trouble| (ErrorCode::Unavailable, trouble));
        let task = self
            .tasks
            .get(image)
            .map(|trouble| (ErrorCode::ImageUnavailable, trouble));
        let mut troubles = sandboxd.into_iter().chain(task);
        let (code, trouble) = troubles.find(|(_, trouble)| !trouble.is_over(now))?;
        Some(ErrorBody::new(code, Fault::Infrastructure, &trouble.what))
    }

    /// When the next image may be tried again.
    pub fn next_try(&self, now: i64) -> Option<i64> {
        let troubles = self.tasks.values().chain(&self.sandboxd);
        troubles.filter(|trouble| !trouble.is_over(now)).map(|t| t.until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(culprit: Culprit) -> PullFailure {
        PullFailure {
            culprit,
            is_final: true,
            message: "not found".into(),
        }
    }

    #[test]
    fn an_image_is_left_alone_for_longer_every_time_and_forgiven_once_it_could_be_had() {
        let mut pulls = Pulls::default();
        let mut now = 0;
        for pause in [5, 10, 20, 40, 80, 160, 300, 300] {
            pulls.failed("x", &failure(Culprit::Task), now);
            pulls.failed("x", &failure(Culprit::Task), now + 1);
            assert_eq!(
                pulls.next_try(now),
                Some(now + pause * 1000),
                "pods that fail together are one failure"
            );
            now += pause * 1000;
            assert!(pulls.refusal("x", now - 1).is_some());
            assert_eq!(pulls.refusal("x", now), None);
        }
        pulls.succeeded("x");
        pulls.failed("x", &failure(Culprit::Task), now);
        assert_eq!(pulls.next_try(now), Some(now + 5_000));
    }

    #[test]
    fn sandboxds_image_is_named_and_no_task_is_blamed_for_it() {
        let mut pulls = Pulls::default();
        let image = "grpo.dev/sandboxd:1".to_owned();
        pulls.failed("x", &failure(Culprit::Sandboxd { image }), 0);
        for task in ["x", "y"] {
            let error = pulls.refusal(task, 1).unwrap();
            assert_eq!(error.code, ErrorCode::Unavailable);
            assert!(error.message.contains("sandboxd, grpo.dev/sandboxd:1,"), "{error}");
        }
        pulls.succeeded("y");
        assert_eq!(pulls.refusal("x", 1), None);
    }
}
