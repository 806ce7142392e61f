//! The report on a run, computed from its store: the content of `demo-report.json`, which the demo also prints at its
//! end.
//!
//! Rates are means over tasks of the share of resolved samples; voids do not count. Gains compare the first and the
//! last evaluation of one set, task by task.

use crate::learnt::{Evaluation, Learnt};
use crate::statistics::{Clustered, Estimate, estimate};
use crate::tasks::Tasks;
use grpo_records::folder::{FolderError, RunFolder, counting};
use grpo_records::{EpisodeScope, Event, Outcome, paths};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `demo-report.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub run: String,
    pub phase: String,
    pub setup_seconds: Option<f64>,
    pub run_seconds: Option<f64>,
    pub seed: u64,
    pub train: BeforeAfter,
    pub heldout: BeforeAfter,
    /// Void episode attempts over the whole run.
    pub void: u64,
    pub logprob_gap_max: Option<f64>,
    pub iterations: Vec<Iteration>,
    /// Every evaluated set, including these two, with intervals and counts of [`crate::learnt`].
    pub sets: BTreeMap<String, SetReport>,
}

/// Resolved rates of one set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BeforeAfter {
    pub before: Option<f64>,
    pub after: Option<f64>,
}

/// One iteration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Iteration {
    pub iteration: u32,
    pub weights: String,
    pub episodes: u32,
    pub resolved: u32,
    pub rate: Option<f64>,
    pub void: u32,
    pub groups_dropped: u32,
    pub rows: u32,
    pub loss: Option<f64>,
    pub logprob_gap_max: Option<f64>,
    /// From the first decision of the iteration to the end of its step.
    pub seconds: Option<i64>,
}

/// One fixed set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SetReport {
    pub tasks: usize,
    pub functions: usize,
    pub samples: u32,
    pub before: Option<Estimate>,
    pub after: Option<Estimate>,
    pub gain: Option<Estimate>,
    /// With the first weights: the mean chance that one of `samples` is resolved.
    pub pass_at_samples: Option<f64>,
    /// The single edit that repairs the most tasks, and their share.
    pub best_constant_edit: Option<(String, f64)>,
    /// Rates on tasks with a kind of bug that no training task has.
    pub untrained_kinds: BeforeAfter,
    pub weights: (String, String),
    pub learnt_before: Learnt,
    pub learnt_after: Learnt,
}

impl Report {
    /// The whole report. Phase and durations come from the journal; a caller that watched the run knows better ones.
    pub fn of(folder: &RunFolder, tasks: &Tasks) -> Result<Self, FolderError> {
        let facts = folder.facts();
        let mut report = Self {
            run: format!("{}/{}", facts.namespace, facts.name),
            phase: match &folder.state.finished {
                Some(end) if end.succeeded => "Succeeded".into(),
                Some(_) => "Failed".into(),
                None => "Running".into(),
            },
            run_seconds: facts.finished_at.map(|end| (end - facts.started_at) as f64),
            seed: facts.seed,
            void: folder.state.voids.values().sum(),
            iterations: iterations(folder)?,
            ..Self::default()
        };
        report.logprob_gap_max = report
            .iterations
            .iter()
            .filter_map(|i| i.logprob_gap_max)
            .reduce(f64::max);
        report.sets = sets(folder, tasks)?;
        report.train = report.before_after("train");
        report.heldout = report.before_after("heldout");
        Ok(report)
    }

    fn before_after(&self, set: &str) -> BeforeAfter {
        self.sets.get(set).map_or_else(BeforeAfter::default, |s| BeforeAfter {
            before: s.before.map(|e| e.value),
            after: s.after.map(|e| e.value),
        })
    }
}

/// First and last evaluation of every set, in order of the set's name.
pub fn first_and_last(folder: &RunFolder) -> BTreeMap<String, (String, Option<String>)> {
    let mut sets: BTreeMap<String, (String, Option<String>)> = BTreeMap::new();
    for (set, weights) in folder.evaluations() {
        sets.entry(set)
            .and_modify(|(_, last)| *last = Some(weights.clone()))
            .or_insert((weights, None));
    }
    sets
}

fn sets(folder: &RunFolder, tasks: &Tasks) -> Result<BTreeMap<String, SetReport>, FolderError> {
    first_and_last(folder)
        .into_iter()
        .map(|(set, (first, last))| {
            let before = Evaluation::read(folder, &set, &first)?;
            let after = last
                .map(|weights| Evaluation::read(folder, &set, &weights))
                .transpose()?;
            Ok((set, set_report(&before, after.as_ref(), tasks)))
        })
        .collect()
}

/// Compares two evaluations of one set.
pub fn set_report(before: &Evaluation, after: Option<&Evaluation>, tasks: &Tasks) -> SetReport {
    let functions: std::collections::BTreeSet<&str> = before.tasks.keys().map(|t| tasks.function(t)).collect();
    let trained = tasks.trained_kinds();
    let untrained = |evaluation: &Evaluation| {
        let rates: Vec<f64> = evaluation
            .tasks
            .iter()
            .filter(|(id, _)| tasks.kind(id).is_some_and(|kind| !trained.contains(kind)))
            .filter_map(|(_, tally)| tally.rate())
            .collect();
        (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64)
    };
    let samples = before.samples();
    SetReport {
        tasks: before.tasks.len(),
        functions: functions.len(),
        samples,
        before: estimate(&rates(before, tasks)),
        after: after.and_then(|a| estimate(&rates(a, tasks))),
        gain: after.and_then(|a| estimate(&gains(before, a, tasks))),
        pass_at_samples: before.pass_at(samples.max(1)),
        best_constant_edit: tasks.best_constant_edit(before.tasks.keys().map(String::as_str)),
        untrained_kinds: BeforeAfter {
            before: untrained(before),
            after: after.and_then(untrained),
        },
        weights: (
            before.weights.clone(),
            after.map(|a| a.weights.clone()).unwrap_or_default(),
        ),
        learnt_before: before.learnt.clone(),
        learnt_after: after.map(|a| a.learnt.clone()).unwrap_or_default(),
    }
}

fn rates<'a>(evaluation: &'a Evaluation, tasks: &'a Tasks) -> Clustered<'a> {
    evaluation
        .tasks
        .iter()
        .filter_map(|(id, tally)| Some((tasks.function(id), tally.rate()?)))
        .collect()
}

/// For each task: rate after minus rate before; tasks without a rate in one of them are left out.
pub fn gains<'a>(before: &'a Evaluation, after: &'a Evaluation, tasks: &'a Tasks) -> Clustered<'a> {
    before
        .tasks
        .iter()
        .filter_map(|(id, tally)| Some((tasks.function(id), after.tasks.get(id)?.rate()? - tally.rate()?)))
        .collect()
}

fn iterations(folder: &RunFolder) -> Result<Vec<Iteration>, FolderError> {
    let times = step_times(folder);
    let mut all = Vec::new();
    for (number, state) in &folder.state.iterations {
        let scope = EpisodeScope::Iteration { iteration: *number };
        let mut one = Iteration {
            iteration: *number,
            weights: state.weights.clone(),
            groups_dropped: state.dropped.len() as u32,
            rows: state.rows,
            seconds: times.get(number).and_then(|(from, to)| to.map(|to| to - from)),
            ..Iteration::default()
        };
        for episode in counting(folder.episodes(&scope)?) {
            match episode.meta.outcome {
                Outcome::Void { .. } => one.void += 1,
                outcome => {
                    one.episodes += 1;
                    one.resolved += u32::from(outcome == Outcome::Resolved);
                }
            }
        }
        one.rate = (one.episodes > 0).then(|| f64::from(one.resolved) / f64::from(one.episodes));
        if let Some(step) = state.step {
            let metrics: Option<serde_json::Value> = folder.json_if_there(&paths::trainer_metrics(step))?;
            let number = |field: &str| metrics.as_ref().and_then(|m| m[field].as_f64());
            one.loss = number("loss");
            one.logprob_gap_max = number("logprobGapMax");
        }
        all.push(one);
    }
    Ok(all)
}

/// The beginning of each iteration, and the end of its step.
fn step_times(folder: &RunFolder) -> BTreeMap<u32, (i64, Option<i64>)> {
    let mut times: BTreeMap<u32, (i64, Option<i64>)> = BTreeMap::new();
    let mut step_of: BTreeMap<u32, u32> = BTreeMap::new();
    for entry in &folder.journal {
        match &entry.event {
            Event::IterationStarted { iteration, .. } => {
                times.insert(*iteration, (entry.at, None));
            }
            Event::BatchWritten { iteration, step, .. } => {
                step_of.insert(*step, *iteration);
            }
            Event::StepDone { step, .. } => {
                if let Some(time) = step_of.get(step).and_then(|i| times.get_mut(i)) {
                    time.1.get_or_insert(entry.at);
                }
            }
            _ => {}
        }
    }
    times
}

#[cfg(test)]
mod tests;
