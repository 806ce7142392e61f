//! Which advantage of a step belongs to which episode. Pure.
//!
//! The trainer's metrics have advantages without names: a list for each group of the batch, in the order in which the
//! batch's rows name its episodes. So the rows say which episode is meant. An iteration has episodes that are in no
//! batch: void ones, those of dropped groups, and those that are too stale.

use grpo_records::{EpisodeKey, paths};
use std::collections::{BTreeMap, BTreeSet};

/// The advantage of each episode of a batch, by its folder. `rows`: the folders of the episodes of the batch's rows, in
/// its order. Empty if rows and lists do not fit, because a wrong number would mislead: with `StepWise` a list is of
/// one turn of a group, and an episode has several advantages.
pub fn by_episode(rows: &[String], lists: &[Vec<f64>]) -> BTreeMap<String, f64> {
    let mut groups: Vec<Vec<&String>> = Vec::new();
    let (mut places, mut seen) = (BTreeMap::new(), BTreeSet::new());
    for folder in rows {
        let Some(group) = group_of(folder) else {
            return BTreeMap::new();
        };
        let place = *places.entry(group).or_insert(groups.len());
        if place == groups.len() {
            groups.push(Vec::new());
        }
        if seen.insert(folder) {
            groups[place].push(folder);
        }
    }
    // The list of a group that the trainer dropped is empty.
    let fits = |(folders, list): (&Vec<&String>, &Vec<f64>)| list.is_empty() || list.len() == folders.len();
    if groups.len() != lists.len() || !groups.iter().zip(lists).all(fits) {
        return BTreeMap::new();
    }
    let pairs = groups.into_iter().zip(lists);
    pairs
        .flat_map(|(folders, list)| folders.into_iter().cloned().zip(list.iter().copied()))
        .collect()
}

fn group_of(folder: &str) -> Option<u32> {
    let (_, name) = paths::parse_episode(folder)?;
    EpisodeKey::group_of(name)
}

#[cfg(test)]
mod tests;
