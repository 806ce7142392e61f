//! What is to be done about a run. Pure: everything it needs is in [`RunObservation`], everything it wants is in
//! [`Decision`].

use grpo_crds::grpo_run::{Attempts, Phase};
use kube::{ResourceExt, runtime::events::Event};

use super::{
    blockers,
    decision::{ADMITTED, AdmissionStep, ClaimStep, Decision, FAILED, PROVISIONED, SUCCEEDED},
    objects::objects,
    observation::RunObservation,
    process_pods,
    status::{conditions, phase_before, status},
    terminal::{End, end, over, recorded_end, suspended, terminating},
};
use crate::{
    admission::{Candidate, Gate, whole},
    conditions::ConditionStatus,
    desired_object::DesiredObject,
    events::{normal, warning},
    names::{self, role},
    pod_group::{Group, GroupUpdate, advance},
    pods::PodFacts,
    settings::Settings,
};

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
            .map_or_else(|| seen.attempts.trainer.clone(), |update| update.status.clone()),
    };
    let events = attempt_events(&driver, trainer.as_ref());
    match end(seen, &driver, trainer.as_ref()) {
        Some(end) => over(seen, attempts, &end, events),
        None => going_on(seen, settings, &driver, trainer.as_ref(), attempts, events),
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
    driver: &GroupUpdate,
    trainer: Option<&GroupUpdate>,
    attempts: Attempts,
    mut events: Vec<Event>,
) -> Decision {
    let (mut blockers, admission) = (blockers::before_admission(seen), blockers::admission(seen));
    let may_ask = blockers.is_empty();
    let admitted = may_ask && admission.admitted;
    let (phase, admitted_reason, admitted_message) = if let Some((reason, message)) = blockers.first() {
        (Phase::Pending, *reason, message.clone())
    } else if admitted {
        (Phase::Provisioning, admission.reason, admission.message)
    } else {
        blockers.extend(blockers::pauses(driver, trainer));
        blockers.push((admission.reason, admission.message.clone()));
        (Phase::Queued, admission.reason, admission.message)
    };
    if admitted {
        blockers = blockers::before_running(seen, driver, trainer);
    }
    let (phase, provisioned, reason, message) = match blockers.first() {
        None => (
            Phase::Running,
            ConditionStatus::True,
            "Running",
            "all pods and pools are ready".to_owned(),
        ),
        Some((reason, _)) => {
            let messages: Vec<&str> = blockers.iter().map(|(_, message)| message.as_str()).collect();
            (phase, ConditionStatus::False, *reason, messages.join("; "))
        }
    };
    if phase_before(seen) != Some(phase) {
        events.push(normal(format!("{phase:?}"), message.clone()));
    }
    let conditions = conditions(seen)
        .set(
            ADMITTED,
            ConditionStatus::of(admitted),
            admitted_reason,
            &admitted_message,
        )
        .set(PROVISIONED, provisioned, reason, &message)
        .set(SUCCEEDED, ConditionStatus::False, "NotFinished", "the run goes on")
        .set(FAILED, ConditionStatus::False, "NotFinished", "the run goes on")
        .done();
    let delete_pods = driver
        .delete
        .iter()
        .chain(trainer.iter().flat_map(|update| &update.delete))
        .cloned()
        .collect();
    let delete_services = trainer
        .filter(|update| update.ended.is_some() && update.status.current > 1)
        .map(|update| names::trainer_hosts(&seen.owner.name, update.status.current - 1));
    Decision {
        objects: objects(seen, attempts.driver.current, attempts.trainer.current),
        create: pods_to_make(seen, settings, driver, trainer, &attempts),
        delete_pods,
        delete_services: delete_services.into_iter().collect(),
        claim: claim(seen),
        admission: if may_ask {
            AdmissionStep::Expect(candidate(seen))
        } else {
            AdmissionStep::Forget
        },
        events,
        retry_in: [Some(driver), trainer]
            .into_iter()
            .flatten()
            .filter_map(|update| update.retry_in)
            .min(),
        ..Decision::nothing(status(seen, phase, message, attempts, conditions))
    }
}

/// Pods of both groups, each behind the gate of the run.
fn pods_to_make(
    seen: &RunObservation,
    settings: &Settings,
    driver: &GroupUpdate,
    trainer: Option<&GroupUpdate>,
    attempts: &Attempts,
) -> Vec<(&'static str, DesiredObject, PodFacts)> {
    let gate = Gate::of_run(&seen.run);
    let mut pods = Vec::new();
    for _ in &driver.create {
        let attempt = attempts.driver.current;
        let pod = process_pods::driver(seen, settings, attempt);
        pods.push((role::DRIVER, pod, attempt, 0));
    }
    if let (Some(update), Some(spec)) = (trainer, &seen.run.spec.trainer) {
        let attempt = attempts.trainer.current;
        for rank in &update.create {
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

fn claim(seen: &RunObservation) -> ClaimStep {
    match &seen.inference {
        Some(pool) if pool.status.as_ref().is_none_or(|status| status.claimed_by.is_none()) => ClaimStep::Take,
        _ => ClaimStep::Leave,
    }
}

fn attempt_events(driver: &GroupUpdate, trainer: Option<&GroupUpdate>) -> Vec<Event> {
    [("DriverAttemptEnded", Some(driver)), ("TrainerAttemptEnded", trainer)]
        .into_iter()
        .filter_map(|(reason, update)| {
            let (attempt, how) = update?.ended.as_ref()?;
            Some(warning(reason, format!("attempt {attempt} ended: {how}")))
        })
        .collect()
}
