//! Measures whether the policy learns: several seeds and two controls, on the same fixed tasks and sampling seeds.
//!
//! The input is the stores of the runs; the output is the figures of `bench/results/learning.json`. In every run the
//! first evaluation uses the same weights and the same sampling seeds. So only the first seed makes it, and all runs
//! compare with it.

use crate::learnt::Evaluation;
use crate::report::{SetReport, first_and_last, set_report};
use crate::statistics::Estimate;
use crate::tasks::Tasks;
use grpo_bench_report::Row;
use grpo_records::EpisodeScope;
use grpo_records::folder::{FolderError, RunFolder, counting};
use std::collections::BTreeMap;

/// Fixed sampling seed of the evaluated sets, so that a run's own seed does not influence its measurement.
pub const EVALUATION_SEED: u64 = 2026;
/// The bars of the mean gain over seeds, in points.
const BARS: [(&str, f64); 2] = [("train", 20.0), ("heldout", 15.0)];

#[derive(Debug, thiserror::Error)]
pub enum LearningError {
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error("the store of {run} holds no evaluation of set {set}; did the run end?")]
    NoEvaluation { run: String, set: String },
    #[error(
        "the plain runs were measured up to step {plain}, and the others up to step {other}: remove the stores with other \
         iterations from the output folder"
    )]
    Steps { plain: u32, other: u32 },
}

/// The first evaluation of every set, by the set's name.
pub fn first_evaluations(folder: &RunFolder) -> Result<BTreeMap<String, Evaluation>, FolderError> {
    first_and_last(folder)
        .into_iter()
        .map(|(set, (weights, _))| Ok((set.clone(), Evaluation::read(folder, &set, &weights)?)))
        .collect()
}

/// The last evaluation of a set. `run`: its name in the error.
pub fn last_evaluation(folder: &RunFolder, run: &str, set: &str) -> Result<Evaluation, LearningError> {
    match folder.evaluations().into_iter().rev().find(|(name, _)| name == set) {
        Some((_, weights)) => Ok(Evaluation::read(folder, set, &weights)?),
        None => Err(LearningError::NoEvaluation {
            run: run.into(),
            set: set.into(),
        }),
    }
}

/// A run's results on every set, compared with the shared first evaluation.
pub fn outcome(
    folder: &RunFolder,
    run: &str,
    before: &BTreeMap<String, Evaluation>,
    tasks: &Tasks,
) -> Result<BTreeMap<String, SetReport>, LearningError> {
    before
        .iter()
        .map(|(set, first)| {
            let last = last_evaluation(folder, run, set)?;
            Ok((set.clone(), set_report(first, Some(&last), tasks)))
        })
        .collect()
}

/// The number of episodes whose tokens differ between two evaluations, and the number compared.
pub fn differing_episodes(
    first: (&RunFolder, &str),
    second: (&RunFolder, &str),
    set: &str,
) -> Result<(u32, u32), FolderError> {
    let read = |(folder, weights): (&RunFolder, &str)| {
        let scope = EpisodeScope::Evaluation {
            set: set.to_owned(),
            weights: weights.to_owned(),
        };
        let mut sequences = BTreeMap::new();
        for episode in counting(folder.episodes(&scope)?) {
            let rows = folder.ended(&episode.path)?.map_or_else(Vec::new, |ended| ended.rows);
            let tokens: Vec<Vec<u32>> = rows.into_iter().map(|row| row.tokens).collect();
            sequences.insert(episode.meta.key.name(), (tokens, episode.meta.outcome));
        }
        Ok::<_, FolderError>(sequences)
    };
    let (one, other) = (read(first)?, read(second)?);
    let names: std::collections::BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    let differing = names.iter().filter(|n| one.get(**n) != other.get(**n)).count();
    Ok((differing as u32, names.len() as u32))
}

/// All measurements.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    pub seeds: BTreeMap<u64, BTreeMap<String, SetReport>>,
    pub shuffled: Option<BTreeMap<String, SetReport>>,
    /// Episodes that differ after two iterations at learning rate 0, and the number compared.
    pub frozen: Option<(u32, u32)>,
}

impl Measured {
    pub fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for (set, bar) in BARS {
            let gains: Vec<Estimate> = self.seeds.values().filter_map(|sets| sets.get(set)?.gain).collect();
            let mean =
                (!gains.is_empty()).then(|| gains.iter().map(|g| g.value * 100.0).sum::<f64>() / gains.len() as f64);
            rows.push(Row::new(
                format!("gain on {set} tasks, mean of {} seeds", gains.len()),
                mean,
                "points",
                Some(&format!(">= {bar}")),
            ));
            for (seed, sets) in &self.seeds {
                if let Some(report) = sets.get(set) {
                    seed_rows(&mut rows, *seed, set, report);
                }
            }
        }
        if let Some((differing, compared)) = self.frozen {
            let figure = format!("episodes that differ after two iterations at rate 0, of {compared}");
            rows.push(Row::new(figure, Some(f64::from(differing)), "episodes", Some("= 0")));
        }
        if let Some(sets) = &self.shuffled {
            for (set, report) in sets {
                let gain = report.gain;
                rows.push(Row::new(
                    format!("rewards shuffled: gain on {set} tasks"),
                    gain.map(|g| g.value * 100.0),
                    "points",
                    None,
                ));
                let low = gain.map(|g| g.low * 100.0);
                rows.push(Row::new(
                    format!("rewards shuffled: low end of the 95 % interval, {set}"),
                    low,
                    "points",
                    Some("<= 0"),
                ));
            }
        }
        if let Some(sets) = self.seeds.values().next() {
            for (set, report) in sets {
                floor_rows(&mut rows, set, report);
            }
        }
        rows
    }

    /// True when every bar is met.
    pub fn meets_the_bars(&self) -> bool {
        self.rows().iter().all(Row::meets_its_bar)
    }
}

fn seed_rows(rows: &mut Vec<Row>, seed: u64, set: &str, report: &SetReport) {
    let percent = |e: Option<Estimate>| e.map(|e| e.value * 100.0);
    rows.push(Row::new(
        format!("seed {seed}: {set} tasks resolved before"),
        percent(report.before),
        "%",
        None,
    ));
    rows.push(Row::new(
        format!("seed {seed}: {set} tasks resolved after"),
        percent(report.after),
        "%",
        None,
    ));
    rows.push(Row::new(
        format!("seed {seed}: gain on {set} tasks"),
        percent(report.gain),
        "points",
        None,
    ));
    let low = report.gain.map(|g| g.low * 100.0);
    let high = report.gain.map(|g| g.high * 100.0);
    rows.push(Row::new(
        format!("seed {seed}: low end of the 95 % interval, {set}"),
        low,
        "points",
        Some("> 0"),
    ));
    rows.push(Row::new(
        format!("seed {seed}: high end of the 95 % interval, {set}"),
        high,
        "points",
        None,
    ));
    for ((name, before, is_share), (_, after, _)) in report
        .learnt_before
        .figures()
        .into_iter()
        .zip(report.learnt_after.figures())
    {
        let (scale, unit) = if is_share { (100.0, "%") } else { (1.0, "count") };
        rows.push(Row::new(
            format!("seed {seed}: {set}, {name}, before"),
            before.map(|v| v * scale),
            unit,
            None,
        ));
        rows.push(Row::new(
            format!("seed {seed}: {set}, {name}, after"),
            after.map(|v| v * scale),
            unit,
            None,
        ));
    }
}

fn floor_rows(rows: &mut Vec<Row>, set: &str, report: &SetReport) {
    let pass = report.pass_at_samples.map(|p| p * 100.0);
    rows.push(Row::new(
        format!("warm start, pass@{} on {set} tasks", report.samples),
        pass,
        "%",
        None,
    ));
    if let Some((edit, share)) = &report.best_constant_edit {
        rows.push(Row::new(
            format!("best constant edit on {set} tasks ({edit})"),
            Some(share * 100.0),
            "%",
            None,
        ));
    }
}

#[cfg(test)]
mod tests;
