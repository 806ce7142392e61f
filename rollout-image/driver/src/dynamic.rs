//! Dynamic sampling (DAPO, arXiv 2503.14476): groups that teach nothing are replaced by those of the next tasks, until
//! a batch has as many as it wants.
//!
//! What flows through: the state of each group, in the order of the tasks -> [`decide`], which is pure -> more groups,
//! whose tasks a [`Source`] draws, or the groups of the batch. A group is in the batch for its verdicts and its place
//! in the order, never for the time that its episodes took: the first groups to end are those of short episodes, and a
//! policy that is trained on them learns to be short. So the batch is the same after a crash, and on a slow cluster.

use crate::tasks::selection::Sequence;
use grpo_crds::grpo_run;
use std::collections::{BTreeMap, BTreeSet};

/// `rollout.dynamic`, in groups as multiples of a batch's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dynamic {
    pub over_sample: f64,
    pub limit: f64,
    /// Lower and upper end of the shares of resolved episodes with which a task is taken again.
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

/// In groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The batch is to have so many.
    pub wanted: usize,
    /// So many run or teach something at the same time.
    pub slots: usize,
    /// No more than these are begun.
    pub limit: usize,
}

/// What a step can learn from a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Some of its rewards differ.
    Some,
    /// Its rewards are all equal.
    None,
    /// Fewer than two of its episodes are valid.
    TooFewValid,
}

/// What is known of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    Running,
    Ended(Signal),
}

/// What follows from the groups as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Wait,
    /// So many more begin.
    Add(usize),
    Enough(Chosen),
}

/// The groups of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    pub groups: BTreeSet<u32>,
    /// The groups before this one decided which; those from it on were not needed.
    pub needed: u32,
}

/// What to do, given every group that was begun, in the order of the tasks.
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
    // The limit. Without any signal the step has groups that change nothing, so that the run goes to its end.
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

/// From where tasks of groups are drawn.
#[derive(Debug)]
pub struct Source {
    sequence: Sequence,
    /// The place that comes next.
    next: u64,
    band: Option<(f64, f64)>,
    /// Shares of resolved episodes, by position, as they were before the iteration: the same after a crash.
    rates: BTreeMap<u32, f64>,
}

impl Source {
    /// `next`: the first place that may be drawn. `rates`: shares of resolved episodes, by position.
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

    /// The next task inside the band; the next task where a whole pass has none.
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
