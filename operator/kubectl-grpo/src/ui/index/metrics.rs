//! The metrics of a run: the numbers of its iterations and steps, and the curves that they make.
//!
//! They are numbered files, read in pages: the pages from [`Metrics::wanted`] on until one says that none follows. The
//! next such read begins after the last number; or before a file that could not be read, so a file that was repaired
//! has its numbers, and its message goes.

use super::super::wire::{Curve, EvaluationLine};
use grpo_records::look::entries::{MetricsOf, MetricsPage};
use grpo_records::{IterationRecord, StepMetrics, paths};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub struct Metrics {
    iterations: BTreeMap<u32, IterationRecord>,
    steps: BTreeMap<u32, StepMetrics>,
    /// Where the next page begins.
    next: MetricsOf,
    /// Where the next read begins: no file before it is damaged.
    sound: MetricsOf,
    /// Damaged files of the pages of this read so far.
    found: BTreeSet<String>,
    /// Those of the last whole read.
    damaged: BTreeSet<String>,
}

impl Metrics {
    /// The page to read next.
    pub fn wanted(&self) -> MetricsOf {
        self.next
    }

    /// Files that cannot be read, with the cause.
    pub fn damaged(&self) -> &BTreeSet<String> {
        &self.damaged
    }

    /// Adds a page. True if something is new.
    pub fn add(&mut self, page: MetricsPage) -> bool {
        let iterations: Vec<u32> = page.iterations.iter().map(|record| record.iteration).collect();
        let steps: Vec<u32> = page.steps.iter().map(|record| record.step).collect();
        let mut is_new = false;
        for record in page.iterations {
            is_new |= self.iterations.get(&record.iteration) != Some(&record);
            self.iterations.insert(record.iteration, record);
        }
        for record in page.steps {
            is_new |= self.steps.get(&record.step) != Some(&record);
            self.steps.insert(record.step, record);
        }
        let before = self.next;
        let last = |numbers: &[u32], before: u32| numbers.iter().copied().fold(before, u32::max);
        self.next = MetricsOf {
            iterations_after: last(&iterations, before.iterations_after),
            steps_after: last(&steps, before.steps_after),
        };
        let was_sound = self.found.is_empty();
        self.found.extend(page.damaged);
        if self.found.is_empty() {
            self.sound = self.next;
        } else if was_sound {
            // The first page with a damaged file: its number is missing.
            self.sound = MetricsOf {
                iterations_after: before_gap(before.iterations_after, &iterations),
                steps_after: before_gap(before.steps_after, &steps),
            };
        }
        if !page.more {
            let found = std::mem::take(&mut self.found);
            is_new |= found != self.damaged;
            self.damaged = found;
            self.next = self.sound;
        }
        is_new
    }

    /// The largest staleness of a step's batch.
    pub fn staleness(&self, step: u32) -> Option<u32> {
        self.steps.get(&step).map(|metrics| metrics.staleness_max)
    }

    /// The advantages that a step used: for each group of its batch, in the order of the batch.
    pub fn advantages(&self, step: u32) -> Option<&[Vec<f64>]> {
        self.steps.get(&step).map(|metrics| metrics.advantages.as_slice())
    }

    /// Every number that changes over the run, by its name in TensorBoard.
    pub fn curves<'a>(&self, evaluations: impl Iterator<Item = &'a EvaluationLine>) -> Vec<Curve> {
        let mut curves: BTreeMap<(&str, String), Curve> = BTreeMap::new();
        let mut add = |of: &'static str, name: String, x: u32, y: f64| {
            if y.is_finite() {
                let curve = curves.entry((of, name)).or_insert_with_key(|(of, name)| Curve {
                    name: name.clone(),
                    of: (*of).to_owned(),
                    ..Curve::default()
                });
                curve.x.push(x);
                curve.y.push(y);
            }
        };
        for (iteration, record) in &self.iterations {
            for (name, value) in record.numbers() {
                add("iteration", name, *iteration, value);
            }
        }
        for (step, record) in &self.steps {
            for (name, value) in record.numbers() {
                add("step", name, *step, value);
            }
        }
        let mut all: Vec<Curve> = curves.into_values().collect();
        all.extend(resolved(evaluations));
        all
    }
}

/// The last number before the first one that is missing.
fn before_gap(after: u32, numbers: &[u32]) -> u32 {
    let follows = |last: u32, number: u32| last.checked_add(1) == Some(number);
    numbers
        .iter()
        .try_fold(after, |last, number| match follows(last, *number) {
            true => Ok(*number),
            false => Err(last),
        })
        .unwrap_or_else(|last| last)
}

/// The curve of each evaluation set.
fn resolved<'a>(evaluations: impl Iterator<Item = &'a EvaluationLine>) -> impl Iterator<Item = Curve> {
    let mut sets: BTreeMap<&str, BTreeMap<u32, (u32, f64)>> = BTreeMap::new();
    // An evaluation that is not complete would show its first episodes only.
    for line in evaluations.filter(|line| line.done && line.verdicts > 0) {
        if let Some(step) = line.step {
            let rate = f64::from(line.resolved) / f64::from(line.verdicts);
            let lineage = line
                .weights
                .rsplit_once("-v")
                .map_or(0, |(lineage, _)| paths::lineage_number(lineage));
            // A later lineage has made the step again.
            let known = sets
                .entry(&line.set)
                .or_default()
                .entry(step)
                .or_insert((lineage, rate));
            if lineage >= known.0 {
                *known = (lineage, rate);
            }
        }
    }
    sets.into_iter().map(|(set, points)| {
        let (x, y) = points.into_iter().map(|(step, (_, rate))| (step, rate)).unzip();
        Curve {
            name: "resolved_rate".to_owned(),
            of: set.to_owned(),
            x,
            y,
        }
    })
}

#[cfg(test)]
mod tests;
