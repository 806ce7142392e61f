//! Images that the kubelet cannot pull, as a pod's status tells.
//!
//! A sandbox has two images: the task's, and sandboxd's, which is a volume. The kubelet reports the failure of either
//! at the container, so which one it was is in the words alone.

use crate::slim_pod::SlimPod;

/// Whose image it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Culprit {
    Task,
    Sandboxd { image: String },
}

/// What the kubelet says about a pull that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullFailure {
    pub culprit: Culprit,
    /// It has given up for now, or will never try. Otherwise it tries once more soon.
    pub is_final: bool,
    pub message: String,
}

/// Why an image of the pod cannot be had, if the kubelet has tried.
pub fn pull_failure(pod: &SlimPod, sandboxd: &str) -> Option<PullFailure> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let (waiting, is_final) = statuses.iter().find_map(|status| {
        let waiting = status.state.as_ref()?.waiting.as_ref()?;
        Some((waiting, is_final(waiting.reason.as_deref()?)?))
    })?;
    let reason = waiting.reason.clone().unwrap_or_default();
    let message = waiting.message.clone().filter(|message| !message.is_empty());
    let message = message.unwrap_or(reason);
    // Where one name ends with the other, the longer one that fits is meant.
    let is_rather_the_tasks = |task: &str| task.len() > sandboxd.len() && mentions(&message, task);
    let is_of_sandboxd = mentions(&message, sandboxd) && !task_images(pod).any(is_rather_the_tasks);
    let culprit = match is_of_sandboxd {
        true => Culprit::Sandboxd {
            image: sandboxd.to_owned(),
        },
        false => Culprit::Task,
    };
    Some(PullFailure {
        culprit,
        is_final,
        message,
    })
}

/// Whether the reason is that of a failed pull, and whether the kubelet has done what it can for now.
fn is_final(reason: &str) -> Option<bool> {
    match reason {
        "ErrImagePull" | "RegistryUnavailable" => Some(false),
        "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull" | "SignatureValidationFailed" => Some(true),
        _ => None,
    }
}

fn task_images(pod: &SlimPod) -> impl Iterator<Item = &str> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers.filter_map(|container| container.image.as_deref())
}

/// Whether the message names the image, perhaps in full where the image is given in short: `docker.io/library/a:1` is
/// `a:1`, but `ba:1` and `a:12` are not.
fn mentions(message: &str, image: &str) -> bool {
    let in_a_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    message.match_indices(image).any(|(at, found)| {
        let before = message[..at].chars().next_back();
        let after = message[at + found.len()..].chars().next();
        !before.is_some_and(in_a_name) && !after.is_some_and(|c| in_a_name(c) || c == '/')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SANDBOXD: &str = "grpo.dev/sandboxd:dev";

    fn told(image: &str, waiting: &str) -> Option<PullFailure> {
        let text = format!(
            "metadata: {{name: s}}\nspec: {{containers: [{{name: sandbox, image: '{image}'}}]}}\nstatus:\n  containerStatuses:\n  \
             - {{name: sandbox, image: i, imageID: '', ready: false, restartCount: 0, state: {{waiting: {waiting}}}}}"
        );
        pull_failure(&serde_yaml_ng::from_str(&text).unwrap(), SANDBOXD)
    }

    #[test]
    fn the_first_failure_is_not_the_last_word_and_a_backoff_is() {
        for (reason, is_final) in [
            ("ErrImagePull", Some(false)),
            ("ImagePullBackOff", Some(true)),
            ("InvalidImageName", Some(true)),
            ("ErrImageNeverPull", Some(true)),
            ("ContainerCreating", None),
            ("CreateContainerError", None),
        ] {
            let failure = told("task:1", &format!("{{reason: {reason}}}"));
            assert_eq!(failure.map(|failure| failure.is_final), is_final, "{reason}");
        }
    }

    #[test]
    fn the_image_that_the_message_names_is_the_one_to_blame() {
        let backoff = |image: &str| {
            format!(
                "{{reason: ImagePullBackOff, message: 'Back-off pulling image \"{image}\": ErrImagePull: not found'}}"
            )
        };
        let sandboxd = Culprit::Sandboxd {
            image: SANDBOXD.to_owned(),
        };
        for (task, named, culprit) in [
            ("task:1", "task:1", Culprit::Task),
            ("task:1", SANDBOXD, sandboxd.clone()),
            // One name within another.
            ("sandboxd:dev", SANDBOXD, sandboxd.clone()),
            ("sandboxd:dev", "docker.io/library/sandboxd:dev", Culprit::Task),
            ("boxd:dev", SANDBOXD, sandboxd),
            (
                "mirror/grpo.dev/sandboxd:dev",
                "mirror/grpo.dev/sandboxd:dev",
                Culprit::Task,
            ),
            ("grpo.dev/sandboxd:dev-1", "grpo.dev/sandboxd:dev-1", Culprit::Task),
        ] {
            let failure = told(task, &backoff(named)).unwrap();
            assert_eq!(failure.culprit, culprit, "{task}: {named}");
        }
    }

    #[test]
    fn a_short_name_is_known_in_its_full_form() {
        let full = "failed to pull and unpack image \"docker.io/library/a:1\": failed to resolve";
        assert!(mentions(full, "a:1"));
        assert!(mentions("pulling image \"docker.io/library/a:latest\"", "a"));
        assert!(!mentions(full, "a:12"));
        assert!(!mentions(full, "ocker.io/library/a:1"));
    }
}
