//! Decides the changes for an InferencePool (`grpo.dev`). Pure.

use std::{collections::BTreeSet, time::Duration};

use grpo_contracts::reason::Reason;
use grpo_crds::{
    AttemptStatus, InferencePoolStatus,
    inference_pool::{Claim, ExternalApi},
};
use grpo_engine_protocol::{AgentState, BASE_VERSION};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::events::Event;

use super::{
    clients, flags,
    labels::selector,
    objects::{objects, url},
    observation::InferencePoolObservation,
    replica_pods::member,
    several_pods, shared_gpus,
    template::{template, with_template},
};
use crate::{
    admission::gate::EngineQuota,
    conditions::{ConditionStatus, Conditions, is_true, shortened},
    desired_object::DesiredObject,
    events::{normal, warning},
    names::PodKey,
    pod_group::{GroupState, GroupUpdate, PodGroups, UpdatePolicy, advance, counts, unbound},
    pods::{PodFacts, PodState},
    settings::Settings,
};

pub const READY: &str = "Ready";
pub const ACCEPTED: &str = "Accepted";
pub const UPDATED: &str = "Updated";
pub const PROBED: &str = "Probed";

/// How often agents are asked while their state may change without a change of a pod.
const LOOK: Duration = Duration::from_secs(10);

const ASLEEP: &str = "engines sleep while the trainer has their devices";

/// All changes to make.
pub struct Decision {
    pub objects: Vec<DesiredObject>,
    pub create: Vec<(DesiredObject, PodFacts)>,
    pub delete: Vec<String>,
    /// Names of Services that an earlier spec needed and this one does not.
    pub delete_services: Vec<String>,
    pub release_claim: bool,
    /// The operator's part of the status; the claim belongs to the run.
    pub status: InferencePoolStatus,
    pub events: Vec<Event>,
    /// Reconcile again after this time even without an event.
    pub again: Option<Duration>,
}

pub fn decide(seen: &InferencePoolObservation, settings: &Settings) -> Decision {
    let deleted = seen.pool.metadata.deletion_timestamp.is_some();
    let spec = &seen.pool.spec;
    let refusal = flags::refusal(&spec.engine).or_else(|| shared_gpus::refusal(&seen.pool));
    let previous = seen.pool.status.as_ref();
    let template = template(seen, settings);
    let attempts = previous.and_then(|status| status.attempts.clone()).unwrap_or_default();
    // A refused spec changes nothing: replicas of the earlier spec stay as they are.
    let idle = deleted || refusal.is_some();
    let update = match idle {
        true => GroupUpdate::nothing(attempts, Vec::new(), GroupState::Running),
        false => {
            let pods = with_template(seen, &template);
            let update = advance(&replicas(seen, &template), &attempts, &pods, seen.now);
            let update = several_pods::in_turn(shared_gpus::after_earlier_pods(update, seen), seen);
            held_back(update, seen)
        }
    };
    let create = update
        .create
        .iter()
        .map(|key| made(seen, settings, *key, &template))
        .collect();
    let (status, events) = status(seen, &update, refusal.as_deref());
    let waits = update.retry_in.map(|wait| wait + Duration::from_millis(100));
    let looks = is_in_motion(seen, &status).then_some(LOOK);
    Decision {
        objects: if deleted { Vec::new() } else { objects(seen) },
        create,
        delete: update.delete,
        delete_services: match deleted {
            true => Vec::new(),
            false => clients::unused_services(seen),
        },
        release_claim: seen.claim_is_void,
        status,
        events,
        again: waits.into_iter().chain(looks).min(),
    }
}

/// The replicas as pod groups: each serves without end, and is created again after every failure. GPUs that belong to a
/// trainer too, and Kueue's quota, are enough for no surge: a replica ends before its successor has them.
fn replicas(seen: &InferencePoolObservation, template: &str) -> PodGroups {
    let spec = &seen.pool.spec;
    let no_surge = shared_gpus::are_shared(spec) || EngineQuota::of_pool(&seen.pool).is_some();
    let (max_surge, max_unavailable) = match no_surge {
        true => (0, spec.update.max_unavailable.max(1)),
        false => (spec.update.max_surge, spec.update.max_unavailable),
    };
    PodGroups {
        groups: shared_gpus::replicas(&seen.pool),
        size: spec.engine.nodes(),
        update: UpdatePolicy::Rolling {
            template: template.to_owned(),
            max_surge,
            max_unavailable,
        },
        limit: None,
        fault_code: None,
        ranks_report_peers: false,
        mark: None,
        start: None,
        same_devices: false,
    }
}

/// Holds the update while a ResourceQuota is short: creates nothing. A refused pool deletes its replicas that are not
/// on nodes, so that others can use the quota.
fn held_back(mut update: GroupUpdate, seen: &InferencePoolObservation) -> GroupUpdate {
    let Some(wait) = &seen.quota else { return update };
    update.create.clear();
    let left = Duration::try_from(wait.until.duration_since(seen.now)).unwrap_or_default();
    update.retry_in = Some(update.retry_in.map_or(left, |known| known.min(left)));
    if wait.refused {
        update.delete.extend(unbound(&seen.pods));
        update.delete.sort_unstable();
        update.delete.dedup();
    }
    update
}

/// Whether agents' reports may change although no pod changes.
fn is_in_motion(seen: &InferencePoolObservation, status: &InferencePoolStatus) -> bool {
    let spec = &seen.pool.spec;
    let claimed = seen
        .pool
        .status
        .as_ref()
        .is_some_and(|status| status.claimed_by.is_some());
    let wanted = shared_gpus::replicas(&seen.pool);
    let unsettled = status.ready_replicas > 0 && status.updated_replicas < wanted;
    let runs = !seen.pods.is_empty() && wanted > 0;
    runs && (claimed || unsettled || spec.engine.external.is_some())
}

/// A pod of a new replica, and its facts until the watch shows it.
fn made(
    seen: &InferencePoolObservation,
    settings: &Settings,
    key: PodKey,
    template: &str,
) -> (DesiredObject, PodFacts) {
    let pod = member(seen, settings, key, template);
    let facts = PodFacts {
        group: key.group,
        template: Some(template.to_owned()),
        ..PodFacts::just_made(pod.name.clone(), key.attempt, key.rank)
    };
    (pod, facts)
}

fn status(
    seen: &InferencePoolObservation,
    update: &GroupUpdate,
    refusal: Option<&str>,
) -> (InferencePoolStatus, Vec<Event>) {
    let spec = &seen.pool.spec;
    let previous = seen.pool.status.clone().unwrap_or_default();
    let wanted = shared_gpus::replicas(&seen.pool);
    let (exist, ready) = counts(&seen.pods, spec.engine.nodes());
    let (weights, updated) = weights(seen);
    let ready_now = readiness(seen, update, refusal, ready);
    let mut conditions = Conditions::after(&previous.conditions, seen.pool.metadata.generation, Time(seen.now))
        .set(
            ACCEPTED,
            ConditionStatus::of(refusal.is_none()),
            if refusal.is_none() {
                Reason::SpecValid
            } else {
                Reason::SpecRefused
            },
            refusal.unwrap_or("the spec can be made true"),
        )
        .set(READY, ready_now.0.clone(), ready_now.1, &ready_now.2)
        .set(
            UPDATED,
            ConditionStatus::of(updated >= wanted),
            if updated >= wanted {
                Reason::WeightsServe
            } else {
                Reason::WeightsOnTheirWay
            },
            &updates_in_words(seen, updated),
        );
    if spec.engine.external.is_some() {
        let passed = !seen.agents.is_empty() && seen.agents.values().all(|agent| agent.serving.is_some());
        conditions = conditions.set(
            PROBED,
            match (passed, seen.agents.is_empty()) {
                (true, _) => ConditionStatus::True,
                (false, true) => ConditionStatus::Unknown,
                (false, false) => ConditionStatus::False,
            },
            if passed {
                Reason::ProbePassed
            } else {
                Reason::ProbeNotPassed
            },
            &probe_in_words(seen, passed),
        );
    }
    let (status_now, reason, message) = ready_now;
    let was_ready = is_true(&previous.conditions, READY);
    let event = (was_ready != (status_now == ConditionStatus::True)).then(|| match was_ready {
        true => warning(reason, message.clone()),
        false => normal(reason, message.clone()),
    });
    let selector: Vec<String> = selector(seen)
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let status = InferencePoolStatus {
        observed_generation: seen.pool.metadata.generation,
        conditions: conditions.done(),
        message: Some(shortened(&message)),
        engine: Some(spec.engine.name().to_owned()),
        model: model_in_words(seen),
        ready: Some(format!("{ready}/{wanted}")),
        updated: Some(format!("{updated}/{wanted}")),
        weights,
        url: Some(url(seen)),
        clients_url: clients::url(seen),
        replicas: exist,
        ready_replicas: ready,
        updated_replicas: updated,
        attempts: Some(update.status.clone()).filter(|attempts| *attempts != AttemptStatus::default()),
        selector: Some(selector.join(",")),
        claimed_by: None,
        weights_of: weights_of(seen),
    };
    (status, event.into_iter().collect())
}

fn readiness(
    seen: &InferencePoolObservation,
    update: &GroupUpdate,
    refusal: Option<&str>,
    ready: u32,
) -> (ConditionStatus, Reason, String) {
    let wanted = shared_gpus::replicas(&seen.pool);
    if let Some(refusal) = refusal {
        return (ConditionStatus::False, Reason::NotAccepted, refusal.to_owned());
    }
    let problem = seen.pods.iter().find_map(|pod| match &pod.state {
        PodState::Waiting { reason, message } if reason != "Created" => Some(message.clone()),
        PodState::Failed(failure) => Some(failure.message.clone()),
        _ => None,
    });
    if ready >= wanted {
        let outdated = match (update.outdated, problem) {
            (0, _) => String::new(),
            // What keeps a successor from starting keeps the old replicas for ever.
            (n, Some(problem)) => format!("; of an earlier spec, being replaced: {n} ({problem})"),
            (n, None) => format!("; of an earlier spec, being replaced: {n}"),
        };
        let shortage = shared_gpus::shortage(&seen.pool).map_or_else(String::new, |why| format!("; {why}"));
        let serve = format!("{ready} of {wanted} replicas serve{outdated}{shortage}");
        return (ConditionStatus::True, Reason::AllReplicasServe, serve);
    }
    if let Some(wait) = &seen.quota {
        let message = format!("{ready} of {wanted} replicas serve; {}", wait.message);
        return (ConditionStatus::False, Reason::QuotaExceeded, message);
    }
    let agents = || {
        let unserved = seen.agents.iter().find(|(_, agent)| agent.serving.is_none());
        unserved.and_then(|(pod, agent)| Some(format!("pod {pod}: {}", agent.message.as_deref()?)))
    };
    let pause = matches!(update.state, GroupState::Pausing { .. }).then(|| {
        format!(
            "replicas failed {} times in a row; the next is made after a pause",
            update.status.consecutive_failures + update.status.disruptions
        )
    });
    let asleep = is_asleep(seen).then(|| ASLEEP.to_owned());
    let half_placed = several_pods::half_placed(seen);
    let problem = match (problem, half_placed) {
        (Some(problem), Some(half)) => Some(format!("{problem}; {half}")),
        (problem, half) => problem.or(half),
    };
    let why = problem
        .or_else(|| shared_gpus::wait(seen))
        .or(asleep)
        .or_else(agents)
        .or(pause);
    let why = why.unwrap_or_else(|| "engines are loading the model".to_owned());
    (
        ConditionStatus::False,
        Reason::ReplicasNotReady,
        format!("{ready} of {wanted} replicas serve; {why}"),
    )
}

/// The versions that serve, and the number of replicas that serve the version they were ordered to.
fn weights(seen: &InferencePoolObservation) -> (Option<String>, u32) {
    let serving: BTreeSet<&str> = seen
        .agents
        .values()
        .filter_map(|agent| agent.serving.as_deref())
        .collect();
    let shown: Vec<&str> = serving.into_iter().take(3).collect();
    let updated = seen
        .agents
        .values()
        .filter(|agent| agent.serving.is_some() && (agent.wanted.is_none() || agent.wanted == agent.serving))
        .count();
    (
        (!shown.is_empty()).then(|| shown.join(",")),
        u32::try_from(updated).unwrap_or(u32::MAX),
    )
}

/// The run that claims the pool; otherwise the last one, while its weights are served.
fn weights_of(seen: &InferencePoolObservation) -> Option<Claim> {
    let previous = seen.pool.status.as_ref()?;
    if previous.claimed_by.is_some() {
        return previous.claimed_by.clone();
    }
    let mut agents = seen.agents.values();
    let is_base = |version: &Option<String>| version.as_deref().is_none_or(|version| version == BASE_VERSION);
    let all_base = agents.all(|agent| is_base(&agent.wanted) && agent.serving.as_deref() == Some(BASE_VERSION));
    // An agent that does not answer may still serve them. Only the first pod of a replica has one.
    let replicas = seen.pods.iter().filter(|pod| pod.rank == 0).count();
    let known = !seen.agents.is_empty() && seen.agents.len() >= replicas;
    previous.weights_of.clone().filter(|_| !(known && all_base))
}

/// Whether engines have given the memory of their devices back for the trainer's turn.
fn is_asleep(seen: &InferencePoolObservation) -> bool {
    seen.agents.values().any(|agent| agent.state == AgentState::Asleep)
}

fn updates_in_words(seen: &InferencePoolObservation, updated: u32) -> String {
    let behind = seen
        .agents
        .iter()
        .find(|(_, agent)| agent.wanted.is_some() && agent.wanted != agent.serving);
    let why = match behind {
        _ if is_asleep(seen) => format!("; {ASLEEP}"),
        Some((pod, agent)) => format!(
            "; pod {pod} is to serve {}: {}",
            agent.wanted.as_deref().unwrap_or_default(),
            agent.message.as_deref().unwrap_or("on its way")
        ),
        None => String::new(),
    };
    format!(
        "{updated} of {} replicas serve the ordered weights{why}",
        shared_gpus::replicas(&seen.pool)
    )
}

fn probe_in_words(seen: &InferencePoolObservation, passed: bool) -> String {
    if passed {
        let external = seen.pool.spec.engine.external.as_ref();
        return match external.map(|external| external.api) {
            Some(ExternalApi::Chat) => "the server answers in text; only runs of mode Evaluate sample from it",
            _ => "the server takes token ids, and returns token ids with their logprobs",
        }
        .to_owned();
    }
    let said = seen.agents.values().find_map(|agent| agent.message.clone());
    said.unwrap_or_else(|| "the agent has not been asked yet".to_owned())
}

fn model_in_words(seen: &InferencePoolObservation) -> Option<String> {
    let model = &seen.pool.spec.model;
    let claim = model.persistent_volume_claim.as_ref();
    let words = [
        model.image.as_ref().map(|image| image.reference.clone()),
        claim.map(|claim| format!("persistentVolumeClaim {}", claim.claim_name)),
        model.hub.as_ref().map(|hub| hub.repo.clone()),
        model.object_store.as_ref().map(|store| store.url.clone()),
    ];
    words.into_iter().flatten().next()
}
