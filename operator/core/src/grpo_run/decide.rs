//! Decides the changes for a run. Pure: all input is in [`RunObservation`], all output in [`Decision`].

use std::time::Duration;

use grpo_contracts::reason::Reason;
use grpo_crds::{
    AttemptStatus,
    grpo_run::{Attempts, Phase},
};
use jiff::Timestamp;
use kube::{ResourceExt, runtime::events::Event};

use super::{
    acceptance::{Acceptance, acceptance},
    blockers::{self, Blocker},
    colocation::SharedGpus,
    decision::{ADMITTED, AdmissionStep, ClaimStep, Decision, FAILED, PROVISIONED, SUCCEEDED},
    gpu_claims::{self, GpuClaimStep},
    hold::{AfterHold, held_back, hold},
    objects::objects,
    observation::{QueueState, RunObservation},
    process_pods,
    queue::{self, QueueVerdict},
    status::{claim_release, claims, conditions, phase_before, status},
    terminal::{End, end, evicted, over, recorded_end, resettled, suspended, terminating},
    workload::{self, Readiness},
};
use crate::{
    admission::{Candidate, Gate, decide::BIND_DEADLINE, messages, whole},
    conditions::ConditionStatus,
    desired_object::DesiredObject,
    events::{normal, warning},
    names::{self, role},
    pod_group::{GroupState, GroupUpdate, PodGroups, UpdatePolicy, advance},
    pods::PodFacts,
    settings::Settings,
};

/// Period of the check of unmet preconditions, and of the volumes that a waiting run mounts: no watch shows a volume
/// that a person creates, a claim that was replaced under its name, or that the scheduler has chosen the node of a
/// claim that is not the run's own. Shorter than the time after which admission requeues pods without a node.
const RECHECK: Duration = Duration::from_secs(20);
const _: () = assert!(RECHECK.as_secs() < BIND_DEADLINE.as_secs().unsigned_abs());

pub fn decide(seen: &RunObservation, settings: &Settings) -> Decision {
    if seen.run.metadata.deletion_timestamp.is_some() {
        return terminating(seen);
    }
    let recorded = recorded_end(&seen.run.status);
    let is_over = recorded.is_some() && !seen.run.spec.suspend;
    let accepted = acceptance(seen, settings, is_over);
    match recorded {
        Some(End::Failed(_)) | None if seen.run.spec.suspend => return suspended(seen, &accepted),
        Some(end) => return over(seen, &accepted, seen.attempts.clone(), &end, Vec::new()),
        None => {}
    }
    if let Some(fault) = accepted.refusal() {
        return over(seen, &accepted, seen.attempts.clone(), &End::Failed(fault), Vec::new());
    }
    if gpu_claims::are_stale(seen) {
        return resettled(seen, &accepted);
    }
    // A driver that has ended tells the run's end, for which no quota is needed.
    if !driver_has_ended(seen) {
        if let QueueVerdict::Evicted(why) = queue::verdict(seen) {
            return evicted(seen, &accepted, &why, queue::returned(seen));
        }
        if workload::asks_for_other_quota(seen, settings) {
            let why = "it asks for other quota than Kueue gave it";
            return evicted(seen, &accepted, why, queue::released(seen));
        }
    }
    let mut blockers = blockers::before_admission(seen);
    let may_ask = blockers.is_empty();
    let hold = hold(seen, &blockers);
    let next = |group: &PodGroups, known: &AttemptStatus, pods: &[PodFacts]| {
        held_back(advance(group, known, pods, seen.now), hold.as_ref(), pods)
    };
    let AfterHold {
        update: driver,
        mut held,
        mut give_back,
    } = next(&driver_group(seen), &seen.attempts.driver, &seen.driver_pods);
    let trainer = trainer_group(seen).map(|group| {
        let trainer = next(&group, &seen.attempts.trainer, &seen.trainer_pods);
        held |= trainer.held;
        give_back.extend(trainer.give_back);
        trainer.update
    });
    if let Some(wait) = seen.quota.as_ref().filter(|_| held) {
        blockers.insert(0, (Reason::QuotaExceeded, wait.message.clone()));
    }
    let attempts = Attempts {
        driver: driver.status.clone(),
        trainer: trainer
            .as_ref()
            .map_or_else(|| seen.attempts.trainer.clone(), |update| update.status.clone()),
    };
    let events = attempt_events(&driver, trainer.as_ref());
    match end(seen, &driver, trainer.as_ref()) {
        Some(end) => over(seen, &accepted, attempts, &end, events),
        None => {
            let create = pods_to_make(seen, settings, &driver, trainer.as_ref(), &attempts);
            let decision = going_on(seen, &accepted, &driver, trainer.as_ref(), attempts, blockers, events);
            let readiness = readiness(decision.status.phase, &driver, trainer.as_ref());
            give_back.extend(decision.give_back);
            Decision {
                create,
                give_back,
                workload: workload::step(seen, settings, may_ask, readiness),
                ..decision
            }
        }
    }
}

fn readiness(phase: Option<Phase>, driver: &GroupUpdate, trainer: Option<&GroupUpdate>) -> Readiness {
    let mut groups = [Some(driver), trainer].into_iter().flatten();
    match groups.all(|group| group.state == GroupState::Running) {
        true if phase == Some(Phase::Running) => Readiness::All,
        true => Readiness::DriverAndTrainer,
        false => Readiness::None,
    }
}

fn driver_has_ended(seen: &RunObservation) -> bool {
    let current = seen.attempts.driver.current;
    let mut pods = seen.driver_pods.iter();
    pods.any(|pod| pod.attempt == current && pod.is_finished())
}

fn driver_group(seen: &RunObservation) -> PodGroups {
    let progress = seen.run.status.as_ref().and_then(|status| status.progress.as_ref());
    let mark = progress.map(|progress| {
        format!(
            "{}/{}/{}",
            progress.iteration.unwrap_or(0),
            progress.episodes_done.unwrap_or(0),
            progress.weights.as_deref().unwrap_or("base")
        )
    });
    PodGroups {
        groups: 1,
        size: 1,
        update: UpdatePolicy::Recreate,
        limit: Some(seen.run.spec.failure_policy.max_consecutive_failures),
        fault_code: Some(i32::from(grpo_contracts::exit::FAULT_CODE)),
        ranks_report_peers: false,
        mark: Some(mark.unwrap_or_default()),
        start: None,
        same_devices: false,
    }
}

/// Returns `None` for a run that does not train.
fn trainer_group(seen: &RunObservation) -> Option<PodGroups> {
    let spec = &seen.run.spec;
    let trainer = spec.trainer.as_ref().filter(|_| spec.mode.needs_trainer())?;
    let progress = seen.run.status.as_ref().and_then(|status| status.progress.as_ref());
    let weights = progress.and_then(|progress| progress.weights.clone());
    Some(PodGroups {
        groups: 1,
        size: trainer.nodes,
        update: UpdatePolicy::Recreate,
        limit: Some(spec.failure_policy.max_consecutive_failures),
        fault_code: None,
        ranks_report_peers: true,
        mark: Some(weights.unwrap_or_default()),
        start: Some(trainer.deadlines.start()),
        same_devices: SharedGpus::of(spec).is_some(),
    })
}

fn going_on(
    seen: &RunObservation,
    accepted: &Acceptance,
    driver: &GroupUpdate,
    trainer: Option<&GroupUpdate>,
    attempts: Attempts,
    mut blockers: Vec<Blocker>,
    mut events: Vec<Event>,
) -> Decision {
    let admission = blockers::admission(seen);
    let queue = queue::verdict(seen);
    let may_ask = blockers.is_empty();
    let bound_to_places = seen.volumes.values().any(|terms| !terms.is_empty());
    let is_being_bound = admission.reason == Reason::BeingScheduled && seen.lacks_volumes();
    let waits_with_volumes =
        is_being_bound || (!admission.admitted && queue == QueueVerdict::NoQueue && bound_to_places);
    let lacks_kueue = matches!(seen.queue, QueueState::NotServed | QueueState::LacksClass(_)) && !admission.admitted;
    let gives_back = blockers.iter().any(|(reason, _)| *reason == Reason::QuotaExceeded);
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
        // The run now waits for nodes: this is reported before pods that are not ready.
        if admitted_reason == Reason::WaitsForNodes && !blockers.is_empty() {
            blockers.insert(0, (admitted_reason, admitted_message.clone()));
        }
    }
    let (phase, provisioned, reason, message) = match blockers.first() {
        None => (
            Phase::Running,
            ConditionStatus::True,
            Reason::Running,
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
    let conditions = conditions(seen, accepted)
        .set(
            ADMITTED,
            ConditionStatus::of(admitted),
            admitted_reason,
            &admitted_message,
        )
        .set(PROVISIONED, provisioned, reason, &message)
        .not_finished([SUCCEEDED, FAILED], "the run has not ended")
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
        give_back: match gives_back {
            true => seen.unbound_engines.clone(),
            false => Vec::new(),
        },
        delete_pods,
        delete_services: delete_services.into_iter().collect(),
        delete_gpu_claims: gpu_claims::step(seen) == GpuClaimStep::Delete,
        claim: claim(seen, !may_ask),
        admission: if may_ask && queue == QueueVerdict::NoQueue {
            AdmissionStep::Expect(candidate(seen))
        } else {
            AdmissionStep::Forget
        },
        events,
        retry_in: [Some(driver), trainer]
            .into_iter()
            .flatten()
            .filter_map(|update| update.retry_in)
            .chain((!may_ask || waits_with_volumes || lacks_kueue).then_some(RECHECK))
            .chain(seen.quota.as_ref().map(|wait| until(wait.until, seen.now)))
            .min(),
        ..Decision::nothing(status(seen, phase, message, attempts, conditions))
    }
}

/// The time until shortly after `then`: an earlier reconcile would decide the same.
fn until(then: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(then.duration_since(now)).unwrap_or_default() + Duration::from_millis(100)
}

/// Pods to create for both groups, each behind the run's gate, or where Kueue places it.
fn pods_to_make(
    seen: &RunObservation,
    settings: &Settings,
    driver: &GroupUpdate,
    trainer: Option<&GroupUpdate>,
    attempts: &Attempts,
) -> Vec<(&'static str, DesiredObject, PodFacts)> {
    let mut pods = Vec::new();
    for _ in &driver.create {
        let attempt = attempts.driver.current;
        let pod = process_pods::driver(seen, settings, &attempts.driver);
        pods.push((role::DRIVER, pod, attempt, 0));
    }
    if let (Some(update), Some(spec)) = (trainer, &seen.run.spec.trainer) {
        let attempt = attempts.trainer.current;
        for key in &update.create {
            let pod = process_pods::trainer(seen, spec, settings, &attempts.trainer, key.rank);
            pods.push((role::TRAINER, pod, attempt, key.rank));
        }
    }
    pods.into_iter()
        .map(|(role, mut pod, attempt, rank)| {
            Gate::of_run(&seen.run, || queue::placement(seen, role)).put_on(&mut pod.object);
            let facts = PodFacts::just_made(pod.name.clone(), attempt, rank);
            (role, pod, facts)
        })
        .collect()
}

/// The run as admission needs it.
fn candidate(seen: &RunObservation) -> Candidate {
    let created = seen.run.creation_timestamp();
    Candidate {
        uid: seen.owner.uid.clone(),
        namespace: seen.owner.namespace.clone(),
        name: seen.owner.name.clone(),
        created: created.map_or(seen.now, |created| created.0),
        pool: seen.own_inference().and_then(|pool| pool.uid()),
        unclaimed: seen.inference.is_some() && seen.run.spec.inference.pool_ref.is_some() && !claims(seen),
        whole: whole(&seen.run).into_iter().collect(),
        volumes: seen.volumes.clone(),
        provisioning: seen.provisioning.clone(),
    }
}

/// A run claims a shared pool when it can begin, and releases the claim if it no longer can and has not begun: a run
/// that never fits, waits for Kueue's quota, or lacks something, would block the pool for all others.
fn claim(seen: &RunObservation, blocked: bool) -> ClaimStep {
    let Some(pool) = &seen.inference else {
        return ClaimStep::Leave;
    };
    let shared = seen.run.spec.inference.pool_ref.is_some();
    let verdict = blockers::admission(seen);
    let waits = blocked || !verdict.admitted && verdict.reason != messages::CLAIMS_POOL;
    // No gate keeps the pods of a run with a queue from starting.
    let begun = match seen.run.spec.queue_name {
        Some(_) => seen.has_pods(),
        None => seen.has_begun(),
    };
    let cannot_begin = shared && waits && !begun;
    let free = pool.status.as_ref().is_none_or(|status| status.claimed_by.is_none());
    match cannot_begin {
        true => claim_release(seen),
        false if free => ClaimStep::Take,
        false => ClaimStep::Leave,
    }
}

fn attempt_events(driver: &GroupUpdate, trainer: Option<&GroupUpdate>) -> Vec<Event> {
    [
        (Reason::DriverAttemptEnded, Some(driver)),
        (Reason::TrainerAttemptEnded, trainer),
    ]
    .into_iter()
    .filter_map(|(reason, update)| {
        let (attempt, how) = update?.ended.as_ref()?;
        Some(warning(reason, format!("attempt {attempt} ended: {how}")))
    })
    .collect()
}
