//! Rolling update: which groups to create and which to delete, for groups that serve and are replaced a few at a time.
//!
//! Outdated and surplus groups are deleted only while at least `groups - max_unavailable` ready ones stay; new ones are
//! created only up to `groups + max_surge`, counting those that still end, because they still hold their devices.
//! Without surge a new one does not take the number of one that still ends: a number may stand for devices. A pod long
//! past its deletion deadline is on a lost node and holds nothing.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;

use super::{
    group::PodGroups,
    unit::{Unit, count, until_lost},
};
use crate::names::PodKey;

/// The changes of one step.
#[derive(Debug, Default)]
pub(super) struct RollingUpdate {
    pub(super) create: Vec<PodKey>,
    pub(super) delete: Vec<String>,
    /// Number of groups with an earlier template.
    pub(super) outdated: u32,
    /// All wanted groups have this template and serve.
    pub(super) all_ready: bool,
    /// Groups are missing, whether or not there is capacity for them now.
    pub(super) lacks: bool,
    /// When a pod that does not end counts as lost.
    pub(super) retry_in: Option<Duration>,
}

/// The limits of a rolling update.
pub(super) struct Limits<'a> {
    pub(super) template: &'a str,
    pub(super) max_surge: u32,
    pub(super) max_unavailable: u32,
}

/// `all`: groups of every attempt with pods. `live`: those that are not over. `attempt`: the newest attempt.
pub(super) fn rolling(
    wanted: &PodGroups,
    limits: &Limits<'_>,
    all: &[Unit<'_>],
    live: &[Unit<'_>],
    attempt: u32,
    now: Timestamp,
) -> RollingUpdate {
    let (current, outdated): (Vec<_>, Vec<_>) = live.iter().partition(|unit| unit.is_made_from(limits.template));
    let ready = count(live.iter().filter(|unit| unit.is_ready()).count());
    let mut update = RollingUpdate {
        outdated: count(outdated.len()),
        all_ready: count(current.iter().filter(|unit| unit.is_ready()).count()) >= wanted.groups,
        ..RollingUpdate::default()
    };

    let mut spare = ready.saturating_sub(wanted.groups.saturating_sub(limits.max_unavailable));
    for unit in outdated.iter().filter(|unit| !unit.is_ready()) {
        update.delete.extend(unit.undeleted());
    }
    for unit in outdated.iter().filter(|unit| unit.is_ready()) {
        if spare > 0 {
            spare -= 1;
            update.delete.extend(unit.to_delete(now));
        }
    }
    // Surplus groups go in this order: first those that do not serve, then the newest.
    let mut surplus: Vec<_> = current.iter().collect();
    surplus.sort_by_key(|unit| (unit.is_ready(), std::cmp::Reverse(unit.group)));
    let too_many = current.len().saturating_sub(wanted.groups as usize);
    let (going, staying) = surplus.split_at(too_many);
    update.delete.extend(going.iter().flat_map(|unit| unit.to_delete(now)));
    // Pods missing in an incomplete attempt.
    update
        .create
        .extend(staying.iter().flat_map(|unit| unit.missing(wanted.size)));

    let missing = wanted.groups.saturating_sub(count(current.len()));
    update.lacks = missing > 0;
    let exist = count(all.iter().filter(|unit| !unit.is_lost(now)).count());
    let capacity = wanted.groups.saturating_add(limits.max_surge).saturating_sub(exist);
    let keeps_number = |unit: &&Unit<'_>| limits.max_surge == 0 && !unit.is_lost(now);
    let kept = all.iter().filter(keeps_number).map(|unit| unit.group);
    let taken: BTreeSet<u32> = live.iter().map(|unit| unit.group).chain(kept).collect();
    let free = (0..).filter(|group| !taken.contains(group));
    for group in free.take(missing.min(capacity) as usize) {
        // Pods of earlier attempts may still exist under their names.
        let earlier = all.iter().filter(|unit| unit.group == group);
        let next = earlier.map(|unit| unit.attempt.saturating_add(1)).max().unwrap_or(0);
        let attempt = next.max(attempt);
        update
            .create
            .extend((0..wanted.size).map(|rank| PodKey { group, attempt, rank }));
    }
    if missing > capacity {
        let ending = all.iter().filter(|unit| unit.is_ending());
        update.retry_in = until_lost(ending.flat_map(|unit| unit.pods.iter().copied()), now);
    }
    update
}
