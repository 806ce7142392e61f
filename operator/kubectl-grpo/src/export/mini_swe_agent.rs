//! The files of mini-swe-agent 2.4.6 (MIT): `<id>.traj.json` in its format "mini-swe-agent-1.1" and `preds.json`, which
//! swebench reads; in addition `step_debug` and `info` of OpenClaw-RL's trajectories.
//!
//! Data that a store does not have is left out: costs, and the raw output of commands (messages have the output that
//! the policy read). An answer without an action stays among the messages, as in mini-swe-agent 1.12, because the
//! policy's next prompt has it.

use grpo_records::{EpisodeEnd, EpisodeMeta, Outcome, TurnRecord};
use serde_json::{Value, json};

/// The number of characters shown at each end of an output.
const SHOWN: usize = 2000;

/// The entry of `preds.json`.
pub fn prediction(meta: &EpisodeMeta, patch: &str) -> Value {
    json!({
        "model_name_or_path": model(meta),
        "instance_id": meta.key.instance,
        "model_patch": patch,
    })
}

/// The version that sampled the episode, or all versions.
pub(super) fn model(meta: &EpisodeMeta) -> String {
    meta.weights.join("+")
}

/// mini-swe-agent's term, if it has one.
pub fn exit_status(end: EpisodeEnd) -> String {
    match end {
        EpisodeEnd::Submitted => "Submitted".into(),
        EpisodeEnd::TurnLimit | EpisodeEnd::ContextFull => "LimitsExceeded".into(),
        EpisodeEnd::EpisodeTimeout => "TimeExceeded".into(),
        other => format!("{other:?}"),
    }
}

/// The content of `<id>.traj.json`.
pub fn trajectory(meta: &EpisodeMeta, turns: &[TurnRecord], patch: &str) -> Value {
    let status = exit_status(meta.end);
    let mut messages: Vec<Value> = Vec::new();
    for turn in turns {
        let opening = turn.opening.iter();
        messages.extend(opening.map(|message| json!({ "role": message.role, "content": message.content })));
        messages.push(answer(turn));
        if turn.observation_length > 0 {
            messages.push(observation(turn));
        }
    }
    messages.push(json!({
        "role": "exit",
        "content": patch,
        "extra": { "exit_status": status, "submission": patch },
    }));
    json!({
        "info": {
            "model_stats": { "instance_cost": 0.0, "api_calls": turns.len() },
            "config": {
                "agent": {},
                "agent_type": "grpo-operator",
                "model": { "model_name": model(meta) },
                "model_type": "grpo-operator",
                "environment": {},
                "environment_type": "grpo-operator",
            },
            "mini_version": "2.4.6",
            "exit_status": status,
            "submission": patch,
            "instance_id": meta.key.instance,
            "error": meta.message,
            "steps": turns.len(),
            "patch_source": "git_diff",
            "reward": meta.reward,
            "eval_result": { "resolved": meta.outcome == Outcome::Resolved },
            "group_index": meta.key.group,
            "index": meta.key.sample,
        },
        "messages": messages,
        "step_debug": turns.iter().filter_map(step).collect::<Vec<_>>(),
        "trajectory_format": "mini-swe-agent-1.1",
        "instance_id": meta.key.instance,
    })
}

fn answer(turn: &TurnRecord) -> Value {
    let actions: Vec<Value> = turn
        .action
        .as_command()
        .map(|command| json!({ "command": command }))
        .into_iter()
        .collect();
    json!({
        "role": "assistant",
        "content": turn.text,
        "extra": { "actions": actions, "cost": 0.0, "timestamp": turn.at },
    })
}

fn observation(turn: &TurnRecord) -> Value {
    let extra = match (&turn.exec, turn.action.is_action()) {
        (Some(_), _) => json!({
            "returncode": returncode(turn),
            "exception_info": if timed_out(turn) { "the command's time was up" } else { "" },
            "timestamp": turn.at,
        }),
        (None, false) => json!({
            "interrupt_type": "FormatError",
            "n_actions": turn.action.blocks().unwrap_or_default(),
            "model_response": turn.text,
            "timestamp": turn.at,
        }),
        (None, true) => json!({ "timestamp": turn.at }),
    };
    json!({ "role": "user", "content": turn.observation_text, "extra": extra })
}

fn timed_out(turn: &TurnRecord) -> bool {
    turn.exec.as_ref().is_some_and(|exec| exec.timed_out)
}

/// The command's return code; -1 without one.
fn returncode(turn: &TurnRecord) -> i32 {
    let exec = turn.exec.as_ref().filter(|exec| !exec.timed_out);
    exec.and_then(|exec| exec.exit_code).unwrap_or(-1)
}

/// An entry for each command, with its step: a step without a command has none.
fn step(turn: &TurnRecord) -> Option<Value> {
    let exec = turn.exec.as_ref()?;
    let output = &turn.observation_text;
    let length = output.chars().count();
    let head: String = output.chars().take(SHOWN).collect();
    let tail: String = output.chars().skip(length.saturating_sub(SHOWN)).collect();
    Some(json!({
        "step_idx": turn.turn,
        "action": turn.action.as_command(),
        "returncode": returncode(turn),
        "output_len": length,
        "output_head": head,
        "output_tail": tail,
        "start_ts": turn.at as f64 - exec.duration_millis as f64 / 1000.0,
        "end_ts": turn.at,
        "ok": returncode(turn) == 0,
    }))
}

#[cfg(test)]
mod tests;
