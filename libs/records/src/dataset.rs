//! Episodes as rows of a dataset for mode Finetune.
//!
//! Each row of an episode becomes one row of the dataset, side conversations too. [`token_rows`] has the recorded ids
//! and their mask: exact, but only for a model with the same tokenizer and chat template. [`message_rows`] has messages
//! and tools, for any model. There `weight: 0` marks the answers that are only history in their row, so that every
//! answer is learnt once.

use crate::chat::{BETWEEN, CalledTool, ChatTurn, MessageParts, reasoning_of};
use crate::ended::EndedEpisode;
use crate::episode::EpisodeMeta;
use crate::outcome::Outcome;
use crate::turn::{Message, Omitted, TurnRecord};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Why an answer of the engine ended, if it ended by itself ([`TurnRecord::finish`]).
const STOP: &str = "stop";

/// The rows of an episode as messages.
#[derive(Debug, Default, PartialEq)]
pub struct MessageRows {
    pub rows: Vec<Value>,
    /// Rows that cannot be written as messages.
    pub left_out: usize,
}

/// The rows of an episode as ids with a mask.
pub fn token_rows(meta: &EpisodeMeta, ended: &EndedEpisode) -> Vec<Value> {
    let rows = (0..).zip(&ended.rows).filter(|(_, row)| row.sampled() > 0);
    let rows = rows.map(|(number, row)| {
        let mut line = heading(meta, number);
        line["tokens"] = json!(row.tokens);
        line["mask"] = json!(row.mask);
        line
    });
    rows.collect()
}

/// The rows of an episode as messages. A row ends before an answer that was cut off or has a malformed call, because
/// messages would show it as a complete one. Left out are rows without a complete answer, and rows of drivers that did
/// not record [`ChatTurn`]. A message of the system behind others stays one: mode Finetune renders it as the recording
/// did, also for a template that refuses it.
pub fn message_rows(meta: &EpisodeMeta, turns: &[TurnRecord]) -> MessageRows {
    let mut found = MessageRows::default();
    let rows: BTreeSet<u32> = turns.iter().map(|turn| turn.row).collect();
    for row in rows {
        match of_row(meta, turns, row) {
            Some(line) => found.rows.push(line),
            None => found.left_out += 1,
        }
    }
    found
}

fn heading(meta: &EpisodeMeta, row: u32) -> Value {
    json!({
        "task": meta.key.instance,
        "sample": meta.key.sample,
        "row": row,
        "resolved": meta.outcome == Outcome::Resolved,
        "reward": meta.reward,
    })
}

fn of_row(meta: &EpisodeMeta, turns: &[TurnRecord], row: u32) -> Option<Value> {
    let opening = turns.iter().find(|turn| turn.row == row)?;
    let prompt = opening.chat.as_ref()?.prompt.as_ref()?;
    let messages = row_until(turns, row, turns.len(), true)?;
    let mut line = heading(meta, row);
    line["messages"] = Value::Array(messages);
    line["enable_thinking"] = json!(prompt.thinking);
    if !prompt.tools.is_empty() {
        // As text, it keeps the order of its keys.
        line["tools"] = json!(prompt.tools);
    }
    Some(line)
}

/// The messages of a row up to its last answer before turn `end`. `learnt`: this row learns its answers; then it needs
/// at least one complete answer.
fn row_until(turns: &[TurnRecord], row: u32, end: usize, learnt: bool) -> Option<Vec<Value>> {
    let before = turns.get(..end)?.iter().enumerate();
    let mut of_row = before.filter(|(_, turn)| turn.row == row).peekable();
    let (first, _) = *of_row.peek()?;
    let mut messages = before_row(turns, first)?;
    let mut answered = 0;
    let mut last: Option<&TurnRecord> = None;
    for (_, turn) in of_row {
        if let Some(last) = last {
            messages.extend(observed(last)?);
            messages.extend(opened(turn)?);
        }
        if learnt && !is_complete(turn) {
            break;
        }
        messages.push(answer(turn, learnt, true));
        answered = messages.len();
        last = Some(turn);
    }
    messages.truncate(answered);
    (answered > 0).then_some(messages)
}

/// The messages before the first answer of a row, which turn `first` gives.
fn before_row(turns: &[TurnRecord], first: usize) -> Option<Vec<Value>> {
    let turn = turns.get(first)?;
    let prompt = turn.chat.as_ref()?.prompt.as_ref()?;
    let mut messages = match prompt.after {
        Some(after) => {
            // A forged record could name a later turn.
            let after = usize::try_from(after).ok().filter(|after| *after < first)?;
            row_until(turns, turns[after].row, after + 1, false)?
        }
        None if first > 0 && turn.request.is_none() => return seen(turns, first, prompt.without_reasoning),
        None => Vec::new(),
    };
    messages.extend(opened(turn)?);
    Some(messages)
}

/// The history that a built-in loop shows at turn `at`.
fn seen(turns: &[TurnRecord], at: usize, without_reasoning: bool) -> Option<Vec<Value>> {
    let Some(omitted) = turns.get(at)?.omitted.filter(|omitted| omitted.to > omitted.from) else {
        return history(&turns[..at], None, without_reasoning);
    };
    // Only the first turn with these omitted ones has the text in their place.
    let mut same = turns[1..=at].iter().rev().filter(|turn| turn.omitted == Some(omitted));
    let marker = same.find_map(|turn| turn.opening.first())?;
    history(&turns[..at], Some((omitted, marker)), without_reasoning)
}

/// The messages that a built-in loop shows after these turns of an episode. `gap`: the turns that it leaves out, and
/// the message in their place.
pub fn history(turns: &[TurnRecord], gap: Option<(Omitted, &Message)>, without_reasoning: bool) -> Option<Vec<Value>> {
    let mut messages = opened(turns.first()?)?;
    for (number, turn) in (0..).zip(turns) {
        if let Some((omitted, marker)) = gap {
            if number == omitted.from {
                messages.push(message(&marker.role, &marker.content, &MessageParts::default()));
            }
            if (omitted.from..omitted.to).contains(&number) {
                continue;
            }
        }
        messages.push(answer(turn, false, !without_reasoning));
        messages.extend(observed(turn)?);
    }
    Some(messages)
}

/// The messages that a turn's prompt adds.
fn opened(turn: &TurnRecord) -> Option<Vec<Value>> {
    let chat = turn.chat.as_ref()?;
    let plain = MessageParts::default();
    let messages = turn.opening.iter().enumerate().map(|(at, opening)| {
        let parts = chat.opening.get(at).unwrap_or(&plain);
        message(&opening.role, &opening.content, parts)
    });
    Some(messages.collect())
}

/// The messages of a turn's observation, if the next prompt has it.
fn observed(turn: &TurnRecord) -> Option<Vec<Value>> {
    if turn.observation_length == 0 {
        return Some(Vec::new());
    }
    let chat = turn.chat.as_ref()?;
    let mut rest = turn.observation_text.as_str();
    if chat.observation.is_empty() {
        return Some(vec![message("user", rest, &MessageParts::default())]);
    }
    let messages = chat.observation.iter().map(|observed| {
        let (content, more) = rest.split_at_checked(observed.bytes)?;
        rest = more.strip_prefix(BETWEEN).unwrap_or(more);
        let parts = MessageParts {
            tool_call_id: observed.tool_call_id.clone(),
            ..MessageParts::default()
        };
        Some(message(&observed.role, content, &parts))
    });
    messages.collect()
}

/// Whether messages can show an answer as it was sampled.
fn is_complete(turn: &TurnRecord) -> bool {
    turn.finish == STOP && turn.action.malformed().is_none()
}

/// The answer of a turn as a message.
fn answer(turn: &TurnRecord, learnt: bool, with_reasoning: bool) -> Value {
    let (reasoning, said) = match turn.action.malformed() {
        Some(_) => (None, turn.text.as_str()),
        None => reasoning_of(&turn.text),
    };
    let content = turn.chat.as_ref().and_then(|chat: &ChatTurn| chat.content.as_deref());
    let parts = MessageParts {
        reasoning: reasoning.filter(|_| with_reasoning).map(|text| text.trim().to_owned()),
        tool_calls: turn.action.as_calls().unwrap_or_default(),
        tool_call_id: None,
    };
    let mut message = message("assistant", content.unwrap_or(said), &parts);
    if learnt && let Some(fields) = message.as_object_mut() {
        fields.remove("weight");
    }
    message
}

/// A message in the form of chat APIs. An assistant's is not learnt.
fn message(role: &str, content: &str, parts: &MessageParts) -> Value {
    let mut message = json!({ "role": role, "content": content });
    if role == "assistant" {
        message["weight"] = json!(0);
    }
    if let Some(reasoning) = parts.reasoning.as_ref().filter(|text| !text.is_empty()) {
        message["reasoning_content"] = json!(reasoning);
    }
    if !parts.tool_calls.is_empty() {
        message["tool_calls"] = parts.tool_calls.iter().map(call).collect();
    }
    if let Some(id) = &parts.tool_call_id {
        message["tool_call_id"] = json!(id);
    }
    message
}

fn call(call: &CalledTool) -> Value {
    let function = json!({ "name": call.name, "arguments": call.arguments });
    json!({ "id": call.id, "type": "function", "function": function })
}

#[cfg(test)]
mod tests;
