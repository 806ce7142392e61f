//! The metrics of a run: the numbers of its iterations and steps, and the curves that they make.
//!
//! They are numbered files, read in pages: each read continues after the last number, so a file is read once. Only a
//! damaged file is read again, alone: it may have been repaired, and then it has its numbers and its message goes. A
//! long run has thousands of files behind a damaged one.

use super::super::wire::{Curve, EvaluationLine};
use grpo_records::look::entries::{MetricsOf, MetricsPage};
use grpo_records::store::StoreError;
use grpo_records::{IterationRecord, StepMetrics, paths};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How often a damaged file is read again.
pub const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// What to read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsWanted {
    Page(MetricsOf),
    /// A file that was damaged.
    File(MetricsFile),
}

/// The file of one iteration or step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsFile {
    Iteration(u32),
    Step(u32),
}

impl MetricsFile {
    pub fn path(self) -> String {
        match self {
            Self::Iteration(iteration) => paths::driver_metrics(iteration),
            Self::Step(step) => paths::trainer_metrics(step),
        }
    }

    /// The file that a message is about: the message of [`StoreError::Unreadable`] begins with its path.
    fn of_message(message: &str) -> Option<Self> {
        let (path, _) = message.split_once(' ')?;
        let number = |folder: &str| -> Option<u32> {
            let name = path.strip_prefix(folder)?.strip_prefix('/')?;
            name.strip_suffix(".json")?.parse().ok()
        };
        let of_step = || number(paths::TRAINER_METRICS).map(Self::Step);
        number(paths::DRIVER_METRICS).map(Self::Iteration).or_else(of_step)
    }
}

/// A file that cannot be read.
#[derive(Debug)]
struct Damaged {
    /// `None`: the driver is of a version with other messages. The file is named, and not read again.
    file: Option<MetricsFile>,
    message: String,
    /// When it was read last, and whether the run had ended by then.
    tried: Instant,
    was_ended: bool,
}

#[derive(Debug, Default)]
pub struct Metrics {
    iterations: BTreeMap<u32, IterationRecord>,
    steps: BTreeMap<u32, StepMetrics>,
    /// Where the next page begins.
    next: MetricsOf,
    /// All pages were read since the last time that metrics may have been added.
    is_read: bool,
    damaged: Vec<Damaged>,
    /// The journal has the run's end, with which each damaged file is read once more.
    has_ended: bool,
}

impl Metrics {
    /// What to read at this time.
    pub fn wanted(&self, now: Instant) -> Option<MetricsWanted> {
        if !self.is_read {
            return Some(MetricsWanted::Page(self.next));
        }
        let is_due = |one: &&Damaged| {
            let is_last = self.has_ended && !one.was_ended;
            is_last || now.saturating_duration_since(one.tried) >= LOOK_AGAIN
        };
        let due = self.damaged.iter().filter(is_due).find_map(|one| one.file);
        due.map(MetricsWanted::File)
    }

    /// There may be files that were not read yet.
    pub fn expect_more(&mut self) {
        self.is_read = false;
    }

    pub fn set_ended(&mut self, has_ended: bool) {
        self.has_ended = has_ended;
    }

    /// Files that cannot be read, with the cause.
    pub fn damaged(&self) -> BTreeSet<String> {
        self.damaged.iter().map(|one| one.message.clone()).collect()
    }

    /// Adds a page. True if something is new.
    pub fn add(&mut self, page: MetricsPage, now: Instant) -> bool {
        let mut is_new = false;
        for record in page.iterations {
            self.pass(MetricsFile::Iteration(record.iteration));
            is_new |= put(&mut self.iterations, record.iteration, record);
        }
        for record in page.steps {
            self.pass(MetricsFile::Step(record.step));
            is_new |= put(&mut self.steps, record.step, record);
        }
        for message in page.damaged {
            let file = MetricsFile::of_message(&message);
            if let Some(file) = file {
                self.pass(file);
            }
            if self.damaged.iter().all(|one| one.message != message) {
                self.damaged.push(Damaged {
                    file,
                    message,
                    tried: now,
                    was_ended: self.has_ended,
                });
                is_new = true;
            }
        }
        self.is_read = !page.more;
        is_new
    }

    /// Adds a damaged file that was read again; `None` for one that was deleted. True if something is new.
    pub fn add_again(&mut self, file: MetricsFile, bytes: Option<&[u8]>, now: Instant) -> bool {
        let read = match (bytes, file) {
            (None, _) => Ok(false),
            (Some(bytes), MetricsFile::Iteration(_)) => serde_json::from_slice(bytes)
                .map(|record: IterationRecord| put(&mut self.iterations, record.iteration, record)),
            (Some(bytes), MetricsFile::Step(_)) => {
                serde_json::from_slice(bytes).map(|record: StepMetrics| put(&mut self.steps, record.step, record))
            }
        };
        let Err(source) = read else {
            self.damaged.retain(|one| one.file != Some(file));
            return true;
        };
        let path = file.path();
        let message = StoreError::Unreadable { path, source }.to_string();
        let mut is_new = false;
        for one in self.damaged.iter_mut().filter(|one| one.file == Some(file)) {
            is_new |= one.message != message;
            one.message.clone_from(&message);
            (one.tried, one.was_ended) = (now, self.has_ended);
        }
        is_new
    }

    /// The next page begins after this file.
    fn pass(&mut self, file: MetricsFile) {
        let (last, number) = match file {
            MetricsFile::Iteration(iteration) => (&mut self.next.iterations_after, iteration),
            MetricsFile::Step(step) => (&mut self.next.steps_after, step),
        };
        *last = number.max(*last);
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

/// True if the record is new, or not as it was.
fn put<T: PartialEq>(records: &mut BTreeMap<u32, T>, number: u32, record: T) -> bool {
    let is_new = records.get(&number) != Some(&record);
    records.insert(number, record);
    is_new
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
