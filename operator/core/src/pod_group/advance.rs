//! Computes the next steps of pod groups.

use std::time::Duration;

use grpo_crds::AttemptStatus;
use jiff::Timestamp;

use super::{
    attempts::{adopted, avoid, count_end, forget_avoided, forget_failures, pause_left, used_up},
    ending::{Ending, ending, who},
    group::{GroupState, GroupUpdate, PodGroups, UpdatePolicy},
    rolling::{Limits, RollingUpdate, rolling},
    unit::{Unit, devices_in_use, may_use_devices, units, until_lost},
};
use crate::{
    names::PodKey,
    pods::{Failure, PodFacts, PodState},
};

/// The next steps of pod groups.
pub fn advance(wanted: &PodGroups, known: &AttemptStatus, pods: &[PodFacts], now: Timestamp) -> GroupUpdate {
    let mut status = adopted(known, pods);
    let all = units(pods);
    let (mut live, old) = live(wanted, status.current, &all);
    let (mut delete, drained) = match wanted.update {
        UpdatePolicy::Recreate => (old.iter().flat_map(|unit| unit.undeleted()).collect(), None),
        UpdatePolicy::Rolling { .. } => ending_groups(&old, now),
    };

    if let Some(fault) = fault(wanted, &live) {
        return GroupUpdate::nothing(status, delete, GroupState::Fault(fault));
    }
    if all_succeeded(wanted, &live) {
        return GroupUpdate::nothing(status, delete, GroupState::Succeeded);
    }

    forget_avoided(wanted, &mut status);
    let ends = Ends::of(wanted, &status, &live, now);
    let mut retry_in = ends.not_yet.into_iter().chain(drained).min();
    let mut ended = None;
    if let Some(First {
        attempt,
        failure,
        started,
    }) = ends.first
    {
        count_end(wanted, &mut status, &failure, started, now);
        avoid(&mut status, ends.bad_nodes);
        if let Some(message) = used_up(wanted, &status, &failure) {
            return GroupUpdate {
                ended: Some((attempt, failure.message)),
                ..GroupUpdate::nothing(status, delete, GroupState::Exhausted { message })
            };
        }
        let (over, staying): (Vec<_>, Vec<_>) = match wanted.update {
            UpdatePolicy::Recreate => (live, Vec::new()),
            UpdatePolicy::Rolling { .. } => live.into_iter().partition(|unit| ends.over.contains(&unit.group)),
        };
        delete.extend(over.iter().flat_map(|unit| unit.undeleted()));
        live = staying;
        status.current = status.current.saturating_add(1);
        status.created = false;
        ended = Some((attempt, failure.message));
    }

    let change = change(wanted, &all, &mut live, &status, now);
    delete.extend(change.delete);
    if change.all_ready && ended.is_none() {
        forget_failures(&mut status);
    }
    if let Some(left) = pause_left(&status, now).filter(|_| change.lacks) {
        let message = pausing(&status, left);
        return GroupUpdate {
            retry_in: drained.into_iter().chain([left]).min(),
            ended,
            outdated: change.outdated,
            ..GroupUpdate::nothing(status, delete, GroupState::Pausing { message })
        };
    }

    let before = all.iter().filter(|unit| unit.attempt != status.current);
    let before = before.flat_map(|unit| unit.pods.iter().copied());
    let in_use: Vec<&PodFacts> = before
        .filter(|pod| wanted.same_devices && change.lacks && may_use_devices(pod, now))
        .collect();
    if let Some(pod) = in_use.first() {
        let message = format!("attempt {} waits: {}", status.current, devices_in_use(pod));
        return GroupUpdate {
            retry_in: until_lost(in_use.iter().copied(), now),
            ended,
            outdated: change.outdated,
            ..GroupUpdate::nothing(status, delete, GroupState::Pausing { message })
        };
    }

    let newest = change.create.iter().map(|key| key.attempt).max();
    status.current = status.current.max(newest.unwrap_or(0));
    status.created = true;
    status.not_before = None;
    retry_in = retry_in.into_iter().chain(change.retry_in).min();
    let state = match change.create.len() {
        0 => waiting(wanted, &live).map_or(GroupState::Running, |message| GroupState::Starting { message }),
        made => GroupState::Starting {
            message: format!(
                "attempt {}: making {made} of {} pods",
                status.current,
                wanted.groups * wanted.size
            ),
        },
    };
    GroupUpdate {
        status,
        create: change.create,
        delete,
        state,
        retry_in,
        ended,
        outdated: change.outdated,
    }
}

/// Groups that count, and groups that are being removed.
fn live<'a>(wanted: &PodGroups, attempt: u32, all: &[Unit<'a>]) -> (Vec<Unit<'a>>, Vec<Unit<'a>>) {
    match wanted.update {
        UpdatePolicy::Recreate => {
            let (current, old): (Vec<_>, Vec<_>) = all.iter().cloned().partition(|unit| unit.attempt == attempt);
            (whole(wanted, attempt, current), old)
        }
        // If one pod of a group is being deleted, its other pods go too.
        UpdatePolicy::Rolling { .. } => all.iter().cloned().partition(|unit| !unit.is_ending()),
    }
}

/// Pods to delete of groups that are being removed, and when a first pod that does not end counts as lost: then the
/// others of its group wait for it no more.
fn ending_groups(old: &[Unit<'_>], now: Timestamp) -> (Vec<String>, Option<Duration>) {
    let delete = old.iter().flat_map(|unit| unit.to_delete(now)).collect();
    let draining = old
        .iter()
        .filter(|unit| unit.drains(now) && unit.undeleted().next().is_some());
    let pods = draining.flat_map(|unit| unit.pods.iter().copied());
    (delete, until_lost(pods, now))
}

/// Every group of an attempt, including groups without pods.
fn whole<'a>(wanted: &PodGroups, attempt: u32, there: Vec<Unit<'a>>) -> Vec<Unit<'a>> {
    let none = |group| Unit {
        group,
        attempt,
        pods: Vec::new(),
    };
    let of = |group| there.iter().find(|unit| unit.group == group).cloned();
    (0..wanted.groups)
        .map(|group| of(group).unwrap_or_else(|| none(group)))
        .collect()
}

/// Creates and deletes pods towards the wanted groups.
fn change<'a>(
    wanted: &PodGroups,
    all: &[Unit<'a>],
    live: &mut Vec<Unit<'a>>,
    status: &AttemptStatus,
    now: Timestamp,
) -> RollingUpdate {
    match &wanted.update {
        UpdatePolicy::Recreate => {
            *live = whole(wanted, status.current, std::mem::take(live));
            let create: Vec<PodKey> = live.iter().flat_map(|unit| unit.missing(wanted.size)).collect();
            RollingUpdate {
                lacks: !create.is_empty(),
                create,
                ..RollingUpdate::default()
            }
        }
        UpdatePolicy::Rolling {
            template,
            max_surge,
            max_unavailable,
        } => {
            let limits = Limits {
                template,
                max_surge: *max_surge,
                max_unavailable: *max_unavailable,
            };
            rolling(wanted, &limits, all, live, status.current, now)
        }
    }
}

fn fault(wanted: &PodGroups, live: &[Unit<'_>]) -> Option<Failure> {
    let mut pods = live.iter().flat_map(|unit| &unit.pods);
    pods.find_map(|pod| match &pod.state {
        PodState::Failed(failure) if failure.exit_code.is_some() && failure.exit_code == wanted.fault_code => {
            Some(failure.clone())
        }
        _ => None,
    })
}

fn all_succeeded(wanted: &PodGroups, live: &[Unit<'_>]) -> bool {
    let succeeded = |unit: &Unit<'_>| {
        (0..wanted.size).all(|rank| {
            let mut pods = unit.pods.iter();
            pods.any(|pod| pod.rank == rank && pod.state == PodState::Succeeded)
        })
    };
    wanted.update == UpdatePolicy::Recreate && live.iter().all(succeeded)
}

/// The end of a group's attempt.
struct First {
    attempt: u32,
    failure: Failure,
    /// Whether all of its pods had started.
    started: bool,
}

/// The groups that are over, and the cause.
#[derive(Default)]
struct Ends {
    /// Numbers of the groups that are over.
    over: Vec<u32>,
    /// The first of them that failed by itself, otherwise the first of all.
    first: Option<First>,
    bad_nodes: Vec<String>,
    not_yet: Option<Duration>,
}

impl Ends {
    fn of(wanted: &PodGroups, status: &AttemptStatus, live: &[Unit<'_>], now: Timestamp) -> Self {
        let mut ends = Self::default();
        for unit in live {
            let made = status.created || unit.attempt < status.current;
            match ending(wanted, made, &unit.pods, now) {
                Ending::None => {}
                Ending::NotYet(left) => ends.not_yet = ends.not_yet.into_iter().chain([left]).min(),
                Ending::Over { failure, bad_nodes } => {
                    ends.over.push(unit.group);
                    ends.bad_nodes.extend(bad_nodes);
                    let explains = |known: &First| known.failure.disrupted && !failure.disrupted;
                    if ends.first.as_ref().is_none_or(explains) {
                        ends.first = Some(First {
                            attempt: unit.attempt,
                            started: unit.pods.iter().all(|pod| pod.has_started()),
                            failure,
                        });
                    }
                }
            }
        }
        ends
    }
}

fn pausing(status: &AttemptStatus, left: Duration) -> String {
    let (failures, disruptions) = (status.consecutive_failures, status.disruptions);
    let in_a_row = match (failures, disruptions) {
        (failures, 0) => format!("{failures} failures"),
        (0, disruptions) => format!("{disruptions} disruptions"),
        both => format!("{} failures and {} disruptions", both.0, both.1),
    };
    format!(
        "attempt {} begins in {} s, after {in_a_row} in a row; the last: {}",
        status.current,
        left.as_secs() + 1,
        status.last_failure.as_deref().unwrap_or("unknown")
    )
}

/// The reason why the groups wait, from the pod with the most informative message.
fn waiting(wanted: &PodGroups, live: &[Unit<'_>]) -> Option<String> {
    let dull = |reason: &str| matches!(reason, "Created" | "Starting" | "ContainerCreating" | "PodInitializing");
    let pods = || live.iter().flat_map(|unit| &unit.pods);
    let waits = || {
        pods().filter_map(|pod| match &pod.state {
            PodState::Waiting { reason, message } => Some((reason, message)),
            _ => None,
        })
    };
    waits()
        .find(|(reason, _)| !dull(reason))
        .or_else(|| waits().next())
        .map(|(_, message)| message.clone())
        .or_else(|| unready(wanted, &pods().copied().collect::<Vec<_>>()))
}

/// Running pods that are not ready, if groups have a start deadline.
fn unready(wanted: &PodGroups, live: &[&PodFacts]) -> Option<String> {
    wanted.start?;
    let gone: Vec<&&PodFacts> = live.iter().filter(|pod| pod.is_out_of_reach()).collect();
    if !gone.is_empty() {
        return Some(format!("{} is out of reach: its node does not answer", who(&gone)));
    }
    let late: Vec<&&PodFacts> = live
        .iter()
        .filter(|pod| pod.state == PodState::Running { ready: false })
        .collect();
    (!late.is_empty()).then(|| format!("waiting for {} to join the rendezvous", who(&late)))
}

#[cfg(test)]
mod tests;
