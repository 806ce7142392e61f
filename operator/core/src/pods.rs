//! Turns a pod's status into words that explain why a run does not progress.

use grpo_contracts::exit::{HUNG_CODE, Hang};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodStatus};
use kube::ResourceExt;

use crate::names::{self, role};

/// Number of lines shown from the end of a failed process's output.
const LAST_LINES: usize = 5;

/// Reason of a pod that waits behind a scheduling gate.
pub const GATED: &str = "SchedulingGated";

/// Reasons of pods that a kubelet refused to start: devices or resources of the node were not free although
/// the scheduler counted them, or the node was short of something else.
const REFUSALS: [&str; 6] = [
    "UnexpectedAdmissionError",
    "TopologyAffinityError",
    "SMTAlignmentError",
    "NodePorts",
    "TaintToleration",
    "InvalidNodeInfo",
];
/// The kubelet appends the resource: `OutOfcpu`, `OutOfpods`, `OutOfnvidia.com/gpu`.
const OUT_OF: &str = "OutOf";
/// The message of a pod refused by a node under pressure. Its reason is `Evicted`, as for a pod over its own limits.
const NODE_CONDITION: &str = "The node had condition";

/// The facts about one pod that decisions need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFacts {
    pub name: String,
    /// The group, if the role has several: a replica of an engine.
    pub group: u32,
    pub attempt: u32,
    /// The pod's index within its group.
    pub rank: u32,
    /// It is being deleted.
    pub deleting: bool,
    /// The deadline of the deletion: by then its processes have ended, unless the node is lost.
    pub gone_by: Option<Timestamp>,
    /// The cluster removes the pod, or removed it: the reason, in words.
    pub taken: Option<String>,
    pub ip: Option<String>,
    /// The node that it is bound to.
    pub node_name: Option<String>,
    /// Start of the last container, if all containers run.
    pub started_at: Option<Timestamp>,
    /// The pod is ready, or was ready before.
    pub has_been_ready: bool,
    /// The cluster took `Ready` away because the node does not answer.
    pub node_silent: bool,
    pub state: PodState,
    /// Its process ended, but containers added by others still run.
    pub outlived: bool,
    /// The template that it was created from, if recorded.
    pub template: Option<String>,
}

/// State of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodState {
    /// Not scheduled, images missing, containers not started or waiting for a restart.
    Waiting { reason: String, message: String },
    /// All containers run.
    Running { ready: bool },
    /// Its process ended with exit code 0.
    Succeeded,
    /// Its process ended in another way.
    Failed(Failure),
}

/// How a pod failed.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Failure {
    pub exit_code: Option<i32>,
    /// Ended by the cluster (preemption, drain, node loss, a kubelet's refusal), not by its own process.
    pub disrupted: bool,
    /// The kubelet refused the pod before a container started: another node may take it.
    pub refused: bool,
    /// Pod, image, exit code and last output, for people.
    pub message: String,
    /// The termination message of the process.
    pub last_words: Option<String>,
    /// When the process ended, if it did.
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
            node_silent: pod.status.as_ref().is_some_and(is_node_silent),
            state: state(&pod.name_any(), own_container(pod), pod.status.as_ref()),
            outlived: is_outlived(pod),
            template: pod.annotations().get(names::TEMPLATE).cloned(),
        }
    }

    /// A pod that was created and that no watch has shown yet.
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
            node_silent: false,
            outlived: false,
            template: None,
        }
    }

    /// A process ran in the pod.
    pub fn has_started(&self) -> bool {
        match &self.state {
            PodState::Waiting { .. } => self.has_been_ready,
            PodState::Running { .. } | PodState::Succeeded => true,
            PodState::Failed(failure) => failure.exit_code.is_some(),
        }
    }

    /// The pod runs and was ready before, but is not ready now: its container stays ready until it ends, so the node
    /// does not answer. Not for an engine's pod: its readiness probe fails while it drains.
    pub fn is_out_of_reach(&self) -> bool {
        self.has_been_ready && self.state == PodState::Running { ready: false }
    }

    pub fn is_finished(&self) -> bool {
        matches!(self.state, PodState::Succeeded | PodState::Failed(_))
    }

    /// Whether the pod waits behind a scheduling gate, ours or Kueue's.
    pub fn is_gated(&self) -> bool {
        matches!(&self.state, PodState::Waiting { reason, .. } if reason == GATED)
    }

    pub fn is_ready(&self) -> bool {
        !self.deleting && self.state == PodState::Running { ready: true }
    }
}

impl Failure {
    /// What a rank reports about the ranks it waited for too long.
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

/// Returns `None` unless all containers run.
fn started_at(status: &PodStatus) -> Option<Timestamp> {
    let containers = status.container_statuses.as_ref()?;
    let starts: Option<Vec<Timestamp>> = containers
        .iter()
        .map(|container| Some(container.state.as_ref()?.running.as_ref()?.started_at.as_ref()?.0))
        .collect();
    starts?.into_iter().max()
}

/// A pod that was never ready has been unready since before its containers started.
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

/// Whether the cluster took `Ready` away because the node does not answer: then it changes nothing else. A kubelet that
/// finds a probe failing changes `ContainersReady` too, and gives a reason.
fn is_node_silent(status: &PodStatus) -> bool {
    let is_unready = condition(status, "Ready").is_some_and(|(holds, reason, _)| !holds && reason.is_empty());
    is_unready && condition(status, "ContainersReady").is_some_and(|(holds, ..)| holds)
}

/// Returns the container that decides when the pod ends, for pods that are not restarted: service meshes and others add
/// containers that do not end. The container has the name of the pod's role.
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

/// Whether another container still runs. If none runs, the kubelet has not written the end of the pod yet: its next
/// status has the phase, and the cause of an eviction.
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

/// Only events tell which volume or image is missing.
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

/// The first container that cannot start, and the cause.
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
            "pod {name}, container {} (image {}) cannot start because its image is not available: {said}. Correct the name, or bring the image to where the node can pull it",
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

/// The last lines of a text, joined into one line for use in a sentence.
fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join(" | ")
}

/// Preemption, drain, node loss: `was taken away by the cluster (PreemptionByScheduler): …`.
fn taken(status: &PodStatus) -> Option<String> {
    let (_, reason, message) = condition(status, "DisruptionTarget").filter(|(holds, ..)| *holds)?;
    Some(format!("was taken away by the cluster ({reason}): {message}"))
}

/// Whether the kubelet refused to start the pod. It writes no containers into the status of such a pod.
fn is_refused(status: &PodStatus) -> bool {
    let mut containers = status.container_statuses.iter().flatten();
    let started = containers.any(|container| {
        let state = container.state.as_ref();
        state.is_some_and(|state| state.running.is_some() || state.terminated.is_some())
    });
    let reason = status.reason.as_deref().unwrap_or_default();
    let under_pressure = || {
        let message = status.message.as_deref().unwrap_or_default();
        reason == "Evicted" && message.contains(NODE_CONDITION)
    };
    !started && (REFUSALS.contains(&reason) || reason.starts_with(OUT_OF) || under_pressure())
}

fn failure(name: &str, own: Option<&str>, status: &PodStatus) -> Failure {
    let taken = taken(status);
    let lost = matches!(
        status.reason.as_deref(),
        Some("NodeLost" | "NodeShutdown" | "Preempting" | "Shutdown" | "Terminated" | "NodeAffinity")
    );
    let refused = is_refused(status);
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
        (None, Some(reason), message) => {
            let how = match refused {
                true => "was refused by the kubelet of its node, before a process started",
                false => "failed",
            };
            format!(" {how} ({reason}): {}", message.as_deref().unwrap_or_default())
        }
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
        disrupted: taken.is_some() || lost || refused,
        refused,
        message: format!("pod {name}{cause}{end}"),
        last_words: ended.and_then(|(_, ended)| ended.message.clone()),
        at: ended.and_then(|(_, ended)| ended.finished_at.as_ref().map(|time| time.0)),
    }
}

#[cfg(test)]
mod tests;
