//! The state of a run: the fold of its journal.

use crate::event::{DropReason, Event, JournalEntry};
use crate::outcome::{Outcome, VoidReason};
use crate::settings::{LiveSettings, Sampling};
use crate::{EpisodeKey, EpisodeScope, paths};
use std::collections::{BTreeMap, BTreeSet};

/// The state from which a driver continues after itself or its predecessor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunState {
    /// The uid of the run that owns the store.
    pub run: Option<String>,
    pub tasks_sha256: Option<String>,
    /// The newest checksum of the task sets; see [`Event::RunStarted`].
    pub sets_sha256: Option<String>,
    /// The newest checksum of what an evaluation measures; see [`Event::RunStarted`].
    pub inputs_sha256: Option<String>,
    /// The newest epoch of a driver of that run.
    pub driver: u32,
    /// The live settings that were accepted last.
    pub settings: Option<LiveSettings>,
    pub iterations: BTreeMap<u32, IterationState>,
    /// Finished trainer steps by number: the newest entry for each.
    pub steps: BTreeMap<u32, Promotion>,
    pub promoted: Option<Promotion>,
    /// Keyed by (set, weights).
    pub evaluations: BTreeMap<(String, String), EvaluationState>,
    /// Maps an episode's folder to its verdict.
    pub verdicts: BTreeMap<String, (Outcome, f32)>,
    pub voids: BTreeMap<VoidReason, u64>,
    /// The folders of voided attempts.
    pub voided: BTreeSet<String>,
    /// Total tokens of voided attempts: losing long episodes biases training.
    pub voided_tokens: u64,
    pub groups_dropped: u64,
    /// `None` while a driver works, also if an earlier driver finished the run.
    pub finished: Option<Finished>,
    /// Truncated entries that were skipped.
    pub torn: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct IterationState {
    pub weights: String,
    /// Positions in the dataset, one for each group: first the initial groups, then the added ones.
    pub tasks: Vec<u32>,
    /// With dynamic sampling, the number of groups that the batch needs.
    pub wanted: Option<u32>,
    /// With dynamic sampling, the place of each group's task in the endless sequence of passes.
    pub places: Vec<u64>,
    /// Its sampling settings.
    pub sampling: Option<Sampling>,
    pub batch_sha256: Option<String>,
    pub step: Option<u32>,
    pub rows: u32,
    /// Groups that are not in the batch.
    pub dropped: BTreeMap<u32, DropReason>,
}

impl IterationState {
    /// True for a group that the batch did not need: how far it came depends on timing, so it counts nowhere.
    pub fn is_surplus(&self, group: u32) -> bool {
        self.dropped.get(&group) == Some(&DropReason::Surplus)
    }

    /// The place after the last group that was needed. `None` without dynamic sampling.
    pub fn next_place(&self) -> Option<u64> {
        let needed = (0..).zip(&self.places).filter(|(group, _)| !self.is_surplus(*group));
        needed.map(|(_, place)| place + 1).max()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promotion {
    pub weights: String,
    pub manifest_sha256: String,
    pub step: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvaluationState {
    pub resolved: u32,
    pub episodes: u32,
    pub voids: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    pub succeeded: bool,
    pub reason: Option<String>,
    pub message: Option<String>,
}

impl RunState {
    pub fn apply(&mut self, entry: &JournalEntry) {
        match entry.event.clone() {
            Event::RunStarted {
                run,
                tasks_sha256,
                sets_sha256,
                inputs_sha256,
                ..
            } => {
                self.run = Some(run);
                self.tasks_sha256 = Some(tasks_sha256);
                self.sets_sha256 = sets_sha256;
                self.inputs_sha256 = inputs_sha256.or(self.inputs_sha256.take());
                self.driver = 0;
                self.finished = None;
            }
            Event::DriverStarted { epoch } => {
                self.driver = self.driver.max(epoch);
                self.finished = None;
            }
            Event::SettingsTaken { settings } => self.settings = Some(settings),
            Event::IterationStarted {
                iteration,
                weights,
                tasks,
                dynamic,
            } => {
                let (wanted, places) = dynamic.map(|start| (start.wanted, start.places)).unzip();
                self.iterations.insert(
                    iteration,
                    IterationState {
                        weights,
                        tasks,
                        wanted,
                        places: places.unwrap_or_default(),
                        sampling: self.settings.as_ref().map(|settings| settings.sampling),
                        ..IterationState::default()
                    },
                );
            }
            Event::GroupsAdded {
                iteration,
                tasks,
                places,
            } => {
                let one = self.iterations.entry(iteration).or_default();
                one.tasks.extend(tasks);
                one.places.extend(places);
            }
            Event::Verdict {
                episode,
                outcome,
                reward,
            } => {
                self.verdicts.insert(episode, (outcome, reward));
            }
            Event::EpisodeVoided {
                episode,
                reason,
                tokens,
                ..
            } => {
                self.voided.insert(episode);
                *self.voids.entry(reason).or_default() += 1;
                self.voided_tokens += tokens as u64;
            }
            Event::GroupDropped {
                iteration,
                group,
                reason,
                ..
            } => {
                self.groups_dropped += 1;
                self.iterations
                    .entry(iteration)
                    .or_default()
                    .dropped
                    .insert(group, reason);
            }
            Event::BatchWritten {
                iteration,
                step,
                sha256,
                rows,
            } => {
                let one = self.iterations.entry(iteration).or_default();
                one.batch_sha256 = Some(sha256);
                one.step = Some(step);
                one.rows = rows;
            }
            Event::StepDone {
                step,
                weights,
                manifest_sha256,
            } => {
                let done = Promotion {
                    weights,
                    manifest_sha256,
                    step,
                };
                self.steps.insert(step, done);
            }
            Event::Promoted {
                weights,
                manifest_sha256,
                step,
            } => {
                self.promoted = Some(Promotion {
                    weights,
                    manifest_sha256,
                    step,
                });
            }
            Event::EvaluationDone {
                set,
                weights,
                resolved,
                episodes,
                voids,
            } => {
                self.evaluations.insert(
                    (set, weights),
                    EvaluationState {
                        resolved,
                        episodes,
                        voids,
                    },
                );
            }
            Event::RunFinished {
                succeeded,
                reason,
                message,
            } => {
                self.finished = Some(Finished {
                    succeeded,
                    reason,
                    message,
                });
            }
        }
    }

    /// The first iteration that has begun and whose step is not done, if any. When a rollout overlaps the previous
    /// step, the next iteration has begun too.
    pub fn unfinished_iteration(&self) -> Option<u32> {
        let is_done = |one: &IterationState| one.step.is_some_and(|step| self.steps.contains_key(&step));
        let unfinished = self.iterations.iter().find(|(_, one)| !is_done(one));
        unfinished.map(|(iteration, _)| *iteration)
    }

    /// The pass rate of each task, by position, over iterations before `k`: the share of valid episodes that resolved
    /// it in the last such iteration. Tasks without a valid episode and groups that no batch needed are left out.
    pub fn pass_rates(&self, k: u32) -> BTreeMap<u32, f64> {
        let mut rates: BTreeMap<u32, f64> = BTreeMap::new();
        // Newest first. A run has many more verdicts than tasks: those of an iteration are only read for a task that no
        // later iteration rates.
        for (iteration, one) in self.iterations.range(..k).rev() {
            if one.tasks.iter().all(|task| rates.contains_key(task)) {
                continue;
            }
            for (task, (resolved, valid)) in self.tallies(*iteration, one) {
                rates.entry(task).or_insert(f64::from(resolved) / f64::from(valid));
            }
        }
        rates
    }

    /// How many episodes resolved each task in an iteration, and how many were valid, without groups that its batch did
    /// not need.
    fn tallies(&self, iteration: u32, one: &IterationState) -> BTreeMap<u32, (u32, u32)> {
        let folder = format!("{}/", paths::scope(&EpisodeScope::Iteration { iteration }));
        let mut tallies: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
        for (episode, (outcome, _)) in self.verdicts.range(folder.clone()..) {
            let Some(name) = episode.strip_prefix(folder.as_str()) else {
                break;
            };
            let Some(group) = EpisodeKey::group_of(name).filter(|group| !one.is_surplus(*group)) else {
                continue;
            };
            let Some(task) = one.tasks.get(group as usize) else {
                continue;
            };
            let (resolved, valid) = tallies.entry(*task).or_default();
            *resolved += u32::from(*outcome == Outcome::Resolved);
            *valid += 1;
        }
        tallies
    }

    /// The number of leading iterations whose step is done.
    pub fn finished_iterations(&self) -> u32 {
        match self.unfinished_iteration() {
            Some(iteration) => iteration.saturating_sub(1),
            None => self.iterations.last_key_value().map_or(0, |(k, _)| *k),
        }
    }
}

#[cfg(test)]
mod tests;
