//! Decides the changes for a SandboxPool (`grpo.dev`). Pure except for the key, which is random and created once.

use grpo_contracts::reason::Reason;
use grpo_crds::SandboxPoolStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::runtime::events::Event;

use super::{
    isolation::{Finding, findings},
    objects::objects,
    observation::SandboxPoolObservation,
};
use crate::{
    conditions::{ConditionStatus, Conditions, is_true, shortened},
    desired_object::DesiredObject,
    events::{normal, warning},
    names,
    pods::{PodFacts, PodState},
    settings::Settings,
};

pub const READY: &str = "Ready";

/// All changes to make.
pub struct Decision {
    pub objects: Vec<DesiredObject>,
    /// Names of NetworkPolicies that an earlier spec needed and this one does not.
    pub delete_policies: Vec<String>,
    /// Whether a gateway serves.
    pub serves: bool,
    pub status: SandboxPoolStatus,
    pub events: Vec<Event>,
}

pub fn decide(seen: &SandboxPoolObservation, settings: &Settings) -> Decision {
    let deleted = seen.pool.metadata.deletion_timestamp.is_some();
    let (status, events) = status(seen);
    Decision {
        objects: match deleted {
            true => Vec::new(),
            false => objects(seen, settings),
        },
        delete_policies: match !deleted && seen.pool.spec.package_index.is_none() {
            true => vec![names::grader_policy(&seen.owner.name)],
            false => Vec::new(),
        },
        serves: seen.gateway_pods.iter().any(PodFacts::is_ready),
        status,
        events,
    }
}

fn status(seen: &SandboxPoolObservation) -> (SandboxPoolStatus, Vec<Event>) {
    let previous = seen.pool.status.clone().unwrap_or_default();
    let serves = seen.gateway_pods.iter().any(PodFacts::is_ready);
    let (reason, message) = if serves {
        (Reason::GatewayServes, "the gateway serves".to_owned())
    } else {
        (
            Reason::GatewayNotReady,
            format!("the gateway does not serve; {}", gateway_problem(seen)),
        )
    };
    let findings = findings(&seen.pool.spec, seen.report.as_deref());
    let conditions = Conditions::after(&previous.conditions, seen.pool.metadata.generation, Time(seen.now)).set(
        READY,
        ConditionStatus::of(serves),
        reason,
        &message,
    );
    let conditions = findings
        .iter()
        .fold(conditions, |conditions, finding| {
            conditions.set(finding.type_, finding.status.clone(), finding.reason, &finding.message)
        })
        .done();
    let was = is_true(&previous.conditions, READY);
    let mut events: Vec<Event> = findings
        .iter()
        .filter(|finding| is_news(finding, &previous.conditions))
        .map(|finding| {
            event(
                finding.status != ConditionStatus::True,
                finding.reason,
                &finding.message,
            )
        })
        .collect();
    events.extend((was != serves).then(|| event(was, reason, &message)));
    let living = || seen.sandbox_pods.iter().filter(|pod| !pod.deleting);
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let status = SandboxPoolStatus {
        observed_generation: seen.pool.metadata.generation,
        conditions,
        message: Some(shortened(&stuck_sandbox(seen).unwrap_or(message))),
        ready: number(living().filter(|pod| pod.is_ready()).count()),
        leased: number(seen.leases),
        pending: number(living().filter(|pod| !pod.is_ready() && !pod.is_finished()).count()),
        egress_blocked: Some(findings[0].status.text().to_owned()),
    };
    (status, events)
}

fn event(warns: bool, reason: Reason, text: &str) -> Event {
    if warns {
        warning(reason, text)
    } else {
        normal(reason, text)
    }
}

/// Whether a finding becomes an Event. A first finding that is unknown or good, or an unchanged one, does not.
fn is_news(finding: &Finding, previous: &[Condition]) -> bool {
    let before = previous.iter().find(|condition| condition.type_ == finding.type_);
    match (before, &finding.status) {
        (Some(before), status) => before.status != status.text() && before.reason != finding.reason.text(),
        (None, status) => *status == ConditionStatus::False,
    }
}

fn gateway_problem(seen: &SandboxPoolObservation) -> String {
    let problem = seen.gateway_pods.iter().find_map(|pod| match &pod.state {
        PodState::Waiting { message, .. } => Some(message.clone()),
        PodState::Failed(failure) => Some(failure.message.clone()),
        PodState::Running { .. } => Some(format!("pod {} starts", pod.name)),
        PodState::Succeeded => None,
    });
    // A quota, a policy or an admission webhook refuses the pod to its ReplicaSet, which alone knows why.
    problem.unwrap_or_else(|| {
        format!(
            "its pod is being made; if none appears, `kubectl describe replicaset -n {} -l {}={}` tells why",
            seen.owner.namespace,
            names::SANDBOX_POOL,
            seen.owner.name
        )
    })
}

/// What keeps a sandbox from starting, if waiting does not help.
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
