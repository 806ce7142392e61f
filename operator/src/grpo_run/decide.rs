//! What is to be done about a run. Pure: everything it needs is in [`Seen`], everything it wants is in [`Decision`].

use std::time::Duration;

use grpo_crds::{
    Fault, InferencePool, SandboxPool,
    grpo_run::{Attempts, GrpoRunStatus, Mode, Phase},
    inference_pool::Claim,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::{
    objects::{objects, pool_in_words},
    process_pods,
    read::{Seen, StoreVolume},
};
use crate::{
    child::Child,
    cluster::Note,
    conditions::{Conditions, Holds, holds},
    names::{self, role},
    pod_group::{Group, GroupState, Plan, advance},
    pods::{Failure, PodFacts},
    settings::Settings,
};

pub const PROVISIONED: &str = "Provisioned";
pub const SUCCEEDED: &str = "Succeeded";
pub const FAILED: &str = "Failed";

/// The exit code by which a driver says that the run cannot go on.
const FAULT_CODE: i32 = 42;

/// Everything that is to be done.
#[derive(Debug)]
pub struct Decision {
    /// Objects that should be as given here.
    pub children: Vec<Child>,
    /// Pods to make: whose, which, and what is known of them until a watch shows them.
    pub create: Vec<(&'static str, Child, PodFacts)>,
    /// Names of pods to delete.
    pub delete_pods: Vec<String>,
    /// Names of services of earlier attempts.
    pub delete_services: Vec<String>,
    /// The run is over: the pools that were made for it go.
    pub delete_pools: bool,
    pub claim: ClaimStep,
    /// The operator's part of the status; `progress` is never in it.
    pub status: GrpoRunStatus,
    pub notes: Vec<Note>,
    pub retry_in: Option<Duration>,
}

/// What happens to the claim on the InferencePool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimStep {
    Leave,
    Take,
    Release,
}

/// How the run ends.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    Succeeded,
    Failed(Fault),
}

pub fn decide(seen: &Seen, settings: &Settings) -> Decision {
    if seen.run.metadata.deletion_timestamp.is_some() {
        return terminating(seen);
    }
    if let Some(end) = recorded_end(&seen.run.status) {
        return over(seen, seen.attempts.clone(), &end, Vec::new());
    }
    let driver = advance(&driver_group(seen), &seen.attempts.driver, &seen.driver_pods, seen.now);
    let trainer =
        trainer_group(seen).map(|group| advance(&group, &seen.attempts.trainer, &seen.trainer_pods, seen.now));
    let attempts = Attempts {
        driver: driver.status.clone(),
        trainer: trainer
            .as_ref()
            .map_or_else(|| seen.attempts.trainer.clone(), |plan| plan.status.clone()),
    };
    let notes = attempt_notes(&driver, trainer.as_ref());
    match end(seen, &driver, trainer.as_ref()) {
        Some(end) => over(seen, attempts, &end, notes),
        None => going_on(seen, settings, &driver, trainer.as_ref(), attempts, notes),
    }
}

fn driver_group(seen: &Seen) -> Group {
    let progress = seen.run.status.as_ref().and_then(|status| status.progress.as_ref());
    let mark = progress.map(|progress| {
        format!(
            "{}/{}/{}",
            progress.iteration.unwrap_or(0),
            progress.episodes_done.unwrap_or(0),
            progress.weights.as_deref().unwrap_or("base")
        )
    });
    Group {
        size: 1,
        limit: seen.run.spec.failure_policy.max_consecutive_failures,
        fault_code: Some(FAULT_CODE),
        mark: mark.unwrap_or_default(),
        start: None,
    }
}

/// None for a run that does not train.
fn trainer_group(seen: &Seen) -> Option<Group> {
    let trainer = seen
        .run
        .spec
        .trainer
        .as_ref()
        .filter(|_| seen.run.spec.mode == Mode::Train)?;
    let progress = seen.run.status.as_ref().and_then(|status| status.progress.as_ref());
    Some(Group {
        size: trainer.nodes,
        limit: seen.run.spec.failure_policy.max_consecutive_failures,
        fault_code: None,
        mark: progress
            .and_then(|progress| progress.weights.clone())
            .unwrap_or_default(),
        start: Some(trainer.deadlines.start()),
    })
}

/// The end that an earlier reconcile wrote down. It is never taken back.
fn recorded_end(status: &Option<GrpoRunStatus>) -> Option<End> {
    let conditions = &status.as_ref()?.conditions;
    if holds(conditions, SUCCEEDED) {
        return Some(End::Succeeded);
    }
    let failed = conditions
        .iter()
        .find(|condition| condition.type_ == FAILED && condition.status == "True")?;
    Some(End::Failed(Fault {
        reason: failed.reason.clone(),
        message: failed.message.clone(),
    }))
}

fn end(seen: &Seen, driver: &Plan, trainer: Option<&Plan>) -> Option<End> {
    let failed = |reason: &str, message: &str| {
        Some(End::Failed(Fault {
            reason: reason.to_owned(),
            message: message.to_owned(),
        }))
    };
    match (&driver.state, trainer.map(|plan| &plan.state)) {
        (GroupState::Succeeded, _) => Some(End::Succeeded),
        (GroupState::Fault(failure), _) => Some(End::Failed(declared_fault(seen, failure))),
        (GroupState::Exhausted { message }, _) => failed("DriverFailed", message),
        (_, Some(GroupState::Exhausted { message })) => failed("TrainerFailed", message),
        _ => None,
    }
}

/// The fault the driver declared: in its termination message, or in this run's progress.
fn declared_fault(seen: &Seen, failure: &Failure) -> Fault {
    let said = failure
        .last_words
        .as_deref()
        .and_then(|words| serde_json::from_str(words.trim()).ok());
    let written = || {
        let progress = seen.run.status.as_ref()?.progress.as_ref()?;
        let own = progress.run_uid.as_deref() == Some(seen.owner.uid.as_str());
        progress.fault.clone().filter(|_| own)
    };
    let mut fault = said.or_else(written).unwrap_or_else(|| Fault {
        reason: "DriverFault".into(),
        message: failure.message.clone(),
    });
    fault.reason = as_reason(&fault.reason);
    fault
}

/// A condition's reason has to be one word; anything else would make the whole status invalid.
fn as_reason(text: &str) -> String {
    let word: String = text.chars().filter(char::is_ascii_alphanumeric).take(128).collect();
    if word.starts_with(|first: char| first.is_ascii_alphabetic()) {
        word
    } else {
        format!("Fault{word}")
    }
}

/// Being deleted: owner references do the rest.
fn terminating(seen: &Seen) -> Decision {
    let previous = seen.run.status.clone().unwrap_or_default();
    Decision {
        children: Vec::new(),
        create: Vec::new(),
        delete_pods: Vec::new(),
        delete_services: Vec::new(),
        delete_pools: false,
        claim: if claims(seen) {
            ClaimStep::Release
        } else {
            ClaimStep::Leave
        },
        status: GrpoRunStatus {
            phase: Some(Phase::Terminating),
            message: Some("being deleted".into()),
            ..previous
        },
        notes: Vec::new(),
        retry_in: None,
    }
}

/// Over: what it held is given back, what it knows stays.
fn over(seen: &Seen, attempts: Attempts, end: &End, mut notes: Vec<Note>) -> Decision {
    let (phase, message) = match end {
        End::Succeeded => (
            Phase::Succeeded,
            "all iterations and evaluations are finished".to_owned(),
        ),
        End::Failed(fault) => (Phase::Failed, format!("{}: {}", fault.reason, fault.message)),
    };
    if phase_before(seen) != Some(phase) {
        notes.push(match end {
            End::Succeeded => note(false, "Succeeded", message.clone()),
            End::Failed(fault) => note(true, &fault.reason, fault.message.clone()),
        });
    }
    let conditions = conditions(seen).set(
        PROVISIONED,
        Holds::No,
        "Finished",
        "its pods and the pools made for it are gone",
    );
    let conditions = match end {
        End::Succeeded => {
            conditions
                .set(SUCCEEDED, Holds::Yes, "Finished", &message)
                .set(FAILED, Holds::No, "Finished", &message)
        }
        End::Failed(fault) => conditions.set(SUCCEEDED, Holds::No, &fault.reason, &fault.message).set(
            FAILED,
            Holds::Yes,
            &fault.reason,
            &fault.message,
        ),
    };
    let held = seen.driver_pods.iter().chain(&seen.trainer_pods);
    Decision {
        children: Vec::new(),
        create: Vec::new(),
        delete_pods: held
            .filter(|pod| !pod.is_finished() && !pod.deleting)
            .map(|pod| pod.name.clone())
            .collect(),
        delete_services: Vec::new(),
        delete_pools: true,
        claim: if claims(seen) {
            ClaimStep::Release
        } else {
            ClaimStep::Leave
        },
        status: status(seen, phase, message, attempts, conditions.done()),
        notes,
        retry_in: None,
    }
}

fn going_on(
    seen: &Seen,
    settings: &Settings,
    driver: &Plan,
    trainer: Option<&Plan>,
    attempts: Attempts,
    mut notes: Vec<Note>,
) -> Decision {
    let blockers = blockers(seen, driver, trainer);
    let (phase, holds, reason, message) = match blockers.first() {
        None => (
            Phase::Running,
            Holds::Yes,
            "Running",
            "all pods and pools are ready".to_owned(),
        ),
        Some((reason, _)) => {
            let messages: Vec<&str> = blockers.iter().map(|(_, message)| message.as_str()).collect();
            (Phase::Provisioning, Holds::No, *reason, messages.join("; "))
        }
    };
    if phase_before(seen) != Some(phase) {
        notes.push(note(false, &format!("{phase:?}"), message.clone()));
    }
    let conditions = conditions(seen)
        .set(PROVISIONED, holds, reason, &message)
        .set(SUCCEEDED, Holds::No, "NotFinished", "the run goes on")
        .set(FAILED, Holds::No, "NotFinished", "the run goes on")
        .done();

    let mut create = Vec::new();
    for _ in &driver.create {
        let pod = process_pods::driver(seen, settings, attempts.driver.current);
        let facts = PodFacts::just_made(pod.name.clone(), attempts.driver.current, 0);
        create.push((role::DRIVER, pod, facts));
    }
    if let (Some(plan), Some(spec)) = (trainer, &seen.run.spec.trainer) {
        for rank in &plan.create {
            let pod = process_pods::trainer(seen, spec, settings, &attempts.trainer, *rank);
            let facts = PodFacts::just_made(pod.name.clone(), attempts.trainer.current, *rank);
            create.push((role::TRAINER, pod, facts));
        }
    }
    let delete_pods = driver
        .delete
        .iter()
        .chain(trainer.iter().flat_map(|plan| &plan.delete))
        .cloned()
        .collect();
    let delete_services = trainer
        .filter(|plan| plan.ended.is_some() && plan.status.current > 1)
        .map(|plan| names::trainer_hosts(&seen.owner.name, plan.status.current - 1));
    Decision {
        children: objects(seen, attempts.driver.current, attempts.trainer.current),
        create,
        delete_pods,
        delete_services: delete_services.into_iter().collect(),
        delete_pools: false,
        claim: claim(seen),
        status: status(seen, phase, message, attempts, conditions),
        notes,
        retry_in: [Some(driver), trainer]
            .into_iter()
            .flatten()
            .filter_map(|plan| plan.retry_in)
            .min(),
    }
}

/// Everything the run waits for, the most fundamental first.
fn blockers(seen: &Seen, driver: &Plan, trainer: Option<&Plan>) -> Vec<(&'static str, String)> {
    let mut blockers = Vec::new();
    if seen.store == StoreVolume::Missing {
        let claim = seen
            .run
            .spec
            .store
            .persistent_volume_claim
            .as_ref()
            .map_or("", |claim| &claim.claim_name);
        blockers.push((
            "StoreMissing",
            format!(
                "store: there is no PersistentVolumeClaim {claim} in namespace {}; make it",
                seen.owner.namespace
            ),
        ));
    }
    blockers.extend(inference_blocker(seen));
    blockers.extend(sandboxes_blocker(seen));
    blockers.extend(group_blocker("DriverNotReady", "driver", driver));
    blockers.extend(trainer.and_then(|plan| group_blocker("TrainerNotReady", "trainer", plan)));
    blockers
}

fn group_blocker(reason: &'static str, group: &str, plan: &Plan) -> Option<(&'static str, String)> {
    match &plan.state {
        GroupState::Starting { message } | GroupState::Pausing { message } => {
            Some((reason, format!("{group}: {message}")))
        }
        GroupState::Running | GroupState::Succeeded | GroupState::Fault(_) | GroupState::Exhausted { .. } => None,
    }
}

fn inference_blocker(seen: &Seen) -> Option<(&'static str, String)> {
    let words = pool_in_words::<InferencePool>(seen.inference_name());
    let Some(pool) = &seen.inference else {
        return Some((
            "InferencePoolMissing",
            missing_pool(&words, seen.run.spec.inference.pool.is_some()),
        ));
    };
    if let Some(other) = claimed_by_another(seen, pool) {
        return Some((
            "InferencePoolClaimed",
            format!(
                "{words} follows the weights of GrpoRun {}; this run waits until that one ends",
                other.name
            ),
        ));
    }
    if pool.spec.model != seen.run.spec.model.source() {
        return Some((
            "InferencePoolServesAnotherModel",
            format!(
                "{words} serves another model than spec.model; name a pool that serves it, or describe one in spec.inference.pool"
            ),
        ));
    }
    let conditions = pool.status.as_ref().map(|status| status.conditions.as_slice());
    unready("InferencePoolNotReady", &words, conditions)
}

fn sandboxes_blocker(seen: &Seen) -> Option<(&'static str, String)> {
    let words = pool_in_words::<SandboxPool>(seen.sandboxes_name());
    let Some(pool) = &seen.sandboxes else {
        return Some((
            "SandboxPoolMissing",
            missing_pool(&words, seen.run.spec.sandboxes.pool.is_some()),
        ));
    };
    let conditions = pool.status.as_ref().map(|status| status.conditions.as_slice());
    unready("SandboxPoolNotReady", &words, conditions)
}

fn missing_pool(words: &str, in_place: bool) -> String {
    if in_place {
        format!("{words} is being made")
    } else {
        format!("there is no {words} in this namespace; make it, or correct poolRef")
    }
}

fn unready(reason: &'static str, words: &str, conditions: Option<&[Condition]>) -> Option<(&'static str, String)> {
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

fn claimed_by_another<'a>(seen: &Seen, pool: &'a InferencePool) -> Option<&'a Claim> {
    pool.status
        .as_ref()?
        .claimed_by
        .as_ref()
        .filter(|claim| claim.uid != seen.owner.uid)
}

/// Whether the pool follows this run.
fn claims(seen: &Seen) -> bool {
    let claim = seen
        .inference
        .as_ref()
        .and_then(|pool| pool.status.as_ref()?.claimed_by.as_ref());
    claim.is_some_and(|claim| claim.uid == seen.owner.uid)
}

fn claim(seen: &Seen) -> ClaimStep {
    match &seen.inference {
        Some(pool) if pool.status.as_ref().is_none_or(|status| status.claimed_by.is_none()) => ClaimStep::Take,
        _ => ClaimStep::Leave,
    }
}

fn attempt_notes(driver: &Plan, trainer: Option<&Plan>) -> Vec<Note> {
    [("DriverAttemptEnded", Some(driver)), ("TrainerAttemptEnded", trainer)]
        .into_iter()
        .filter_map(|(reason, plan)| {
            let (attempt, how) = plan?.ended.as_ref()?;
            Some(note(true, reason, format!("attempt {attempt} ended: {how}")))
        })
        .collect()
}

fn note(warning: bool, reason: &str, text: String) -> Note {
    Note {
        warning,
        reason: reason.to_owned(),
        action: "Reconcile",
        text,
    }
}

fn phase_before(seen: &Seen) -> Option<Phase> {
    seen.run.status.as_ref().and_then(|status| status.phase)
}

fn conditions(seen: &Seen) -> Conditions<'_> {
    let previous = seen
        .run
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    Conditions::after(previous, seen.run.metadata.generation, Time(seen.now))
}

fn status(seen: &Seen, phase: Phase, message: String, attempts: Attempts, conditions: Vec<Condition>) -> GrpoRunStatus {
    GrpoRunStatus {
        phase: Some(phase),
        message: Some(crate::conditions::shortened(&message)),
        observed_generation: seen.run.metadata.generation,
        objective: None,
        plan: Vec::new(),
        conditions,
        attempts: Some(attempts),
        progress: None,
    }
}
