//! `<id>/trajectory.json`: an episode in the Agent Trajectory Interchange Format of Harbor (ATIF-v1.4, Apache-2.0).
//!
//! A step is a message of the prompt, or an answer of the policy with its observation. Sampled ids and their logprobs
//! are in an answer's metrics, so that its text need not be tokenized again. Prompt ids are left out: they repeat all
//! earlier ones, and the store has them.

use super::mini_swe_agent::model;
use grpo_records::{EpisodeMeta, Outcome, TurnRecord};
use serde_json::{Value, json};

const VERSION: &str = "ATIF-v1.4";
/// The function name of a command: built-in bash loops have none.
const COMMAND: &str = "bash";

/// The content of `<id>/trajectory.json`.
pub fn trajectory(meta: &EpisodeMeta, turns: &[TurnRecord], patch: &str) -> Value {
    let mut steps = Steps::default();
    for turn in turns {
        for message in &turn.opening {
            match message.role.as_str() {
                "tool" => steps.observe(&message.content),
                "assistant" => steps.push("agent", &message.content, json!({})),
                "system" => steps.push("system", &message.content, json!({})),
                _ => steps.push("user", &message.content, json!({})),
            }
        }
        steps.push("agent", &turn.text, answer(turn));
        if turn.observation_length > 0 {
            steps.observe(&turn.observation_text);
        }
    }
    let tokens = |of: fn(&TurnRecord) -> usize| turns.iter().map(of).sum::<usize>();
    json!({
        "schema_version": VERSION,
        "session_id": format!("{}/{}", meta.run, meta.key.dir(meta.attempt)),
        "agent": {
            "name": "grpo-operator",
            "version": env!("CARGO_PKG_VERSION"),
            "model_name": model(meta),
        },
        "steps": steps.0,
        "final_metrics": {
            "total_prompt_tokens": tokens(|turn| turn.prompt_length),
            "total_completion_tokens": tokens(|turn| turn.sampled_length),
            "total_steps": steps.0.len(),
        },
        "extra": {
            "instance_id": meta.key.instance,
            "group": meta.key.group,
            "sample": meta.key.sample,
            "resolved": meta.outcome == Outcome::Resolved,
            "reward": meta.reward,
            "end": meta.end,
            "patch": patch,
        },
    })
}

/// Steps in order, each with its number.
#[derive(Default)]
struct Steps(Vec<Value>);

impl Steps {
    fn push(&mut self, source: &str, message: &str, more: Value) {
        let mut step = json!({ "step_id": self.0.len() + 1, "source": source, "message": message });
        if let (Some(step), Value::Object(more)) = (step.as_object_mut(), more) {
            step.extend(more);
        }
        self.0.push(step);
    }

    /// Adds an observation to the last answer. The results of several calls come in the order of the calls.
    fn observe(&mut self, content: &str) {
        let Some(step) = self.0.iter_mut().rev().find(|step| step["source"] == "agent") else {
            return self.push("user", content, json!({}));
        };
        let calls: Vec<Value> = ids(&step["tool_calls"]);
        let observation = &mut step["observation"];
        if observation.is_null() {
            *observation = json!({ "results": [] });
        }
        if let Some(results) = observation["results"].as_array_mut() {
            let mut result = json!({ "content": content });
            if let Some(id) = calls.get(results.len()) {
                result["source_call_id"] = id.clone();
            }
            results.push(result);
        }
    }
}

fn ids(calls: &Value) -> Vec<Value> {
    let calls = calls.as_array().into_iter().flatten();
    calls.map(|call| call["tool_call_id"].clone()).collect()
}

/// The fields of an answer besides its text.
fn answer(turn: &TurnRecord) -> Value {
    let calls = calls(turn).into_iter();
    let calls: Vec<Value> = calls
        .map(|call| json!({ "tool_call_id": call.id, "function_name": call.function, "arguments": call.arguments }))
        .collect();
    let mut metrics = json!({ "prompt_tokens": turn.prompt_length, "completion_tokens": turn.sampled_length });
    if !turn.sampled.is_empty() {
        metrics["completion_token_ids"] = json!(turn.sampled);
        metrics["logprobs"] = json!(turn.logprobs);
    }
    let mut more = json!({
        "model_name": turn.weights,
        "metrics": metrics,
        "extra": { "row": turn.row, "action": turn.action.kind },
    });
    if let Ok(at) = jiff::Timestamp::from_second(turn.at) {
        more["timestamp"] = json!(at.to_string());
    }
    if !calls.is_empty() {
        more["tool_calls"] = Value::Array(calls);
    }
    more
}

/// A call of a tool, or a command of a built-in bash loop.
pub(super) struct Call {
    pub id: String,
    pub function: String,
    /// An object.
    pub arguments: Value,
}

/// The calls of an answer, in their order.
pub(super) fn calls(turn: &TurnRecord) -> Vec<Call> {
    let calls = turn.action.as_calls().unwrap_or_default().into_iter();
    let calls = calls.map(|call| Call {
        arguments: arguments(&call.arguments),
        id: call.id,
        function: call.name,
    });
    let command = turn.action.as_command().map(|command| Call {
        id: format!("call_{}_0", turn.turn),
        function: COMMAND.to_owned(),
        arguments: json!({ "command": command }),
    });
    calls.chain(command).collect()
}

/// The format requires an object: any other text is wrapped in one.
fn arguments(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Value::Object(object),
        _ => json!({ "text": text }),
    }
}

#[cfg(test)]
mod tests;
