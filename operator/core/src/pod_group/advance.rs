//! The next steps of a group.

use std::time::Duration;

use grpo_crds::grpo_run::AttemptStatus;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    ending::{Ending, ending, who},
    group::{Group, GroupState, GroupUpdate, missing},
};
use crate::{
    backoff::FAILED_PODS,
    conditions::shortened,
    pods::{Failure, PodFacts, PodState},
};

/// So many nodes are avoided at most, the last ones.
const AVOIDED: usize = 8;

/// The next steps of a group.
pub fn advance(group: &Group, known: &AttemptStatus, pods: &[PodFacts], now: Timestamp) -> GroupUpdate {
    let mut status = adopted(known, pods);
    let (live, old): (Vec<&PodFacts>, Vec<&PodFacts>) = pods.iter().partition(|pod| pod.attempt == status.current);
    let mut delete = undeleted(&old);

    if let Some(fault) = fault(group, &live) {
        return GroupUpdate::nothing(status, delete, GroupState::Fault(fault));
    }
    if all_succeeded(group, &live) {
        return GroupUpdate::nothing(status, delete, GroupState::Succeeded);
    }

    forget_avoided(group, &mut status);
    let mut ended = None;
    let mut remaining = live;
    let mut retry_in = None;
    let ending = ending(group, status.created, &remaining, now);
    if let Ending::NotYet(left) = ending {
        retry_in = Some(left);
    }
    if let Ending::Over { failure, hung_on } = ending {
        let attempt = status.current;
        count(group, &mut status, &failure, now);
        avoid(&mut status, hung_on);
        if let Some(message) = used_up(group, &status, &failure) {
            return GroupUpdate {
                ended: Some((attempt, failure.message)),
                ..GroupUpdate::nothing(status, delete, GroupState::Exhausted { message })
            };
        }
        delete.extend(undeleted(&remaining));
        status.current = attempt.saturating_add(1);
        status.created = false;
        remaining = Vec::new();
        ended = Some((attempt, failure.message));
    }

    if let Some(left) = pause_left(&status, now) {
        let message = format!(
            "attempt {} begins in {} s, after {} failures in a row; the last: {}",
            status.current,
            left.as_secs() + 1,
            status.consecutive_failures,
            status.last_failure.as_deref().unwrap_or("unknown")
        );
        return GroupUpdate {
            retry_in: Some(left),
            ended,
            ..GroupUpdate::nothing(status, delete, GroupState::Pausing { message })
        };
    }

    let create = missing(group, &remaining);
    status.created = true;
    status.not_before = None;
    let state = if create.is_empty() {
        waiting(group, &status, &remaining).map_or(GroupState::Running, |message| GroupState::Starting { message })
    } else {
        GroupState::Starting {
            message: format!(
                "attempt {}: making {} of {} pods",
                status.current,
                create.len(),
                group.size
            ),
        }
    };
    GroupUpdate {
        status,
        create,
        delete,
        state,
        retry_in,
        ended,
    }
}

/// What is known, corrected by pods of a later attempt that was begun but not written down.
fn adopted(known: &AttemptStatus, pods: &[PodFacts]) -> AttemptStatus {
    let newest = pods.iter().map(|pod| pod.attempt).max().unwrap_or(0);
    let mut status = known.clone();
    if newest > status.current {
        status.created = false;
        status.not_before = None;
    }
    status.current = status.current.max(newest).max(1);
    status
}

fn undeleted(pods: &[&PodFacts]) -> Vec<String> {
    pods.iter()
        .filter(|pod| !pod.deleting)
        .map(|pod| pod.name.clone())
        .collect()
}

fn fault(group: &Group, live: &[&PodFacts]) -> Option<Failure> {
    live.iter().find_map(|pod| match &pod.state {
        PodState::Failed(failure) if failure.exit_code.is_some() && failure.exit_code == group.fault_code => {
            Some(failure.clone())
        }
        _ => None,
    })
}

fn all_succeeded(group: &Group, live: &[&PodFacts]) -> bool {
    (0..group.size).all(|rank| {
        live.iter()
            .any(|pod| pod.rank == rank && pod.state == PodState::Succeeded)
    })
}

fn count(group: &Group, status: &mut AttemptStatus, failure: &Failure, now: Timestamp) {
    if status.progress_mark.as_deref() != Some(&group.mark) {
        status.consecutive_failures = 0;
    }
    status.progress_mark = Some(group.mark.clone());
    status.last_failure = Some(shortened(&failure.message));
    status.not_before = None;
    if failure.disrupted {
        return;
    }
    status.consecutive_failures = status.consecutive_failures.saturating_add(1);
    if status.consecutive_failures >= 2 {
        let pause = pause(status.consecutive_failures);
        status.not_before = now.checked_add(pause).ok().map(Time);
    }
}

/// Why no further attempt is made, if none is.
fn used_up(group: &Group, status: &AttemptStatus, failure: &Failure) -> Option<String> {
    if status.consecutive_failures >= group.limit {
        return Some(format!(
            "{} failures in a row without anything finished in between; the last: {}",
            status.consecutive_failures, failure.message
        ));
    }
    // Nobody gets there by failing: somebody wrote this number. Pods of an attempt that has no number of its own would
    // have the names of the last.
    (status.current == u32::MAX).then(|| {
        format!(
            "attempt {} is the last that can be counted (status.attempts), and it ended: {}",
            status.current, failure.message
        )
    })
}

/// The newest last, as often as they are named.
fn avoid(status: &mut AttemptStatus, hung_on: Vec<String>) {
    status.avoid_nodes.retain(|node| !hung_on.contains(node));
    status.avoid_nodes.extend(hung_on);
    let surplus = status.avoid_nodes.len().saturating_sub(AVOIDED);
    status.avoid_nodes.drain(..surplus);
}

/// Once something more is finished than when a rank hung, its node may have been innocent.
fn forget_avoided(group: &Group, status: &mut AttemptStatus) {
    if status.progress_mark.as_deref() != Some(&group.mark) {
        status.avoid_nodes.clear();
    }
}

/// 5 s after the second failure in a row, doubled with every further one.
fn pause(failures: u32) -> Duration {
    FAILED_PODS.pause(failures.saturating_sub(2))
}

fn pause_left(status: &AttemptStatus, now: Timestamp) -> Option<Duration> {
    let until = status.not_before.as_ref().filter(|_| !status.created)?.0;
    Duration::try_from(until.duration_since(now))
        .ok()
        .filter(|left| !left.is_zero())
}

/// What the group waits for: the pod with most to say comes first.
fn waiting(group: &Group, status: &AttemptStatus, live: &[&PodFacts]) -> Option<String> {
    let dull = |reason: &str| matches!(reason, "Created" | "Starting" | "ContainerCreating" | "PodInitializing");
    let waits = || {
        live.iter().filter_map(|pod| match &pod.state {
            PodState::Waiting { reason, message } => Some((reason, message)),
            _ => None,
        })
    };
    let told = waits()
        .find(|(reason, _)| !dull(reason))
        .or_else(|| waits().next())
        .map(|(_, message)| message.clone())
        .or_else(|| unready(group, live))?;
    if status.avoid_nodes.is_empty() {
        return Some(told);
    }
    let avoided = status.avoid_nodes.join(", ");
    Some(format!("{told}; nodes on which a rank hung are avoided: {avoided}"))
}

/// Pods that run and are not ready, where that says something.
fn unready(group: &Group, live: &[&PodFacts]) -> Option<String> {
    group.start?;
    let gone: Vec<&&PodFacts> = live.iter().filter(|pod| pod.is_out_of_reach()).collect();
    if !gone.is_empty() {
        return Some(format!("{} is out of reach: its node does not answer", who(&gone)));
    }
    let late: Vec<&&PodFacts> = live
        .iter()
        .filter(|pod| pod.state == PodState::Running { ready: false })
        .collect();
    (!late.is_empty()).then(|| format!("waiting for {} to be where all ranks meet", who(&late)))
}

#[cfg(test)]
mod tests;
