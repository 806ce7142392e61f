//! What is to be done about a run. Pure: everything it needs is in [`RunObservation`], everything it wants is in [`Decision`].

use std::time::Duration;

use grpo_crds::grpo_run::{Attempts, GrpoRunStatus, Phase};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt;

use super::{
    ends::{End, end, over, recorded_end, suspended, terminating},
    objects::objects,
    observation::RunObservation,
    process_pods, summary, waits,
};
use crate::{
    admission::{Candidate, Gate, whole},
    child::Child,
    conditions::{Conditions, Holds},
    events::Note,
    names::{self, role},
    pod_group::{Group, Plan, advance},
    pods::PodFacts,
    settings::Settings,
};

pub const ADMITTED: &str = "Admitted";
pub const PROVISIONED: &str = "Provisioned";
pub const SUCCEEDED: &str = "Succeeded";
pub const FAILED: &str = "Failed";

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
    /// The pools that were made for the run go: it is over, or suspended.
    pub delete_pools: bool,
    /// The run has been over for as long as it was to be kept.
    pub delete_run: bool,
    pub claim: ClaimStep,
    pub admission: AdmissionStep,
    /// The operator's part of the status; `progress` is never in it.
    pub status: GrpoRunStatus,
    pub notes: Vec<Note>,
    pub retry_in: Option<Duration>,
}

impl Decision {
    /// Does nothing but write this status.
    pub fn nothing(status: GrpoRunStatus) -> Self {
        Self {
            children: Vec::new(),
            create: Vec::new(),
            delete_pods: Vec::new(),
            delete_services: Vec::new(),
            delete_pools: false,
            delete_run: false,
            claim: ClaimStep::Leave,
            admission: AdmissionStep::Forget,
            status,
            notes: Vec::new(),
            retry_in: None,
        }
    }
}

/// What happens to the claim on the InferencePool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimStep {
    Leave,
    Take,
    Release,
}

/// What admission is told about the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdmissionStep {
    /// Its gates may be lifted when all of it fits.
    Expect(Candidate),
    /// Its gates stay, or it has none.
    Forget,
}

pub fn decide(seen: &RunObservation, settings: &Settings) -> Decision {
    if seen.run.metadata.deletion_timestamp.is_some() {
        return terminating(seen);
    }
    match recorded_end(&seen.run.status) {
        Some(End::Failed(_)) | None if seen.run.spec.suspend => return suspended(seen),
        Some(end) => return over(seen, seen.attempts.clone(), &end, Vec::new()),
        None => {}
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

fn driver_group(seen: &RunObservation) -> Group {
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
        fault_code: Some(i32::from(grpo_contracts::exit::FAULT_CODE)),
        mark: mark.unwrap_or_default(),
        start: None,
    }
}

/// None for a run that does not train.
fn trainer_group(seen: &RunObservation) -> Option<Group> {
    let spec = &seen.run.spec;
    let trainer = spec.trainer.as_ref().filter(|_| spec.mode.needs_trainer())?;
    let progress = seen.run.status.as_ref().and_then(|status| status.progress.as_ref());
    Some(Group {
        size: trainer.nodes,
        limit: spec.failure_policy.max_consecutive_failures,
        fault_code: None,
        mark: progress
            .and_then(|progress| progress.weights.clone())
            .unwrap_or_default(),
        start: Some(trainer.deadlines.start()),
    })
}

fn going_on(
    seen: &RunObservation,
    settings: &Settings,
    driver: &Plan,
    trainer: Option<&Plan>,
    attempts: Attempts,
    mut notes: Vec<Note>,
) -> Decision {
    let (mut waits, admission) = (waits::before_admission(seen), waits::admission(seen));
    let may_ask = waits.is_empty();
    let admitted = may_ask && admission.admitted;
    let (phase, admitted_reason, admitted_message) = if let Some((reason, message)) = waits.first() {
        (Phase::Pending, *reason, message.clone())
    } else if admitted {
        (Phase::Provisioning, admission.reason, admission.message)
    } else {
        waits.extend(waits::pauses(driver, trainer));
        waits.push((admission.reason, admission.message.clone()));
        (Phase::Queued, admission.reason, admission.message)
    };
    if admitted {
        waits = waits::before_running(seen, driver, trainer);
    }
    let (phase, provisioned, reason, message) = match waits.first() {
        None => (
            Phase::Running,
            Holds::Yes,
            "Running",
            "all pods and pools are ready".to_owned(),
        ),
        Some((reason, _)) => {
            let messages: Vec<&str> = waits.iter().map(|(_, message)| message.as_str()).collect();
            (phase, Holds::No, *reason, messages.join("; "))
        }
    };
    if phase_before(seen) != Some(phase) {
        notes.push(note(false, &format!("{phase:?}"), message.clone()));
    }
    let conditions = conditions(seen)
        .set(ADMITTED, Holds::of(admitted), admitted_reason, &admitted_message)
        .set(PROVISIONED, provisioned, reason, &message)
        .set(SUCCEEDED, Holds::No, "NotFinished", "the run goes on")
        .set(FAILED, Holds::No, "NotFinished", "the run goes on")
        .done();
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
        create: pods_to_make(seen, settings, driver, trainer, &attempts),
        delete_pods,
        delete_services: delete_services.into_iter().collect(),
        claim: claim(seen),
        admission: if may_ask {
            AdmissionStep::Expect(candidate(seen))
        } else {
            AdmissionStep::Forget
        },
        notes,
        retry_in: [Some(driver), trainer]
            .into_iter()
            .flatten()
            .filter_map(|plan| plan.retry_in)
            .min(),
        ..Decision::nothing(status(seen, phase, message, attempts, conditions))
    }
}

/// Pods of both groups, each behind the gate of the run.
fn pods_to_make(
    seen: &RunObservation,
    settings: &Settings,
    driver: &Plan,
    trainer: Option<&Plan>,
    attempts: &Attempts,
) -> Vec<(&'static str, Child, PodFacts)> {
    let gate = Gate::of_run(&seen.run);
    let mut pods = Vec::new();
    for _ in &driver.create {
        let attempt = attempts.driver.current;
        let pod = process_pods::driver(seen, settings, attempt);
        pods.push((role::DRIVER, pod, attempt, 0));
    }
    if let (Some(plan), Some(spec)) = (trainer, &seen.run.spec.trainer) {
        let attempt = attempts.trainer.current;
        for rank in &plan.create {
            let pod = process_pods::trainer(seen, spec, settings, &attempts.trainer, *rank);
            pods.push((role::TRAINER, pod, attempt, *rank));
        }
    }
    pods.into_iter()
        .map(|(role, mut pod, attempt, rank)| {
            gate.put_on(&mut pod.object);
            let facts = PodFacts::just_made(pod.name.clone(), attempt, rank);
            (role, pod, facts)
        })
        .collect()
}

/// The run as admission has to know it.
fn candidate(seen: &RunObservation) -> Candidate {
    let created = seen.run.creation_timestamp();
    Candidate {
        uid: seen.owner.uid.clone(),
        namespace: seen.owner.namespace.clone(),
        name: seen.owner.name.clone(),
        created: created.map_or(seen.now, |created| created.0),
        whole: whole(&seen.run).into_iter().collect(),
        store_node: seen.store_node.clone(),
    }
}

/// Whether the pool follows this run.
fn claims(seen: &RunObservation) -> bool {
    let claim = seen
        .inference
        .as_ref()
        .and_then(|pool| pool.status.as_ref()?.claimed_by.as_ref());
    claim.is_some_and(|claim| claim.uid == seen.owner.uid)
}

pub fn claim_release(seen: &RunObservation) -> ClaimStep {
    if claims(seen) {
        ClaimStep::Release
    } else {
        ClaimStep::Leave
    }
}

fn claim(seen: &RunObservation) -> ClaimStep {
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

pub fn note(warning: bool, reason: &str, text: String) -> Note {
    Note {
        warning,
        reason: reason.to_owned(),
        action: "Reconcile",
        text,
    }
}

pub fn phase_before(seen: &RunObservation) -> Option<Phase> {
    seen.run.status.as_ref().and_then(|status| status.phase)
}

pub fn conditions(seen: &RunObservation) -> Conditions<'_> {
    let previous = seen
        .run
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    Conditions::after(previous, seen.run.metadata.generation, Time(seen.now))
}

pub fn status(
    seen: &RunObservation,
    phase: Phase,
    message: String,
    attempts: Attempts,
    conditions: Vec<Condition>,
) -> GrpoRunStatus {
    GrpoRunStatus {
        phase: Some(phase),
        message: Some(crate::conditions::shortened(&message)),
        observed_generation: seen.run.metadata.generation,
        objective: summary::objective(&seen.run.spec),
        plan: summary::plan(
            seen,
            matches!(phase, Phase::Succeeded | Phase::Failed | Phase::Suspended),
        ),
        conditions,
        attempts: Some(attempts),
        progress: None,
    }
}
