//! `inspect.json`: the log of an evaluation as Inspect of the UK AI Security Institute reads it (inspect_ai, MIT): all
//! samples of each task as its epochs, with conversations, verdicts and tokens.
//!
//! Only episodes with a verdict are in it: Inspect would count a void as wrong.

use super::atif;
use super::mini_swe_agent::{exit_status, model};
use grpo_records::{EpisodeEnd, EpisodeMeta, Outcome, TurnRecord};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The version of Inspect's log format.
const VERSION: u32 = 2;
const SCORER: &str = "resolved";

/// The log, while episodes are added to it.
#[derive(Default)]
pub struct Log {
    /// Task and content by place (group, sample), which has one verdict.
    samples: BTreeMap<(u32, u32), (String, Value)>,
    models: BTreeSet<String>,
    run: String,
    resolved: usize,
    /// Unix times in seconds.
    first: Option<i64>,
    last: Option<i64>,
}

impl Log {
    pub fn add(&mut self, meta: &EpisodeMeta, turns: &[TurnRecord], patch: &str) {
        let place = (meta.key.group, meta.key.sample);
        let task = meta.key.instance.clone();
        if self.samples.insert(place, (task, sample(meta, turns, patch))).is_none() {
            self.resolved += usize::from(meta.outcome == Outcome::Resolved);
        }
        self.models.insert(model(meta));
        self.run.clone_from(&meta.run);
        self.first = self.first.into_iter().chain([meta.at]).min();
        self.last = self.last.into_iter().chain([meta.at]).max();
    }

    /// The file's content; `scope` is the name of the iteration or evaluation.
    pub fn finish(self, scope: &str) -> Value {
        let (first, last) = (time(self.first.unwrap_or(0)), time(self.last.unwrap_or(0)));
        let count = self.samples.len();
        let mean = self.resolved as f64 / count.max(1) as f64;
        // A task may be in two groups of an iteration, and Inspect knows a sample by task and epoch.
        let mut epochs: BTreeMap<String, u32> = BTreeMap::new();
        let mut samples: Vec<Value> = Vec::with_capacity(count);
        for (task, mut sample) in self.samples.into_values() {
            let epoch = epochs.entry(task).or_default();
            *epoch += 1;
            sample["epoch"] = json!(epoch);
            samples.push(sample);
        }
        let tasks: Vec<&String> = epochs.keys().collect();
        let model = self.models.into_iter().collect::<Vec<_>>().join("+");
        json!({
            "version": VERSION,
            "status": "success",
            "eval": {
                "run_id": self.run,
                "created": first,
                "task": format!("{}: {scope}", self.run),
                "task_id": format!("{}/{scope}", self.run),
                "task_version": 0,
                "dataset": { "name": scope, "samples": tasks.len(), "sample_ids": tasks },
                "model": format!("grpo-operator/{model}"),
                "config": { "epochs": epochs.values().max().unwrap_or(&1) },
                "packages": { "grpo-operator": env!("CARGO_PKG_VERSION") },
            },
            "results": {
                "total_samples": count,
                "completed_samples": count,
                "scores": [{
                    "name": SCORER,
                    "scorer": SCORER,
                    "metrics": { "mean": { "name": "mean", "value": mean } },
                }],
            },
            "stats": { "started_at": first, "completed_at": last },
            "samples": samples,
        })
    }
}

fn time(unix: i64) -> String {
    Timestamp::from_second(unix).unwrap_or_default().to_string()
}

fn sample(meta: &EpisodeMeta, turns: &[TurnRecord], patch: &str) -> Value {
    let model = format!("grpo-operator/{}", model(meta));
    let messages = messages(turns, &model);
    let asked = messages.iter().find(|message| message["role"] == "user");
    let answer = messages.iter().rev().find(|message| message["role"] == "assistant");
    let tokens = |of: fn(&TurnRecord) -> usize| turns.iter().map(of).sum::<usize>();
    let (prompt, sampled) = (tokens(|turn| turn.prompt_length), tokens(|turn| turn.sampled_length));
    let usage = json!({ "input_tokens": prompt, "output_tokens": sampled, "total_tokens": prompt + sampled });
    let choices: Vec<Value> = answer
        .map(|message| json!({ "message": message, "stop_reason": stopped(meta.end) }))
        .into_iter()
        .collect();
    json!({
        "id": meta.key.instance,
        "input": asked.map_or(json!(""), |message| message["content"].clone()),
        "target": "resolved",
        "output": { "model": model, "choices": choices, "usage": usage },
        "scores": { SCORER: {
            "value": u8::from(meta.outcome == Outcome::Resolved),
            "answer": patch,
            "explanation": meta.message,
            "metadata": { "reward": meta.reward },
        }},
        "metadata": {
            "end": exit_status(meta.end),
            "group": meta.key.group,
            "sample": meta.key.sample,
            "attempt": meta.attempt,
            "weights": meta.weights,
            "turns": meta.turns,
        },
        "model_usage": { model.as_str(): usage },
        "total_time": seconds(meta.agent_millis + meta.grade_millis + meta.waited_millis),
        "working_time": seconds(meta.agent_millis + meta.grade_millis),
        "messages": messages,
    })
}

/// In Inspect's words.
fn stopped(end: EpisodeEnd) -> &'static str {
    match end {
        EpisodeEnd::Submitted => "stop",
        EpisodeEnd::ContextFull => "model_length",
        EpisodeEnd::TokenLimit | EpisodeEnd::AnswerCut => "max_tokens",
        _ => "unknown",
    }
}

fn seconds(millis: u64) -> f64 {
    millis as f64 / 1000.0
}

/// The conversation. Results of calls name the call: those of several calls come in the order of the calls.
fn messages(turns: &[TurnRecord], model: &str) -> Vec<Value> {
    let mut messages: Vec<Value> = Vec::new();
    let mut open: Vec<(String, String)> = Vec::new();
    let result = |messages: &mut Vec<Value>, open: &mut Vec<(String, String)>, content: &str| {
        if open.is_empty() {
            messages.push(json!({ "role": "user", "content": content }));
        } else {
            let (id, function) = open.remove(0);
            messages.push(json!({ "role": "tool", "content": content, "tool_call_id": id, "function": function }));
        }
    };
    for turn in turns {
        for message in &turn.opening {
            match message.role.as_str() {
                "tool" => result(&mut messages, &mut open, &message.content),
                "assistant" => messages.push(json!({ "role": "assistant", "content": message.content })),
                "system" => messages.push(json!({ "role": "system", "content": message.content })),
                _ => messages.push(json!({ "role": "user", "content": message.content })),
            }
        }
        let calls = atif::calls(turn);
        open = calls
            .iter()
            .map(|call| (call.id.clone(), call.function.clone()))
            .collect();
        let shown = calls.iter().map(
            |call| json!({ "id": call.id, "function": call.function, "arguments": call.arguments, "type": "function" }),
        );
        let mut answer = json!({ "role": "assistant", "content": turn.text, "model": model, "metadata": { "weights": turn.weights } });
        if !calls.is_empty() {
            answer["tool_calls"] = shown.collect();
        }
        messages.push(answer);
        if turn.observation_length > 0 {
            result(&mut messages, &mut open, &turn.observation_text);
        }
    }
    messages
}

#[cfg(test)]
mod tests;
