//! Compares two ways of running the demo: a plain run and one with another schedule, choice of groups or reward of
//! turns, on the same tasks, sampling seeds and iterations (issue figure 20.4).
//!
//! The input is the stores of the runs; the output is rows of `bench/results/arms.json`. A curve has a point for each
//! evaluation of a set. Curves of several seeds are averaged point by point before rates are compared: one evaluation
//! of 24 tasks moves by several points by chance alone.

use crate::learning::LearningError;
use grpo_bench_report::Row;
use grpo_records::folder::{FolderError, RunFolder};
use grpo_records::{EpisodeScope, Event, JournalEntry};
use std::collections::{BTreeMap, BTreeSet};

/// The set whose rates are compared.
pub const SET: &str = "train";

/// What is compared with a plain run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Arm {
    /// Groups without a signal are replaced.
    Dynamic,
    /// Rollouts continue beside steps.
    Overlap,
    /// A judge votes on turns, which are trained one by one.
    Judge,
}

/// One evaluation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Steps of the trainer before it.
    pub step: u32,
    /// Episodes that were sampled for these steps, those of dropped groups included.
    pub episodes: f64,
    /// Share of resolved episodes.
    pub rate: f64,
}

/// The evaluations of [`SET`], in order.
pub fn curve(folder: &RunFolder) -> Result<Vec<Point>, FolderError> {
    let mut begun = BTreeMap::new();
    for iteration in folder.state.iterations.keys().copied() {
        let attempts = folder.attempts(&EpisodeScope::Iteration { iteration })?;
        // A void attempt is repeated: the loss of a sandbox is not the arm's.
        let episodes: BTreeSet<&str> = attempts.iter().map(|path| without_attempt(path)).collect();
        begun.insert(iteration, episodes.len());
    }
    Ok(points(&folder.journal, &begun))
}

/// The folder of an episode's first attempt, from that of any attempt.
fn without_attempt(path: &str) -> &str {
    match path.rsplit_once("__t") {
        Some((episode, attempt)) if attempt.bytes().all(|byte| byte.is_ascii_digit()) => episode,
        _ => path,
    }
}

/// `begun`: the number of episodes that each iteration began.
fn points(journal: &[JournalEntry], begun: &BTreeMap<u32, usize>) -> Vec<Point> {
    // A step has the number of its iteration.
    let mut steps: BTreeMap<&str, u32> = BTreeMap::new();
    let mut points = Vec::new();
    for entry in journal {
        match &entry.event {
            Event::StepDone { step, weights, .. } => {
                steps.insert(weights, *step);
            }
            Event::EvaluationDone {
                set,
                weights,
                resolved,
                episodes,
                ..
            } if set == SET && *episodes > 0 => {
                let step = steps.get(weights.as_str()).copied().unwrap_or(0);
                let sampled: usize = begun.range(..=step).map(|(_, episodes)| episodes).sum();
                points.push(Point {
                    step,
                    episodes: sampled as f64,
                    rate: f64::from(*resolved) / f64::from(*episodes),
                });
            }
            _ => {}
        }
    }
    points
}

/// The mean over seeds of the evaluations after equal steps.
fn mean(curves: &[Vec<Point>]) -> Vec<Point> {
    let mut by_step: BTreeMap<u32, Vec<Point>> = BTreeMap::new();
    for point in curves.iter().flatten() {
        by_step.entry(point.step).or_default().push(*point);
    }
    let all = by_step.into_iter().filter(|(_, points)| points.len() == curves.len());
    all.map(|(step, points)| {
        let mean = |of: fn(&Point) -> f64| points.iter().map(of).sum::<f64>() / points.len() as f64;
        Point {
            step,
            episodes: mean(|point| point.episodes),
            rate: mean(|point| point.rate),
        }
    })
    .collect()
}

/// Sampled episodes until the curve first has the rate, by linear interpolation; `None` if it never has.
fn episodes_to(curve: &[Point], rate: f64) -> Option<f64> {
    let first = curve.first().filter(|first| first.rate >= rate);
    let crossing = curve
        .windows(2)
        .find(|pair| pair[0].rate < rate && pair[1].rate >= rate);
    let crossed = crossing.map(|pair| {
        let share = (rate - pair[0].rate) / (pair[1].rate - pair[0].rate);
        pair[0].episodes + share * (pair[1].episodes - pair[0].episodes)
    });
    first.map(|first| first.episodes).or(crossed)
}

/// The curves of both ways, one for each seed.
#[derive(Clone, Debug, Default)]
pub struct Compared {
    pub plain: Vec<Vec<Point>>,
    pub other: Vec<Vec<Point>>,
}

impl Compared {
    pub fn rows(&self, arm: Arm) -> Result<Vec<Row>, LearningError> {
        let (plain, other) = (mean(&self.plain), mean(&self.other));
        let last = |curve: &[Point], run: &str| {
            let none = || LearningError::NoEvaluation {
                run: run.into(),
                set: SET.into(),
            };
            curve.last().copied().ok_or_else(none)
        };
        let (of_plain, of_other) = (last(&plain, "the plain run")?, last(&other, "the compared run")?);
        if of_plain.step != of_other.step {
            return Err(LearningError::Steps {
                plain: of_plain.step,
                other: of_other.step,
            });
        }
        let seeds = self.plain.len();
        let words = |what: &str| format!("{}, mean of {seeds} seeds", arm.figure(what));
        let rate = Row::new(
            words("training tasks resolved after the last step"),
            Some(of_other.rate * 100.0),
            "%",
            None,
        )
        .beside("plain", of_plain.rate * 100.0);
        let mut rows = vec![rate];
        if arm == Arm::Dynamic {
            // Both ways reach the lower of their highest rates.
            let highest = |curve: &[Point]| curve.iter().map(|point| point.rate).fold(0.0, f64::max);
            let target = highest(&plain).min(highest(&other));
            let (without, with) = (episodes_to(&plain, target), episodes_to(&other, target));
            let ratio = without.zip(with).filter(|(_, with)| *with > 0.0);
            rows.push(Row::new(
                words(&format!(
                    "episodes until {:.1} % are resolved, plain / {}",
                    target * 100.0,
                    arm.name()
                )),
                ratio.map(|(without, with)| without / with),
                "x",
                Some(">= 1.3"),
            ));
            if let (Some(without), Some(with)) = (without, with) {
                rows.push(
                    Row::new(words("episodes until then"), Some(with), "episodes", None).beside("plain", without),
                );
            }
        }
        Ok(rows)
    }
}

impl Arm {
    fn name(self) -> &'static str {
        match self {
            Self::Dynamic => "dynamic sampling",
            Self::Overlap => "rollouts beside steps",
            Self::Judge => "a judge of turns",
        }
    }

    /// The figure of a row. All rows of an arm have the same number, so a new measurement replaces them together.
    pub fn figure(self, what: &str) -> String {
        format!("20.4 {}: {what}", self.name())
    }
}

#[cfg(test)]
mod tests;
