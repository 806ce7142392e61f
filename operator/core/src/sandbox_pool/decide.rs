//! What is to be done about a SandboxPool (`grpo.dev`). Pure but for the key, which is random and made once.

use grpo_crds::SandboxPoolStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::{
    objects::objects,
    observation::SandboxPoolObservation,
    walls::{Finding, findings},
};
use crate::{
    child::Child,
    conditions::{Conditions, Holds, holds, shortened},
    events::Note,
    pods::{PodFacts, PodState},
    settings::Settings,
};

pub const READY: &str = "Ready";

/// Everything that is to be done.
#[derive(Debug)]
pub struct Decision {
    pub children: Vec<Child>,
    /// A gateway serves.
    pub serves: bool,
    pub status: SandboxPoolStatus,
    pub notes: Vec<Note>,
}

pub fn decide(seen: &SandboxPoolObservation, settings: &Settings) -> Decision {
    let deleted = seen.pool.metadata.deletion_timestamp.is_some();
    let (status, notes) = status(seen);
    Decision {
        children: if deleted { Vec::new() } else { objects(seen, settings) },
        serves: seen.gateway_pods.iter().any(PodFacts::is_ready),
        status,
        notes,
    }
}

fn status(seen: &SandboxPoolObservation) -> (SandboxPoolStatus, Vec<Note>) {
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
    let walls = findings(&seen.pool.spec, seen.report.as_deref());
    let conditions = Conditions::after(&previous.conditions, seen.pool.metadata.generation, Time(seen.now)).set(
        READY,
        Holds::of(serves),
        reason,
        &message,
    );
    let conditions = walls
        .iter()
        .fold(conditions, |conditions, wall| {
            conditions.set(wall.type_, wall.holds.clone(), wall.reason, &wall.message)
        })
        .done();
    let was = holds(&previous.conditions, READY);
    let mut notes: Vec<Note> = walls
        .iter()
        .filter(|wall| is_news(wall, &previous.conditions))
        .map(|wall| note(wall.holds != Holds::Yes, wall.reason, &wall.message))
        .collect();
    notes.extend((was != serves).then(|| note(was, reason, &message)));
    let living = || seen.sandbox_pods.iter().filter(|pod| !pod.deleting);
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let status = SandboxPoolStatus {
        observed_generation: seen.pool.metadata.generation,
        conditions,
        message: Some(shortened(&stuck_sandbox(seen).unwrap_or(message))),
        ready: number(living().filter(|pod| pod.is_ready()).count()),
        leased: number(seen.leases),
        pending: number(living().filter(|pod| !pod.is_ready() && !pod.is_finished()).count()),
        egress_blocked: Some(walls[0].holds.text().to_owned()),
    };
    (status, notes)
}

fn note(warning: bool, reason: &str, text: &str) -> Note {
    Note {
        warning,
        reason: reason.to_owned(),
        action: "Reconcile",
        text: text.to_owned(),
    }
}

/// Whether a finding is told as an Event: not that nothing is known yet, nor that nothing is wrong still.
fn is_news(wall: &Finding, previous: &[Condition]) -> bool {
    let before = previous.iter().find(|condition| condition.type_ == wall.type_);
    match (before, &wall.holds) {
        (Some(before), holds) => before.status != holds.text() && before.reason != wall.reason,
        (None, holds) => *holds == Holds::No,
    }
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
fn stuck_sandbox(seen: &SandboxPoolObservation) -> Option<String> {
    let ordinary = ["Created", "Starting", "ContainerCreating", "PodInitializing"];
    seen.sandbox_pods
        .iter()
        .filter(|pod| !pod.deleting)
        .find_map(|pod| match &pod.state {
            PodState::Waiting { reason, message } if !ordinary.contains(&reason.as_str()) => Some(message.clone()),
            _ => None,
        })
}
