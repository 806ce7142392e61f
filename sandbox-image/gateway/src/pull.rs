//! Images that the kubelet cannot pull, from a pod's status.
//!
//! A sandbox has the task's image, and as volumes sandboxd's image and possibly the agent's. The kubelet reports the
//! failure of any of them at the container, so only the message tells which one failed.

use crate::pod::Template;
use crate::slim_pod::SlimPod;

/// The owner of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Culprit {
    Task,
    Sandboxd { image: String },
    Agent { image: String },
}

/// The kubelet's report about a failed pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullFailure {
    pub culprit: Culprit,
    /// The kubelet has given up for now, or will never try. Otherwise it retries soon.
    pub is_final: bool,
    pub message: String,
}

/// The images that every sandbox has as volumes besides the task's, each with its owner.
pub fn volumes(template: &Template) -> impl Iterator<Item = Culprit> {
    let agent = template.spec.agent_image.clone();
    let sandboxd = Culprit::Sandboxd {
        image: template.sandboxd_image.clone(),
    };
    std::iter::once(sandboxd).chain(agent.map(|image| Culprit::Agent { image }))
}

/// Why an image of the pod cannot be pulled, if the kubelet has tried. `volumes`: the images that every pod has besides
/// the task's, each with its owner.
pub fn pull_failure(pod: &SlimPod, volumes: impl IntoIterator<Item = Culprit>) -> Option<PullFailure> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let (waiting, is_final) = statuses.iter().find_map(|status| {
        let waiting = status.state.as_ref()?.waiting.as_ref()?;
        Some((waiting, is_final(waiting.reason.as_deref()?)?))
    })?;
    let reason = waiting.reason.clone().unwrap_or_default();
    let message = waiting.message.clone().filter(|message| !message.is_empty());
    let message = message.unwrap_or(reason);
    let length = |image: &str| mentions(&message, image).then_some(image.len());
    let of_volume = |volume: Culprit| match &volume {
        Culprit::Task => None,
        Culprit::Sandboxd { image } | Culprit::Agent { image } => Some((length(image)?, volume)),
    };
    let of_task = task_images(pod).filter_map(|image| Some((length(image)?, Culprit::Task)));
    // If one name is the end of another, the longer match wins; of two equal names, the volume's.
    let named = of_task.chain(volumes.into_iter().filter_map(of_volume));
    let culprit = named.max_by_key(|(length, _)| *length).map(|(_, culprit)| culprit);
    Some(PullFailure {
        culprit: culprit.unwrap_or(Culprit::Task),
        is_final,
        message,
    })
}

/// `None` if the reason is not that of a failed pull; otherwise whether the kubelet has given up for now.
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

/// Whether the message names the image, perhaps with its full name: `docker.io/library/a:1` is `a:1`, but `ba:1` and
/// `a:12` are not.
fn mentions(message: &str, image: &str) -> bool {
    let in_a_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    message.match_indices(image).any(|(at, found)| {
        let before = message[..at].chars().next_back();
        let after = message[at + found.len()..].chars().next();
        !before.is_some_and(in_a_name) && !after.is_some_and(|c| in_a_name(c) || c == '/')
    })
}

#[cfg(test)]
mod tests;
