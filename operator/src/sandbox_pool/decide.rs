//! What is to be done about a SandboxPool (`grpo.dev`). Pure but for the key, which is random and made once.

use grpo_crds::SandboxPoolStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{objects::objects, read::Seen};
use crate::{
    child::Child,
    cluster::Note,
    conditions::{Conditions, Holds, holds, shortened},
    pods::{PodFacts, PodState},
    settings::Settings,
};

pub const READY: &str = "Ready";
pub const EGRESS_BLOCKED: &str = "EgressBlocked";

/// Everything that is to be done.
#[derive(Debug)]
pub struct Decision {
    pub children: Vec<Child>,
    /// A gateway serves.
    pub serves: bool,
    pub status: SandboxPoolStatus,
    pub notes: Vec<Note>,
}

pub fn decide(seen: &Seen, settings: &Settings) -> Decision {
    let deleted = seen.pool.metadata.deletion_timestamp.is_some();
    let (status, notes) = status(seen);
    Decision {
        children: if deleted { Vec::new() } else { objects(seen, settings) },
        serves: seen.gateway_pods.iter().any(PodFacts::is_ready),
        status,
        notes,
    }
}

fn status(seen: &Seen) -> (SandboxPoolStatus, Vec<Note>) {
    let previous = seen.pool.status.clone().unwrap_or_default();
    let serves = seen.gateway_pods.iter().any(PodFacts::is_ready);
    let (reason, message) = if serves {
        ("GatewayServes", "the gateway serves".to_owned())
    } else {
        (
            "GatewayNotReady",
            format!("the gateway does not serve; {}", gateway_problem(&seen.gateway_pods)),
        )
    };
    let egress = if seen.pool.spec.allow_unenforced {
        (
            "Unenforced",
            "nobody has shown that the cluster enforces NetworkPolicies; leases are given all the same, because allowUnenforced is true",
        )
    } else {
        (
            "NotShown",
            "nobody has shown that the cluster enforces NetworkPolicies; leases are refused until somebody has, or allowUnenforced is true",
        )
    };
    let conditions = Conditions::after(&previous.conditions, seen.pool.metadata.generation, Time(seen.now))
        .set(READY, Holds::of(serves), reason, &message)
        .set(EGRESS_BLOCKED, Holds::Unknown, egress.0, egress.1)
        .done();
    let was = holds(&previous.conditions, READY);
    let notes = (was != serves).then(|| Note {
        warning: was,
        reason: reason.to_owned(),
        action: "Reconcile",
        text: message.clone(),
    });
    let living = || seen.sandbox_pods.iter().filter(|pod| !pod.deleting);
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let status = SandboxPoolStatus {
        observed_generation: seen.pool.metadata.generation,
        conditions,
        message: Some(shortened(&stuck_sandbox(seen).unwrap_or(message))),
        ready: number(living().filter(|pod| pod.is_ready()).count()),
        leased: number(seen.leases),
        pending: number(living().filter(|pod| !pod.is_ready() && !pod.is_finished()).count()),
        egress_blocked: Some("Unknown".to_owned()),
    };
    (status, notes.into_iter().collect())
}

fn gateway_problem(pods: &[PodFacts]) -> String {
    let problem = pods.iter().find_map(|pod| match &pod.state {
        PodState::Waiting { message, .. } => Some(message.clone()),
        PodState::Failed(failure) => Some(failure.message.clone()),
        PodState::Running { .. } => Some(format!("pod {} starts", pod.name)),
        PodState::Succeeded => None,
    });
    problem.unwrap_or_else(|| "its pod is being made".to_owned())
}

/// What keeps a sandbox from starting, when it is more than time.
fn stuck_sandbox(seen: &Seen) -> Option<String> {
    let ordinary = ["Created", "Starting", "ContainerCreating", "PodInitializing"];
    seen.sandbox_pods
        .iter()
        .filter(|pod| !pod.deleting)
        .find_map(|pod| match &pod.state {
            PodState::Waiting { reason, message } if !ordinary.contains(&reason.as_str()) => Some(message.clone()),
            _ => None,
        })
}
