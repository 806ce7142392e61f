//! The record of earlier attempts: failures and disruptions in a row, the back-off after them, nodes to avoid.

use std::time::Duration;

use grpo_crds::AttemptStatus;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::group::PodGroups;
use crate::{
    backoff::FAILED_PODS,
    conditions::shortened,
    pods::{Failure, PodFacts},
};

/// Maximum number of avoided nodes; the last ones are kept.
const AVOIDED: usize = 8;

/// The record, corrected by pods of a later attempt that was begun but not recorded.
pub(super) fn adopted(known: &AttemptStatus, pods: &[PodFacts]) -> AttemptStatus {
    let newest = pods.iter().map(|pod| pod.attempt).max().unwrap_or(0);
    let mut status = known.clone();
    if newest > status.current {
        status.created = false;
        status.not_before = None;
    }
    status.current = status.current.max(newest).max(1);
    status
}

/// Counts the end of an attempt. `started`: all of its pods had started.
pub(super) fn count_end(
    wanted: &PodGroups,
    status: &mut AttemptStatus,
    failure: &Failure,
    started: bool,
    now: Timestamp,
) {
    if wanted.mark.is_some() && status.progress_mark != wanted.mark {
        status.consecutive_failures = 0;
        status.disruptions = 0;
    }
    status.progress_mark = wanted.mark.clone();
    status.last_failure = Some(shortened(&failure.message));
    // A disruption of a started attempt is a single event; one before the start may repeat at once, without end.
    let in_a_row = match (failure.disrupted, started) {
        (false, _) => {
            status.disruptions = 0;
            status.consecutive_failures = status.consecutive_failures.saturating_add(1);
            status.consecutive_failures
        }
        (true, false) => {
            status.disruptions = status.disruptions.saturating_add(1);
            status.disruptions
        }
        (true, true) => {
            status.disruptions = 0;
            0
        }
    };
    let pause = pause(in_a_row);
    status.not_before = pause.and_then(|pause| now.checked_add(pause).ok()).map(Time);
}

/// Forgets failures, once all groups serve.
pub(super) fn forget_failures(status: &mut AttemptStatus) {
    status.consecutive_failures = 0;
    status.disruptions = 0;
    status.last_failure = None;
}

/// Why no further attempt is possible; `None` if one is.
pub(super) fn used_up(wanted: &PodGroups, status: &AttemptStatus, failure: &Failure) -> Option<String> {
    if wanted.limit.is_some_and(|limit| status.consecutive_failures >= limit) {
        return Some(format!(
            "{} failures in a row without anything finished in between; the last: {}",
            status.consecutive_failures, failure.message
        ));
    }
    // Failures alone never reach this number: a client wrote it into the status. The next attempt would have
    // no number of its own, and its pods the names of the last attempt's pods.
    (status.current == u32::MAX).then(|| {
        format!(
            "attempt {} is the last that can be counted (status.attempts), and it ended: {}",
            status.current, failure.message
        )
    })
}

/// Adds nodes to avoid, the newest last; a node named again moves to the end.
pub(super) fn avoid(status: &mut AttemptStatus, nodes: Vec<String>) {
    status.avoid_nodes.retain(|node| !nodes.contains(node));
    status.avoid_nodes.extend(nodes);
    let surplus = status.avoid_nodes.len().saturating_sub(AVOIDED);
    status.avoid_nodes.drain(..surplus);
}

/// Forgets the avoided nodes once new work is finished since a rank hung or a pod was refused there: the node may have
/// been innocent.
pub(super) fn forget_avoided(wanted: &PodGroups, status: &mut AttemptStatus) {
    if status.progress_mark != wanted.mark {
        status.avoid_nodes.clear();
    }
}

/// The back-off: 5 s after the second in a row, doubled with every further one.
fn pause(in_a_row: u32) -> Option<Duration> {
    in_a_row.checked_sub(2).map(|doublings| FAILED_PODS.pause(doublings))
}

pub(super) fn pause_left(status: &AttemptStatus, now: Timestamp) -> Option<Duration> {
    let until = status.not_before.as_ref().filter(|_| !status.created)?.0;
    Duration::try_from(until.duration_since(now))
        .ok()
        .filter(|left| !left.is_zero())
}
