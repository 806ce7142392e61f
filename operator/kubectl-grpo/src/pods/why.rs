//! Explains why a pod does not run, in the words of scheduler and kubelet.

use k8s_openapi::api::core::v1::Pod;

pub fn is_running(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
}

/// Why the pod can never run, or `None`.
pub fn hopeless(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let ended = status.container_statuses.iter().flatten().find_map(|container| {
        let ended = container.state.as_ref()?.terminated.as_ref()?;
        let words = ended.message.as_deref().map(str::trim).unwrap_or("it said nothing");
        Some(format!("it ended with exit code {}: {words}", ended.exit_code))
    });
    let failed = matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"));
    let image = what_it_waits_for(pod).filter(|why| why.contains("ImagePull") || why.contains("InvalidImageName"));
    ended
        .or_else(|| failed.then(|| status.message.clone().unwrap_or_else(|| "it failed".into())))
        .or(image)
}

/// The cause of the wait, in the scheduler's or the kubelet's words.
pub fn what_it_waits_for(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let container = status.container_statuses.iter().flatten().find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref().unwrap_or("Waiting");
        Some(format!("{reason}: {}", waiting.message.as_deref().unwrap_or_default()))
    });
    let scheduled = status.conditions.iter().flatten().find_map(|condition| {
        (condition.type_ == "PodScheduled" && condition.status == "False").then(|| condition.message.clone())?
    });
    container.or(scheduled)
}

#[cfg(test)]
mod tests;
