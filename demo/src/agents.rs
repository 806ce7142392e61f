//! Whether a policy improves through an agent (issue figure 19.2): the rows that its warm-up is trained on, and the
//! figures of `bench/results/agents.json`.
//!
//! The input is the stores of two runs: the one that recorded the script ([`crate::teacher`]), and the GRPO run that
//! began with the weights trained on the recording.

use crate::report::SetReport;
use crate::statistics::Estimate;
use crate::teacher::Agent;
use grpo_bench_report::Row;
use grpo_records::dataset::message_rows;
use grpo_records::folder::{FolderError, RunFolder, counting};
use grpo_records::{EpisodeMeta, Outcome, TurnRecord};
use serde_json::Value;

/// The conversations of a recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    /// Rows of mode Finetune: one for each conversation of an episode.
    pub rows: Vec<Value>,
    pub episodes: usize,
    pub resolved: usize,
}

impl Recording {
    /// Of all episodes of a store.
    pub fn of(folder: &RunFolder) -> Result<Self, FolderError> {
        let mut recording = Self::default();
        for scope in folder.scopes()? {
            for episode in counting(folder.episodes(&scope)?) {
                if let Some(ended) = folder.ended(&episode.path)? {
                    recording.take(&episode.meta, &ended.record.turns);
                }
            }
        }
        Ok(recording)
    }

    /// A void attempt is left out: the script may not have ended.
    fn take(&mut self, meta: &EpisodeMeta, turns: &[TurnRecord]) {
        if meta.outcome.is_verdict() {
            self.episodes += 1;
            self.resolved += usize::from(meta.outcome == Outcome::Resolved);
            self.rows.extend(message_rows(meta, turns).rows);
        }
    }

    /// The rows as JSON lines.
    pub fn lines(&self) -> String {
        self.rows.iter().map(|row| format!("{row}\n")).collect()
    }

    /// The resolved share; `None` without episodes.
    pub fn rate(&self) -> Option<f64> {
        (self.episodes > 0).then(|| self.resolved as f64 / self.episodes as f64)
    }
}

/// The figures of one agent. All have the same number, so a new measurement replaces them together.
pub fn rows(agent: Agent, script: Option<f64>, report: &SetReport) -> Vec<Row> {
    let figure = |what: &str| format!("19.2 {}: {what}", name(agent));
    let value = |estimate: Option<Estimate>| estimate.map(|estimate| estimate.value * 100.0);
    let (low, high) = (report.gain.map(|gain| gain.low), report.gain.map(|gain| gain.high));
    let (tasks, samples) = (report.tasks, report.samples);
    vec![
        Row::new(
            figure("episodes resolved by the recorded script"),
            script.map(|rate| rate * 100.0),
            "%",
            None,
        ),
        Row::new(
            figure("training tasks resolved before"),
            value(report.before),
            "%",
            None,
        ),
        Row::new(figure("training tasks resolved after"), value(report.after), "%", None),
        Row::new(
            figure(&format!("gain on {tasks} training tasks, {samples} samples each")),
            value(report.gain),
            "points",
            Some(">= 10"),
        ),
        Row::new(
            figure("low end of its 95 % interval"),
            low.map(|low| low * 100.0),
            "points",
            Some("> 0"),
        ),
        Row::new(
            figure("high end of its 95 % interval"),
            high.map(|high| high * 100.0),
            "points",
            None,
        ),
    ]
}

fn name(agent: Agent) -> &'static str {
    match agent {
        Agent::EditTool => "bash with the edit tool",
        Agent::Pdb => "tools with pdb",
        Agent::QwenCode => "unmodified qwen-code",
    }
}

#[cfg(test)]
mod tests;
