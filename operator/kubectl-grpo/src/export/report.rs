//! `results.jsonl` and `summary.json`, with the fields of OpenClaw-RL's evaluation (swe-rl, MIT).
//!
//! A line of results is one episode of the exported sample. The summary counts these episodes, and also has pass@k over
//! all samples of the iteration or evaluation. A void has no verdict: it counts as an error, and in no rate.

use super::mini_swe_agent::exit_status;
use super::pass_at::{PassAt, Samples};
use grpo_records::{EpisodeMeta, Outcome};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Verdicts of all samples, and the episodes of the exported one.
#[derive(Debug, Default)]
pub struct Report {
    tasks: BTreeMap<String, Samples>,
    /// By task.
    results: BTreeMap<String, EpisodeMeta>,
    /// Tasks with a void attempt at the exported sample.
    voided: BTreeSet<String>,
}

impl Report {
    /// Counts a verdict of any sample: an episode has at most one.
    pub fn judged(&mut self, meta: &EpisodeMeta) {
        if meta.outcome.is_verdict() {
            let task = self.tasks.entry(meta.key.instance.clone()).or_default();
            task.judged += 1;
            task.resolved += u32::from(meta.outcome == Outcome::Resolved);
        }
    }

    /// Adds an attempt at the exported sample.
    pub fn exported(&mut self, meta: &EpisodeMeta) {
        let id = meta.key.instance.clone();
        match meta.outcome.is_verdict() {
            true => _ = self.results.insert(id, meta.clone()),
            false => _ = self.voided.insert(id),
        }
    }

    /// Tasks whose exported sample has no verdict in any attempt.
    pub fn errors(&self) -> usize {
        self.voided.iter().filter(|id| !self.results.contains_key(*id)).count()
    }

    pub fn pass_at(&self) -> Vec<PassAt> {
        PassAt::all(&self.tasks.values().copied().collect::<Vec<_>>())
    }

    /// One line for each task, ordered by id.
    pub fn results(&self) -> String {
        self.results
            .values()
            .map(|meta| format!("{}\n", result(meta)))
            .collect()
    }

    /// `data` is the name of the iteration or evaluation.
    pub fn summary(&self, data: &str, sample: u32) -> Value {
        let judged = self.results.len();
        let total = judged + self.errors();
        let count = |of: fn(&EpisodeMeta) -> bool| self.results.values().filter(|meta| of(meta)).count();
        let resolved = count(|meta| meta.outcome == Outcome::Resolved);
        let mean = |of: fn(&EpisodeMeta) -> f64| match judged {
            0 => 0.0,
            judged => self.results.values().map(of).sum::<f64>() / judged as f64,
        };
        let mut models: Vec<&String> = self.results.values().flat_map(|meta| &meta.weights).collect();
        models.sort();
        models.dedup();
        let newest = self.results.values().map(|meta| meta.at).max();
        let newest = newest.and_then(|at| jiff::Timestamp::from_second(at).ok());
        json!({
            "model": models.iter().map(|model| model.as_str()).collect::<Vec<_>>().join("+"),
            "data": data,
            "total": total,
            "resolved": resolved,
            // Of the tasks with a verdict: an error is not the policy's.
            "resolve_rate": rounded(resolved as f64 / judged.max(1) as f64, 4),
            "errors": self.errors(),
            "no_patch": count(|meta| meta.patch_bytes == 0),
            "avg_steps": rounded(mean(|meta| f64::from(meta.turns)), 2),
            "avg_elapsed_s": rounded(mean(elapsed), 2),
            "timestamp": newest.map(|at| at.to_string()),
            "args": { "sample": sample },
            "pass_at_k": self.pass_at().iter().map(PassAt::json).collect::<Vec<_>>(),
        })
    }
}

fn result(meta: &EpisodeMeta) -> Value {
    json!({
        "instance_id": meta.key.instance,
        "resolved": meta.outcome == Outcome::Resolved,
        "exit_status": exit_status(meta.end),
        "patch_source": (meta.patch_bytes > 0).then_some("git_diff"),
        "n_steps": meta.turns,
        "error": meta.message,
        "elapsed": rounded(elapsed(meta), 3),
        "run_dir": meta.key.dir(meta.attempt),
    })
}

/// Seconds of work of agent and grader, without waiting.
fn elapsed(meta: &EpisodeMeta) -> f64 {
    (meta.agent_millis + meta.grade_millis) as f64 / 1000.0
}

fn rounded(value: f64, digits: i32) -> f64 {
    let by = 10f64.powi(digits);
    (value * by).round() / by
}

#[cfg(test)]
mod tests;
