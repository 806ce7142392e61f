//! All conditions that a run can wait for, the most fundamental first, with messages that say what to do.

use grpo_contracts::reason::Reason;
use grpo_crds::{
    InferencePool, SandboxPool,
    grpo_run::{GrpoRunSpec, Mode},
    inference_pool::{Claim, ExternalApi, ExternalWeights, InferencePoolSpec},
};
use grpo_engine_protocol::BASE_VERSION;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::{
    decision::ADMITTED,
    objects::pool_in_words,
    observation::{RunObservation, StoreVolume},
    queue::{self, QueueVerdict},
};
use crate::{
    admission::Verdict,
    estimate, names,
    pod_group::{GroupState, GroupUpdate},
};

/// Why a run does not run: one word for machines, a sentence for people.
pub type Blocker = (Reason, String);

/// Blockers that apply only before a run has pods on nodes: later the largest node may leave, or an agent may fail to
/// answer once.
const ONLY_BEFORE: [Reason; 5] = [
    Reason::ExceedsGpuMemory,
    Reason::StoreMissing,
    Reason::ReferenceMissing,
    Reason::ExternalServerNotProbed,
    Reason::InferencePoolTakesNoWeights,
];

/// Preconditions for asking for capacity in the cluster: before they hold, the run would take capacity that others can
/// use.
pub fn before_admission(seen: &RunObservation) -> Vec<Blocker> {
    let mut blockers = Vec::new();
    let too_large = estimate::refusal(&seen.run.spec, seen.gpu_memory);
    blockers.extend(too_large.map(|arithmetic| (Reason::ExceedsGpuMemory, arithmetic)));
    blockers.extend(store_missing(seen));
    let missing = seen
        .missing
        .iter()
        .map(|reference| reference.message(&seen.owner.namespace));
    blockers.extend(missing.map(|message| (Reason::ReferenceMissing, message)));
    if seen.run.spec.mode.needs_engines() {
        blockers.extend(inference_unusable(seen));
    }
    blockers.extend(judge_unusable(seen));
    if seen.run.spec.mode.needs_sandboxes() {
        blockers.extend(sandboxes_unusable(seen));
    }
    if seen.has_begun() {
        blockers.retain(|(reason, _)| !ONLY_BEFORE.contains(reason));
    }
    blockers
}

/// Preconditions for running, once the run is admitted.
pub fn before_running(seen: &RunObservation, driver: &GroupUpdate, trainer: Option<&GroupUpdate>) -> Vec<Blocker> {
    let mut blockers = Vec::new();
    if seen.run.spec.mode.needs_engines() {
        blockers.extend(inference_unready(seen));
    }
    blockers.extend(judge_unready(seen));
    if seen.run.spec.mode.needs_sandboxes() {
        blockers.extend(sandboxes_unready(seen));
    }
    blockers.extend(group_unready(Reason::DriverNotReady, "driver", driver));
    blockers.extend(trainer.and_then(|update| group_unready(Reason::TrainerNotReady, "trainer", update)));
    blockers
}

/// Admission's verdict on the run.
pub fn admission(seen: &RunObservation) -> Verdict {
    match queue::verdict(seen) {
        QueueVerdict::Waits(message) | QueueVerdict::Evicted(message) => Verdict {
            admitted: false,
            reason: Reason::WaitsForQuota,
            message,
        },
        QueueVerdict::Admitted(message) => Verdict {
            admitted: true,
            reason: Reason::Admitted,
            message,
        },
        QueueVerdict::NoQueue => {
            let verdict = seen.verdict.clone().or_else(|| admitted_before(seen));
            verdict.unwrap_or(Verdict {
                admitted: false,
                reason: Reason::NotEvaluated,
                message: "admission has not looked at it yet".to_owned(),
            })
        }
    }
}

/// The verdict on a run whose pods are on nodes, until an operator that has just started reaches its own: otherwise
/// each restart of the operator would show every running run as Queued.
fn admitted_before(seen: &RunObservation) -> Option<Verdict> {
    let conditions = &seen.run.status.as_ref()?.conditions;
    let is_admitted = |condition: &&Condition| condition.type_ == ADMITTED && condition.status == "True";
    let admitted = conditions.iter().find(is_admitted)?;
    seen.has_begun().then(|| Verdict {
        admitted: true,
        reason: Reason::Admitted,
        message: admitted.message.clone(),
    })
}

fn store_missing(seen: &RunObservation) -> Option<Blocker> {
    let store = &seen.run.spec.store;
    if seen.store != StoreVolume::Missing {
        return None;
    }
    let claim = store.persistent_volume_claim.as_ref()?;
    Some((
        Reason::StoreMissing,
        format!(
            "store: there is no PersistentVolumeClaim {} in namespace {}; create it",
            claim.claim_name, seen.owner.namespace
        ),
    ))
}

fn group_unready(reason: Reason, group: &str, update: &GroupUpdate) -> Option<Blocker> {
    match &update.state {
        GroupState::Starting { message } | GroupState::Pausing { message } => {
            Some((reason, format!("{group}: {message}")))
        }
        GroupState::Running | GroupState::Succeeded | GroupState::Fault(_) | GroupState::Exhausted { .. } => None,
    }
}

/// Groups in back-off after failures: admission sees only that their pods are missing; this gives the cause.
pub fn pauses(driver: &GroupUpdate, trainer: Option<&GroupUpdate>) -> Vec<Blocker> {
    let pauses = |update: &&GroupUpdate| matches!(update.state, GroupState::Pausing { .. });
    let driver = Some(driver).filter(pauses);
    let trainer = trainer.filter(pauses);
    let driver = driver.and_then(|update| group_unready(Reason::DriverNotReady, "driver", update));
    let trainer = trainer.and_then(|update| group_unready(Reason::TrainerNotReady, "trainer", update));
    driver.into_iter().chain(trainer).collect()
}

/// The pool is missing, belongs to another run, or can never serve this run.
fn inference_unusable(seen: &RunObservation) -> Option<Blocker> {
    let spec = &seen.run.spec;
    let words = pool_in_words::<InferencePool>(seen.inference_name());
    let Some(pool) = &seen.inference else {
        return missing(Reason::InferencePoolMissing, &words, spec.inference.pool.is_some());
    };
    if let Some(other) = claimed_by_another(seen, pool) {
        return Some((
            Reason::InferencePoolClaimed,
            format!(
                "{words} follows the weights of GrpoRun {0}; this run waits until that one ends. `kubectl get grun {0}` shows how far it is; a run that describes its own pool in spec.inference.pool does not wait",
                other.name
            ),
        ));
    }
    if pool.spec.model != spec.model.source() {
        return Some((
            Reason::InferencePoolServesAnotherModel,
            format!(
                "{words} serves another model than spec.model; name a pool that serves it, or describe one in spec.inference.pool"
            ),
        ));
    }
    if let Some(why) = trained_by_another(seen, pool) {
        return Some((Reason::InferencePoolServesTrainedWeights, format!("{words} {why}")));
    }
    if let Some(why) = takes_no_weights(&seen.run.spec, &pool.spec) {
        return Some((Reason::InferencePoolTakesNoWeights, format!("{words} {why}")));
    }
    if let Some(why) = adapters_unusable(&seen.run.spec, &pool.spec) {
        return Some((Reason::InferencePoolTakesNoAdapter, format!("{words} {why}")));
    }
    if let Some(why) = experts_unreported(&seen.run.spec, &pool.spec) {
        return Some((Reason::InferencePoolReportsNoExperts, format!("{words} {why}")));
    }
    let external = pool.spec.engine.external.as_ref()?;
    if spec.mode == Mode::Train && external.api == ExternalApi::Chat {
        return Some((
            Reason::SamplerIsFrozen,
            format!(
                "{words} is an external server with api Chat: it returns neither token ids nor logprobs and takes no new weights, so nothing can be trained on its answers; use another pool, or mode: Evaluate"
            ),
        ));
    }
    let frozen =
        spec.mode == Mode::Train && external.weights == ExternalWeights::Frozen && !spec.algorithm.allow_frozen_sampler;
    if frozen {
        return Some((
            Reason::SamplerIsFrozen,
            format!(
                "{words} is an external server that takes no new weights, so every iteration would sample from the base model; use another pool, or describe the server in spec.inference.pool and accept it with spec.algorithm.allowFrozenSampler"
            ),
        ));
    }
    // The agent that probes for a pool of the run's own starts with the run: waiting for the probe here would be a
    // deadlock.
    if spec.inference.pool.is_some() {
        return None;
    }
    let probed = pool
        .status
        .iter()
        .flat_map(|status| &status.conditions)
        .find(|condition| condition.type_ == "Probed");
    match probed {
        Some(probed) if probed.status == "True" => None,
        Some(probed) => Some((
            Reason::ExternalServerNotProbed,
            format!(
                "{words} has not passed its probe, so a run may not sample from it: {}",
                probed.message
            ),
        )),
        None => Some((
            Reason::ExternalServerNotProbed,
            format!("{words} has not been probed yet"),
        )),
    }
}

/// Names weights of another run that claimed the pool before. Engines do not return to the base model, and the versions
/// of two runs have the same names.
fn trained_by_another(seen: &RunObservation, pool: &InferencePool) -> Option<String> {
    let status = pool.status.as_ref()?;
    let ours = |claim: &Option<Claim>| claim.as_ref().is_some_and(|claim| claim.uid == seen.owner.uid);
    let own_pool = seen.run.spec.inference.pool.is_some();
    if own_pool || ours(&status.claimed_by) || ours(&status.weights_of) {
        return None;
    }
    let is_ours = pool.spec.engine.external.is_none() && pool.spec.replicas > 0;
    let trained = match trained_weights(pool) {
        Some(trained) => trained,
        // Its agents did not answer: the last known state holds until they do.
        None if status.weights.is_none() && status.weights_of.is_some() && is_ours => "a version that is not known now",
        None => return None,
    };
    let whose = match &status.weights_of {
        Some(run) => format!("GrpoRun {}", run.name),
        None => "a run that claimed it".to_owned(),
    };
    Some(format!(
        "still serves {trained}, the weights of {whose}; {}",
        start_again(&seen.owner.namespace, seen.inference_name())
    ))
}

/// A version other than the base model. External engines are handled elsewhere.
fn trained_weights(pool: &InferencePool) -> Option<&str> {
    let weights = pool.status.as_ref()?.weights.as_deref()?;
    let mut versions = weights.split(',').filter(|_| pool.spec.engine.external.is_none());
    versions.find(|version| *version != BASE_VERSION)
}

fn start_again(namespace: &str, pool: &str) -> String {
    format!(
        "start its replicas again with `kubectl delete pods -n {namespace} -l {}={pool}`, then it serves its own model",
        names::INFERENCE_POOL
    )
}

/// Why a referenced pool cannot take new weights. For a pool of the run's own, the spec is refused.
fn takes_no_weights(run: &GrpoRunSpec, pool: &InferencePoolSpec) -> Option<String> {
    let nodes = pool.engine.nodes();
    (run.mode == Mode::Train && run.inference.pool.is_none() && nodes > 1).then(|| {
        format!(
            "has replicas of {nodes} pods, and new weights reach the disk of the first only, so every iteration would sample from the base model; name a pool whose engine has nodes: 1, or describe one in spec.inference.pool of another run"
        )
    })
}

/// Why a referenced pool cannot load the run's adapters. A pool of the run's own is configured for them.
fn adapters_unusable(run: &GrpoRunSpec, pool: &InferencePoolSpec) -> Option<String> {
    let lora = run.model.lora.as_ref().filter(|_| run.mode == Mode::Train)?;
    if run.inference.pool.is_some() || pool.engine.external.is_some() {
        return None;
    }
    if pool.engine.embedded.is_some() {
        return Some(
            "has an embedded engine, which loads whole weights only, and this run publishes adapters (spec.model.lora); name a pool of vllm or \
             sglang, or describe one in spec.inference.pool, whose engines get the adapter merged into the weights"
                .to_owned(),
        );
    }
    match &pool.lora {
        Some(limits) if limits.max_rank >= lora.rank => None,
        Some(limits) => Some(format!(
            "loads adapters of rank {} at most, and this run's have rank {} (spec.model.lora.rank); raise its spec.lora.maxRank",
            limits.max_rank, lora.rank
        )),
        None => Some(format!(
            "loads no adapters, and this run publishes some (spec.model.lora); give it spec.lora: {{maxRank: {}}}",
            lora.rank
        )),
    }
}

/// Why a referenced pool does not report the experts for router replay. A pool of the run's own is configured for it;
/// an external engine is not checked here.
fn experts_unreported(run: &GrpoRunSpec, pool: &InferencePoolSpec) -> Option<String> {
    let wanted = run.mode == Mode::Train && run.algorithm.router_replay == Some(true);
    let external = pool.engine.external.is_some();
    if !wanted || run.inference.pool.is_some() || external || pool.routed_experts == Some(true) {
        return None;
    }
    let remedy = match pool.engine.embedded {
        Some(_) => "name a pool of vllm or sglang",
        None => "give it spec.routedExperts: true",
    };
    Some(format!(
        "reports no experts, and this run replays them (spec.algorithm.routerReplay); {remedy}, or set routerReplay: false in another run"
    ))
}

fn inference_unready(seen: &RunObservation) -> Option<Blocker> {
    let words = pool_in_words::<InferencePool>(seen.inference_name());
    match &seen.inference {
        None => Some((Reason::InferencePoolMissing, format!("{words} is being made"))),
        Some(pool) => {
            let conditions = pool.status.as_ref().map(|status| status.conditions.as_slice());
            unready(Reason::InferencePoolNotReady, &words, conditions)
        }
    }
}

/// The judge's pool is missing, or serves weights that a run trained. Agents of a pool with a run's label accept only
/// that run's driver.
fn judge_unusable(seen: &RunObservation) -> Option<Blocker> {
    let name = seen.judge_name()?;
    let words = pool_in_words::<InferencePool>(name);
    let Some(pool) = &seen.judge else {
        return Some((
            Reason::JudgeMissing,
            format!(
                "there is no {words} in this namespace to judge the run's turns, or it cannot be read; create it, or name another pool in \
                 reward.process.poolRef of another run"
            ),
        ));
    };
    if let Some(run) = pool.metadata.labels.as_ref().and_then(|labels| labels.get(names::RUN)) {
        return Some((
            Reason::JudgeOwned,
            format!(
                "{words} is the own pool of GrpoRun {run} and follows its weights, so it cannot judge; name a pool that no run owns in \
                 reward.process.poolRef of another run"
            ),
        ));
    }
    let status = pool.status.as_ref()?;
    if let Some(claim) = &status.claimed_by {
        return Some((
            Reason::JudgeClaimed,
            format!(
                "{words} follows the weights of GrpoRun {0}, so it cannot judge; this run waits until that one ends. `kubectl get grun {0}` \
                 shows how far it is; a run should sample from another pool than this judge",
                claim.name
            ),
        ));
    }
    let trained = trained_weights(pool)?;
    Some((
        Reason::JudgeServesTrainedWeights,
        format!(
            "{words} still serves {trained}, the weights of a run that claimed it, so it cannot judge; {}",
            start_again(&seen.owner.namespace, name)
        ),
    ))
}

fn judge_unready(seen: &RunObservation) -> Option<Blocker> {
    let words = pool_in_words::<InferencePool>(seen.judge_name()?);
    let status = seen.judge.as_ref()?.status.as_ref();
    let conditions = status.map(|status| status.conditions.as_slice());
    unready(Reason::JudgeNotReady, &words, conditions)
}

fn sandboxes_unusable(seen: &RunObservation) -> Option<Blocker> {
    let words = pool_in_words::<SandboxPool>(seen.sandboxes_name());
    let (own, theirs) = (seen.owner.namespace.as_str(), seen.sandboxes_namespace());
    if theirs != own {
        let allows = |pool: &SandboxPool| pool.spec.allowed_namespaces.iter().any(|name| name == own);
        // One message for both causes: only namespaces that the pool lets in may learn whether it exists.
        let message = format!(
            "there is no {words} in namespace {theirs} that lets runs of namespace {own} in; correct sandboxes.poolRef, or have {own} added \
             to spec.allowedNamespaces of that pool"
        );
        if !seen.sandboxes.as_ref().is_some_and(allows) {
            return Some((Reason::SandboxPoolMissing, message));
        }
    }
    match &seen.sandboxes {
        Some(pool) => {
            lacks_the_agent(seen, pool).map(|message| (Reason::AgentImageMissing, format!("{words} {message}")))
        }
        None => missing(
            Reason::SandboxPoolMissing,
            &words,
            seen.run.spec.sandboxes.pool.is_some(),
        ),
    }
}

/// A pool of the run's own gets the agent's image in the next reconcile; a referenced pool must have it.
fn lacks_the_agent(seen: &RunObservation, pool: &SandboxPool) -> Option<String> {
    let wanted = &seen.run.spec.agent.cli.as_ref()?.image;
    let given = pool.spec.agent_image.as_ref();
    if given == Some(wanted) || seen.run.spec.sandboxes.pool.is_some() {
        return None;
    }
    let has = match given {
        Some(image) => format!("has the agent image {image}"),
        None => "has no agent image".to_owned(),
    };
    Some(format!(
        "{has}, but spec.agent.cli.image of this run is {wanted}; set spec.agentImage of the pool to that image, name another pool, or give \
         sandboxes.pool in another run"
    ))
}

fn sandboxes_unready(seen: &RunObservation) -> Option<Blocker> {
    let words = pool_in_words::<SandboxPool>(seen.sandboxes_name());
    match &seen.sandboxes {
        None => Some((Reason::SandboxPoolMissing, format!("{words} is being made"))),
        Some(pool) => {
            let conditions = pool.status.as_ref().map(|status| status.conditions.as_slice());
            unready(Reason::SandboxPoolNotReady, &words, conditions)
        }
    }
}

/// This reconcile creates a pool of the run's own; a referenced pool must exist.
fn missing(reason: Reason, words: &str, own: bool) -> Option<Blocker> {
    (!own).then(|| {
        (
            reason,
            format!("there is no {words} in this namespace, or it cannot be read; create it, or correct poolRef"),
        )
    })
}

fn unready(reason: Reason, words: &str, conditions: Option<&[Condition]>) -> Option<Blocker> {
    let ready = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.type_ == "Ready");
    match ready {
        Some(ready) if ready.status == "True" => None,
        Some(ready) => Some((reason, format!("{words}: {}", ready.message))),
        None => Some((reason, format!("{words} has not been looked at yet"))),
    }
}

fn claimed_by_another<'a>(seen: &RunObservation, pool: &'a InferencePool) -> Option<&'a Claim> {
    pool.status
        .as_ref()?
        .claimed_by
        .as_ref()
        .filter(|claim| claim.uid != seen.owner.uid)
}

#[cfg(test)]
mod tests;
