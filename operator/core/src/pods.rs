//! What a pod's status means, in the words of a person who wants to know why a run is not moving.

use grpo_contracts::exit::{HUNG_CODE, Hang};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodStatus};
use kube::ResourceExt;

use crate::names::{self, role};

/// Of what a failed process wrote last, so many lines are shown.
const LAST_LINES: usize = 5;

/// The reason by which a pod behind a scheduling gate waits.
pub const GATED: &str = "SchedulingGated";

/// What matters of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFacts {
    pub name: String,
    /// Which group it is in, where its role has several: a replica of an engine.
    pub group: u32,
    pub attempt: u32,
    /// Which of its group's pods it is.
    pub rank: u32,
    /// It is being deleted.
    pub deleting: bool,
    /// When it is being deleted: by then its processes have ended, unless its node is lost.
    pub gone_by: Option<Timestamp>,
    /// The cluster takes it away, or did: why, in words.
    pub taken: Option<String>,
    pub ip: Option<String>,
    /// The node it was put on.
    pub node_name: Option<String>,
    /// When the last of its containers started, if all run.
    pub started_at: Option<Timestamp>,
    /// It is ready, or was and is not any more.
    pub has_been_ready: bool,
    pub state: PodState,
    /// Its process ended, and containers that somebody put beside it still run.
    pub outlived: bool,
    /// What it was made from, when it says so.
    pub template: Option<String>,
}

/// How far a pod is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodState {
    /// Not scheduled, images not there, containers not started or waiting to be started again.
    Waiting { reason: String, message: String },
    /// All containers run.
    Running { ready: bool },
    /// Its process ended with exit code 0.
    Succeeded,
    /// It ended otherwise.
    Failed(Failure),
}

/// How a pod failed.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Failure {
    pub exit_code: Option<i32>,
    /// Ended by the cluster (preemption, drain, node loss), not by what ran in it.
    pub disrupted: bool,
    /// Pod, image, exit code and last words, for people.
    pub message: String,
    /// What the process wrote as its termination message.
    pub last_words: Option<String>,
    /// When the process ended, if one did.
    pub at: Option<Timestamp>,
}

impl PodFacts {
    pub fn of(pod: &Pod) -> Self {
        let number = |label: &str| {
            pod.labels()
                .get(label)
                .and_then(|value| value.parse().ok())
                .unwrap_or(0)
        };
        Self {
            name: pod.name_any(),
            group: number(names::GROUP),
            attempt: number(names::ATTEMPT),
            rank: number(names::RANK),
            deleting: pod.metadata.deletion_timestamp.is_some(),
            gone_by: pod.metadata.deletion_timestamp.as_ref().map(|time| time.0),
            taken: pod.status.as_ref().and_then(taken),
            ip: pod.status.as_ref().and_then(|status| status.pod_ip.clone()),
            node_name: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
            started_at: pod.status.as_ref().and_then(started_at),
            has_been_ready: pod.status.as_ref().is_some_and(has_been_ready),
            state: state(&pod.name_any(), own_container(pod), pod.status.as_ref()),
            outlived: is_outlived(pod),
            template: pod.annotations().get(names::TEMPLATE).cloned(),
        }
    }

    /// A pod that has been made but not been seen yet.
    pub fn just_made(name: String, attempt: u32, rank: u32) -> Self {
        Self {
            state: PodState::Waiting {
                reason: "Created".into(),
                message: format!("pod {name} has just been made"),
            },
            name,
            group: 0,
            attempt,
            rank,
            deleting: false,
            gone_by: None,
            taken: None,
            ip: None,
            node_name: None,
            started_at: None,
            has_been_ready: false,
            outlived: false,
            template: None,
        }
    }

    /// A process ran in it.
    pub fn has_started(&self) -> bool {
        match &self.state {
            PodState::Waiting { .. } => self.has_been_ready,
            PodState::Running { .. } | PodState::Succeeded => true,
            PodState::Failed(failure) => failure.exit_code.is_some(),
        }
    }

    /// It runs and was ready, but is not any more: as its container is ready until it ends, its node does not answer.
    pub fn is_out_of_reach(&self) -> bool {
        self.has_been_ready && self.state == PodState::Running { ready: false }
    }

    pub fn is_finished(&self) -> bool {
        matches!(self.state, PodState::Succeeded | PodState::Failed(_))
    }

    /// It waits behind a scheduling gate, ours or Kueue's.
    pub fn is_gated(&self) -> bool {
        matches!(&self.state, PodState::Waiting { reason, .. } if reason == GATED)
    }

    pub fn is_ready(&self) -> bool {
        !self.deleting && self.state == PodState::Running { ready: true }
    }
}

impl Failure {
    /// What a rank that waited too long for others says of them.
    pub fn hang(&self) -> Option<Hang> {
        said_of_a_hang(self.exit_code?, self.last_words.as_deref()?)
    }
}

fn said_of_a_hang(exit_code: i32, words: &str) -> Option<Hang> {
    if exit_code != HUNG_CODE {
        return None;
    }
    serde_json::from_str(words.trim()).ok()
}

/// None while a container does not run.
fn started_at(status: &PodStatus) -> Option<Timestamp> {
    let containers = status.container_statuses.as_ref()?;
    let starts: Option<Vec<Timestamp>> = containers
        .iter()
        .map(|container| Some(container.state.as_ref()?.running.as_ref()?.started_at.as_ref()?.0))
        .collect();
    starts?.into_iter().max()
}

/// A pod that never was ready has been unready since before its containers started.
fn has_been_ready(status: &PodStatus) -> bool {
    let ready = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "Ready");
    let Some(ready) = ready else { return false };
    let changed = ready.last_transition_time.as_ref().map(|time| time.0);
    ready.status == "True" || started_at(status).is_some_and(|started| changed > Some(started))
}

/// The container whose end is the pod's, in pods that are not started again: service meshes and others put theirs
/// beside it, which do not end. It is called as the pod's role.
fn own_container(pod: &Pod) -> Option<&str> {
    let role = pod.labels().get(names::ROLE)?.as_str();
    [role::DRIVER, role::TRAINER].contains(&role).then_some(role)
}

/// How the pod's own container ended, if it did.
fn own_end<'a>(own: Option<&str>, status: &'a PodStatus) -> Option<&'a ContainerStateTerminated> {
    let mut containers = status.container_statuses.iter().flatten();
    let container = containers.find(|container| Some(container.name.as_str()) == own)?;
    container.state.as_ref()?.terminated.as_ref()
}

/// A container beside the pod's own still runs. Where none does, the kubelet has yet to write how the pod ended: its
/// next status has the phase, and what evicted the pod.
fn another_runs(own: Option<&str>, status: &PodStatus) -> bool {
    let mut others = status.container_statuses.iter().flatten();
    others.any(|container| {
        let runs = container.state.as_ref().is_some_and(|state| state.running.is_some());
        runs && Some(container.name.as_str()) != own
    })
}

fn is_outlived(pod: &Pod) -> bool {
    let (own, status) = (own_container(pod), pod.status.as_ref());
    let running = status.filter(|status| status.phase.as_deref() == Some("Running"));
    running.is_some_and(|status| own_end(own, status).is_some() && another_runs(own, status))
}

fn state(name: &str, own: Option<&str>, status: Option<&PodStatus>) -> PodState {
    let Some(status) = status else {
        return waiting("Created", format!("pod {name} has not been seen by the scheduler"));
    };
    let ended = own_end(own, status).map(|ended| ended.exit_code);
    match (status.phase.as_deref(), ended) {
        (Some("Running"), Some(_)) if !another_runs(own, status) => {}
        (_, Some(0)) => return PodState::Succeeded,
        (Some("Running"), Some(_)) => return PodState::Failed(failure(name, own, status)),
        _ => {}
    }
    match status.phase.as_deref() {
        Some("Succeeded") => PodState::Succeeded,
        Some("Failed") => PodState::Failed(failure(name, own, status)),
        Some("Running") => match blocked_container(name, status) {
            Some(blocked) => blocked,
            None => PodState::Running {
                ready: condition(status, "Ready").is_some_and(|(holds, _, _)| holds),
            },
        },
        _ => blocked_container(name, status).unwrap_or_else(|| unscheduled(name, status)),
    }
}

/// Which volume or image it is only events tell.
fn still_starting(name: &str) -> String {
    format!("pod {name} waits for its volumes and images (`kubectl describe pod {name}` tells which)")
}

fn waiting(reason: &str, message: String) -> PodState {
    PodState::Waiting {
        reason: reason.to_owned(),
        message,
    }
}

/// Status, reason and message of a pod condition.
fn condition<'a>(status: &'a PodStatus, type_: &str) -> Option<(bool, &'a str, &'a str)> {
    status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == type_)
        .map(|condition| {
            (
                condition.status == "True",
                condition.reason.as_deref().unwrap_or_default(),
                condition.message.as_deref().unwrap_or_default(),
            )
        })
}

fn unscheduled(name: &str, status: &PodStatus) -> PodState {
    match condition(status, "PodScheduled") {
        Some((false, GATED, _)) => waiting(GATED, format!("pod {name} waits until its whole run is admitted")),
        Some((false, reason, message)) => waiting(reason, format!("pod {name} cannot be scheduled: {message}")),
        Some((true, ..)) => waiting("Starting", still_starting(name)),
        None => waiting("Created", format!("pod {name} waits for the scheduler")),
    }
}

/// The first container that cannot start, and why.
fn blocked_container(name: &str, status: &PodStatus) -> Option<PodState> {
    let containers = || {
        status
            .init_container_statuses
            .iter()
            .flatten()
            .chain(status.container_statuses.iter().flatten())
    };
    let blocked = containers().find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref().unwrap_or("Waiting");
        Some((container, reason, waiting.message.as_deref().unwrap_or_default()))
    })?;
    let (container, reason, said) = blocked;
    let message = match reason {
        "ContainerCreating" | "PodInitializing" => still_starting(name),
        "ErrImagePull"
        | "ImagePullBackOff"
        | "InvalidImageName"
        | "ErrImageNeverPull"
        | "ImageInspectError"
        | "RegistryUnavailable" => format!(
            "pod {name}, container {} (image {}) cannot start for want of an image: {said}. Correct the name, or bring the image to where the node can pull it",
            container.name, container.image
        ),
        "CrashLoopBackOff" => format!(
            "pod {name}, container {} (image {}) keeps ending: {}",
            container.name,
            container.image,
            last_end(container).unwrap_or(said.to_owned())
        ),
        _ => format!(
            "pod {name}, container {} cannot start ({reason}): {said}",
            container.name
        ),
    };
    Some(waiting(reason, message))
}

fn last_end(container: &ContainerStatus) -> Option<String> {
    let ended = container.last_state.as_ref()?.terminated.as_ref()?;
    Some(end_in_words(ended))
}

fn end_in_words(ended: &ContainerStateTerminated) -> String {
    let reason = match ended.reason.as_deref() {
        None | Some("Error" | "Completed") => String::new(),
        Some(reason) => format!(" ({reason})"),
    };
    let words = ended
        .message
        .as_deref()
        .map(|said| said_of_a_hang(ended.exit_code, said).map_or_else(|| last_lines(said), |hang| hang.message))
        .filter(|words| !words.is_empty());
    let words = words.map(|words| format!(": {words}")).unwrap_or_default();
    format!("exit code {}{reason}{words}", ended.exit_code)
}

/// The last lines of a text in one, so that they fit into a sentence.
fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join(" | ")
}

/// Preemption, drain, node loss: `was taken away by the cluster (PreemptionByScheduler): …`.
fn taken(status: &PodStatus) -> Option<String> {
    let (_, reason, message) = condition(status, "DisruptionTarget").filter(|(holds, ..)| *holds)?;
    Some(format!("was taken away by the cluster ({reason}): {message}"))
}

fn failure(name: &str, own: Option<&str>, status: &PodStatus) -> Failure {
    let taken = taken(status);
    let lost = matches!(
        status.reason.as_deref(),
        Some("NodeLost" | "NodeShutdown" | "Preempting" | "Shutdown" | "Terminated" | "NodeAffinity")
    );
    let containers = status.container_statuses.iter().flatten();
    let mut ends = containers.filter_map(|container| {
        let state: &ContainerState = container.state.as_ref()?;
        let ended = state.terminated.as_ref().filter(|ended| ended.exit_code != 0)?;
        Some((container, ended))
    });
    let is_own = |container: &ContainerStatus| Some(container.name.as_str()) == own;
    let ended = ends
        .clone()
        .find(|(container, _)| is_own(container))
        .or_else(|| ends.next());
    let cause = match (&taken, &status.reason, &status.message) {
        (Some(taken), ..) => format!(" {taken}"),
        (None, Some(reason), message) => format!(" failed ({reason}): {}", message.as_deref().unwrap_or_default()),
        (None, None, _) => String::new(),
    };
    let end = ended.map_or_else(
        || {
            if cause.is_empty() {
                " failed".to_owned()
            } else {
                String::new()
            }
        },
        |(container, ended)| format!(" (image {}) ended with {}", container.image, end_in_words(ended)),
    );
    Failure {
        exit_code: ended.map(|(_, ended)| ended.exit_code),
        disrupted: taken.is_some() || lost,
        message: format!("pod {name}{cause}{end}"),
        last_words: ended.and_then(|(_, ended)| ended.message.clone()),
        at: ended.and_then(|(_, ended)| ended.finished_at.as_ref().map(|time| time.0)),
    }
}

#[cfg(test)]
mod tests;
