//! `inspect.json`: the log of an evaluation as Inspect of the UK AI Security Institute reads it (inspect_ai, MIT): all
//! samples of each task as its epochs, with conversations, verdicts and tokens.
//!
//! Only episodes with a verdict are in it: Inspect would count a void as wrong. What comes before the samples follows
//! from their verdicts, so a log is written while conversations are read.

use super::atif;
use super::mini_swe_agent::{exit_status, model};
use grpo_records::{EpisodeEnd, EpisodeMeta, Outcome, TurnRecord};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The version of Inspect's log format.
const VERSION: u32 = 2;
const SCORER: &str = "resolved";

/// The log's field of samples while it is empty: other samples take this place.
const NO_SAMPLES: &str = "\"samples\": []";

/// The file's parts. Samples are written one after another, because those of an evaluation may not fit into memory.
pub struct Log {
    head: String,
    tail: String,
    /// Samples of each task so far: Inspect knows a sample by task and epoch, and a task may be in two groups of an
    /// iteration.
    epochs: BTreeMap<String, u32>,
}

impl Log {
    /// `scope`: the name of the iteration or evaluation. `metas`: those of the samples, in any order.
    pub fn new<'a>(scope: &str, metas: impl IntoIterator<Item = &'a EpisodeMeta>) -> Self {
        let (mut first, mut last): (Option<i64>, Option<i64>) = (None, None);
        let (mut count, mut resolved, mut run) = (0_usize, 0_usize, "");
        let mut models: BTreeSet<String> = BTreeSet::new();
        let mut tasks: BTreeMap<&str, u32> = BTreeMap::new();
        for meta in metas {
            count += 1;
            resolved += usize::from(meta.outcome == Outcome::Resolved);
            run = meta.run.as_str();
            models.insert(model(meta));
            *tasks.entry(meta.key.instance.as_str()).or_default() += 1;
            // Unix times in seconds.
            first = first.into_iter().chain([meta.at]).min();
            last = last.into_iter().chain([meta.at]).max();
        }
        let (first, last) = (time(first.unwrap_or(0)), time(last.unwrap_or(0)));
        let mean = resolved as f64 / count.max(1) as f64;
        let model = models.into_iter().collect::<Vec<_>>().join("+");
        let log = json!({
            "version": VERSION,
            "status": "success",
            "eval": {
                "run_id": run,
                "created": first,
                "task": format!("{run}: {scope}"),
                "task_id": format!("{run}/{scope}"),
                "task_version": 0,
                "dataset": { "name": scope, "samples": tasks.len(), "sample_ids": tasks.keys().collect::<Vec<_>>() },
                "model": format!("grpo-operator/{model}"),
                "config": { "epochs": tasks.values().max().unwrap_or(&1) },
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
            "samples": [],
        });
        let log = format!("{log:#}\n");
        // Quotes within texts are escaped, so this is the field.
        let (head, tail) = log.split_once(NO_SAMPLES).unwrap_or((log.as_str(), ""));
        Self {
            head: format!("{head}\"samples\": ["),
            tail: tail.to_owned(),
            epochs: BTreeMap::new(),
        }
    }

    /// The beginning of the file.
    pub fn head(&self) -> &str {
        &self.head
    }

    /// The next sample, in the order of groups and samples.
    pub fn sample(&mut self, meta: &EpisodeMeta, turns: &[TurnRecord], patch: &str) -> String {
        let separator = if self.epochs.is_empty() { "" } else { "," };
        let epoch = self.epochs.entry(meta.key.instance.clone()).or_default();
        *epoch += 1;
        let mut sample = sample(meta, turns, patch);
        sample["epoch"] = json!(epoch);
        // Line breaks within texts are escaped.
        let lines = format!("\n{sample:#}").replace('\n', "\n    ");
        format!("{separator}{lines}")
    }

    /// The end of the file, after the last sample.
    pub fn tail(&self) -> String {
        let end = if self.epochs.is_empty() { "]" } else { "\n  ]" };
        format!("{end}{}", self.tail)
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
