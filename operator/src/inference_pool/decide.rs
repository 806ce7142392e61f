//! What is to be done about an InferencePool (`grpo.dev`). Pure.

use grpo_crds::InferencePoolStatus;
use k8s_openapi::{api::core::v1::Service, apimachinery::pkg::apis::meta::v1::Time};
use serde_json::json;

use super::{
    engine_pod::{engine, pool_labels, selector},
    read::Seen,
};
use crate::{
    child::Child,
    cluster::Note,
    conditions::{Conditions, Holds, shortened},
    names,
    pods::{PodFacts, PodState},
    settings::Settings,
};

pub const READY: &str = "Ready";

/// Everything that is to be done.
#[derive(Debug)]
pub struct Decision {
    pub children: Vec<Child>,
    pub create: Vec<(Child, PodFacts)>,
    pub delete: Vec<String>,
    pub release_claim: bool,
    /// The operator's part of the status; the claim is the run's.
    pub status: InferencePoolStatus,
    pub notes: Vec<Note>,
}

pub fn decide(seen: &Seen, settings: &Settings) -> Decision {
    let deleted = seen.pool.metadata.deletion_timestamp.is_some();
    let wanted: Vec<Child> = (0..seen.pool.spec.replicas)
        .map(|replica| engine(seen, settings, replica))
        .collect();
    let mut create = Vec::new();
    let mut delete: Vec<String> = surplus(seen, &wanted);
    if !deleted {
        for pod in wanted {
            match seen.pods.iter().find(|existing| existing.name == pod.name) {
                None => {
                    let facts = PodFacts {
                        template: template(&pod),
                        ..PodFacts::just_made(pod.name.clone(), 1, 0)
                    };
                    create.push((pod, facts));
                }
                // Its name is free only when it is gone.
                Some(existing) if existing.deleting => {}
                Some(existing) if existing.is_finished() || existing.template != template(&pod) => {
                    delete.push(existing.name.clone())
                }
                Some(_) => {}
            }
        }
    }
    let (status, notes) = status(seen);
    Decision {
        children: if deleted { Vec::new() } else { vec![service(seen)] },
        create,
        delete: if deleted { Vec::new() } else { delete },
        release_claim: seen.claim_is_void,
        status,
        notes,
    }
}

fn template(pod: &Child) -> Option<String> {
    pod.object["metadata"]["annotations"][names::TEMPLATE]
        .as_str()
        .map(str::to_owned)
}

/// Replicas that are not wanted any more.
fn surplus(seen: &Seen, wanted: &[Child]) -> Vec<String> {
    seen.pods
        .iter()
        .filter(|pod| !pod.deleting && !wanted.iter().any(|wanted| wanted.name == pod.name))
        .map(|pod| pod.name.clone())
        .collect()
}

/// Its name resolves to every replica, ready or not: the driver asks each how it is.
fn service(seen: &Seen) -> Child {
    let port = grpo_crds::RunConfig::AGENT_PORT;
    seen.owner.child::<Service>(
        names::engines(&seen.owner.name),
        &pool_labels(seen),
        json!({"spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": true,
            "selector": selector(seen),
            "ports": [{"name": "http", "port": port, "targetPort": port, "protocol": "TCP"}],
        }}),
    )
}

fn status(seen: &Seen) -> (InferencePoolStatus, Vec<Note>) {
    let previous = seen.pool.status.clone().unwrap_or_default();
    let (wanted, pods) = (seen.pool.spec.replicas, &seen.pods);
    let ready = u32::try_from(pods.iter().filter(|pod| pod.is_ready()).count()).unwrap_or(u32::MAX);
    let problem = pods.iter().find_map(|pod| match &pod.state {
        PodState::Waiting { reason, message } if reason != "Created" => Some(message.clone()),
        PodState::Failed(failure) => Some(failure.message.clone()),
        _ => None,
    });
    let (holds, reason, message) = if ready >= wanted {
        (
            Holds::Yes,
            "AllReplicasServe",
            format!("{ready} of {wanted} replicas serve"),
        )
    } else {
        let why = problem.unwrap_or_else(|| "engines are loading the model".to_owned());
        (
            Holds::No,
            "ReplicasNotReady",
            format!("{ready} of {wanted} replicas serve; {why}"),
        )
    };
    let conditions = Conditions::after(&previous.conditions, seen.pool.metadata.generation, Time(seen.now))
        .set(READY, holds.clone(), reason, &message)
        .done();
    let was_ready = crate::conditions::holds(&previous.conditions, READY);
    let turned = was_ready != (holds == Holds::Yes) && (was_ready || holds == Holds::Yes);
    let notes = turned.then(|| Note {
        warning: was_ready,
        reason: reason.to_owned(),
        action: "Reconcile",
        text: message.clone(),
    });
    let selector: Vec<String> = selector(seen)
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let status = InferencePoolStatus {
        observed_generation: seen.pool.metadata.generation,
        conditions,
        message: Some(shortened(&message)),
        engine: Some(seen.pool.spec.engine.name().to_owned()),
        model: model_in_words(seen),
        ready: Some(format!("{ready}/{wanted}")),
        replicas: u32::try_from(pods.iter().filter(|pod| !pod.deleting).count()).unwrap_or(u32::MAX),
        ready_replicas: ready,
        selector: Some(selector.join(",")),
        ..InferencePoolStatus::default()
    };
    (status, notes.into_iter().collect())
}

fn model_in_words(seen: &Seen) -> Option<String> {
    let model = &seen.pool.spec.model;
    let image = model.image.as_ref().map(|image| image.reference.clone());
    image.or_else(|| {
        model
            .persistent_volume_claim
            .as_ref()
            .map(|claim| format!("persistentVolumeClaim {}", claim.claim_name))
    })
}
