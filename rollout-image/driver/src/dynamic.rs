//! Dynamic sampling (DAPO, arXiv 2503.14476): replaces groups without a signal by groups of the next tasks until a
//! batch has enough.
//!
//! What flows through: the state of each group, in the order of the tasks -> [`decide`], which is pure -> more groups,
//! with tasks from a [`Source`], or the groups of the batch. Verdicts and the order of the tasks select a group, never
//! the time that its episodes took: the first groups to end are those of short episodes, and a policy that is trained
//! on them learns to be short. So the batch is the same after a crash and on a slow cluster.

use crate::tasks::selection::Sequence;
use grpo_crds::grpo_run;
use std::collections::{BTreeMap, BTreeSet};

/// `rollout.dynamic`; counts of groups as multiples of a batch's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dynamic {
    pub over_sample: f64,
    pub limit: f64,
    /// Lower and upper bound of the pass rate with which a task is drawn again.
    pub band: Option<(f64, f64)>,
}

impl Dynamic {
    pub fn of(spec: &grpo_run::Dynamic) -> Self {
        Self {
            over_sample: spec.over_sample,
            limit: spec.limit,
            band: spec.pass_rate_band.as_ref().map(|band| (band.low, band.high)),
        }
    }

    pub fn rule(&self, prompts: u32) -> Rule {
        let times = |factor: f64| (factor * f64::from(prompts)).ceil() as usize;
        Rule {
            wanted: prompts as usize,
            slots: times(self.over_sample),
            limit: times(self.limit),
        }
    }
}

/// Counts of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Groups of the batch.
    pub wanted: usize,
    /// Groups that run or have a signal at one time.
    pub slots: usize,
    /// Most groups that may begin.
    pub limit: usize,
}

/// Whether a step can learn from a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Some of its rewards differ.
    Some,
    /// Its rewards are all equal.
    None,
    /// Fewer than two of its episodes are valid.
    TooFewValid,
}

/// The state of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    Running,
    Ended(Signal),
}

/// The next action, given the state of all groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Wait,
    /// Begin this many more groups.
    Add(usize),
    Enough(Chosen),
}

/// The groups of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    pub groups: BTreeSet<u32>,
    /// The groups before this one decided the choice; later groups were not needed.
    pub needed: u32,
}

/// The decision, given all groups that began, in the order of the tasks.
pub fn decide(rule: Rule, groups: &[Group]) -> Decision {
    let teaches = |group: &Group| *group == Group::Ended(Signal::Some);
    let known = groups.iter().take_while(|group| **group != Group::Running).count();
    let found = (0..).zip(&groups[..known]).filter(|(_, group)| teaches(group));
    let first: BTreeSet<u32> = found.take(rule.wanted).map(|(at, _)| at).collect();
    if let Some(last) = first.last().filter(|_| first.len() == rule.wanted) {
        let needed = last + 1;
        return Decision::Enough(Chosen { groups: first, needed });
    }
    let alive = groups
        .iter()
        .filter(|group| teaches(group) || **group == Group::Running)
        .count();
    let missing = rule.slots.saturating_sub(alive);
    let more = missing.min(rule.limit.saturating_sub(groups.len()));
    if more > 0 {
        return Decision::Add(more);
    }
    if known < groups.len() {
        return Decision::Wait;
    }
    // At the limit. Without any signal the batch has groups whose advantages are 0, so that the run can complete.
    let alike = (0..)
        .zip(groups)
        .filter(|(_, group)| **group == Group::Ended(Signal::None));
    let groups_of_batch = match first.is_empty() {
        true => alike.take(rule.wanted).map(|(at, _)| at).collect(),
        false => first,
    };
    Decision::Enough(Chosen {
        groups: groups_of_batch,
        needed: groups.len() as u32,
    })
}

/// Draws the tasks of groups.
#[derive(Debug)]
pub struct Source {
    sequence: Sequence,
    /// The next place in the sequence.
    next: u64,
    band: Option<(f64, f64)>,
    /// Pass rates by position, from before the iteration: the same after a crash.
    rates: BTreeMap<u32, f64>,
}

impl Source {
    /// `next`: the first place to draw. `rates`: pass rates by position.
    pub fn new(sequence: Sequence, next: u64, band: Option<(f64, f64)>, rates: BTreeMap<u32, f64>) -> Self {
        Self {
            sequence,
            next,
            band,
            rates,
        }
    }

    /// Positions and places of the next `count` tasks.
    pub fn draw(&mut self, count: usize) -> (Vec<u32>, Vec<u64>) {
        (0..count).map(|_| self.one()).unzip()
    }

    /// The next task inside the band; the next task of all if a whole pass has none inside.
    fn one(&mut self) -> (u32, u64) {
        let first = self.next;
        for place in first..first + self.sequence.tasks() as u64 {
            let task = self.sequence.at(place as usize);
            if self.is_taken(task) {
                self.next = place + 1;
                return (task, place);
            }
        }
        self.next = first + 1;
        (self.sequence.at(first as usize), first)
    }

    fn is_taken(&self, task: u32) -> bool {
        match (self.band, self.rates.get(&task)) {
            (Some((low, high)), Some(rate)) => (low..=high).contains(rate),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests;
