//! What the judge changed: the training tasks that judged runs resolve after their last step, beside plain runs with
//! the same seeds. And whether its votes in the stores were right as often as they should be.
//!
//! The differences of a task are averaged over seeds. The interval is over tasks, clustered by function; it says
//! nothing about other seeds, so each seed's difference is a row too.

use crate::arms::{Arm, SET};
use crate::learning::{LearningError, last_evaluation};
use crate::learnt::Evaluation;
use crate::statistics::{Clustered, Estimate, Tally, estimate};
use crate::tasks::{Repair, Tasks};
use grpo_bench_report::Row;
use grpo_records::folder::{FolderError, RunFolder};
use grpo_records::{EpisodeScope, JudgedTurn, TurnRecord};
use std::collections::BTreeMap;

/// The last evaluations of a plain and of a judged run with one seed.
#[derive(Clone, Debug, Default)]
struct Pair {
    seed: u64,
    plain: Evaluation,
    judged: Evaluation,
}

/// Votes, and those that agree with [`Repair::is_good`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Votes {
    right: u32,
    all: u32,
}

/// Pairs of runs, one for each seed.
#[derive(Clone, Debug, Default)]
pub struct Effect {
    pairs: Vec<Pair>,
    votes: Votes,
}

impl Effect {
    /// Adds the runs of a seed.
    pub fn take(
        &mut self,
        seed: u64,
        plain: &RunFolder,
        judged: &RunFolder,
        tasks: &Tasks,
    ) -> Result<(), LearningError> {
        self.pairs.push(Pair {
            seed,
            plain: last_evaluation(plain, &format!("the plain run of seed {seed}"), SET)?,
            judged: last_evaluation(judged, &format!("the judged run of seed {seed}"), SET)?,
        });
        Ok(self.votes.count(judged, tasks)?)
    }

    /// Without a bar: the effect is stated.
    pub fn rows(&self, tasks: &Tasks) -> Vec<Row> {
        let points = |what: &str, value: Option<f64>| {
            let what = format!("training tasks resolved after the last step, judged - plain, {what}");
            Row::new(
                Arm::Judge.figure(&what),
                value.map(|value| value * 100.0),
                "points",
                None,
            )
        };
        let all = difference(&self.pairs, tasks);
        let mut rows = vec![
            points(&format!("mean of {} seeds", self.pairs.len()), all.map(|all| all.value)),
            points("low end of the 95 % interval over tasks", all.map(|all| all.low)),
            points("high end of the 95 % interval over tasks", all.map(|all| all.high)),
        ];
        for pair in &self.pairs {
            let own = difference(std::slice::from_ref(pair), tasks);
            rows.push(points(&format!("seed {}", pair.seed), own.map(|own| own.value)));
        }
        let right = self.votes.share().map(|share| share * 100.0);
        rows.push(Row::new(Arm::Judge.figure("votes that are right"), right, "%", None));
        rows
    }
}

/// The judged runs' rate minus the plain runs', mean over tasks. A task without a verdict in one run of a pair has no
/// difference.
fn difference(pairs: &[Pair], tasks: &Tasks) -> Option<Estimate> {
    let mut of_tasks: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for pair in pairs {
        for (instance, plain) in &pair.plain.tasks {
            let judged = pair.judged.tasks.get(instance).and_then(Tally::rate);
            if let Some((judged, plain)) = judged.zip(plain.rate()) {
                of_tasks.entry(instance.as_str()).or_default().push(judged - plain);
            }
        }
    }
    let mut means: Clustered = Vec::new();
    for (instance, of_seeds) in of_tasks {
        let mean = of_seeds.iter().sum::<f64>() / of_seeds.len() as f64;
        means.push((tasks.function(instance), mean));
    }
    estimate(&means)
}

impl Votes {
    /// Adds the votes in the store of a run.
    fn count(&mut self, folder: &RunFolder, tasks: &Tasks) -> Result<(), FolderError> {
        for iteration in folder.state.iterations.keys().copied() {
            for episode in folder.episodes(&EpisodeScope::Iteration { iteration })? {
                let judged = folder.judged(&episode.path)?;
                let row = tasks.rows.row(&episode.meta.key.instance);
                let Some(repair) = row.and_then(Repair::of).filter(|_| !judged.is_empty()) else {
                    continue;
                };
                let turns = folder.turns(&episode.path)?;
                for one in &judged {
                    self.take(&repair, &turns, one);
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, repair: &Repair, turns: &[TurnRecord], judged: &JudgedTurn) {
        let Some(at) = turns.iter().position(|turn| turn.turn == judged.turn) else {
            return;
        };
        let Some(command) = turns[at].action.as_command() else {
            return;
        };
        let earlier = turns[..at].iter().filter_map(|turn| turn.action.as_command());
        let earlier = earlier.collect::<Vec<_>>().join("\n");
        let good = repair.is_good(&earlier, command);
        for vote in judged.votes.iter().filter_map(|vote| vote.vote) {
            self.all += 1;
            self.right += u32::from((vote > 0) == good);
        }
    }

    fn share(self) -> Option<f64> {
        (self.all > 0).then(|| f64::from(self.right) / f64::from(self.all))
    }
}

#[cfg(test)]
mod tests;
