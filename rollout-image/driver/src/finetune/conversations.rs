//! Turns the rows of a dataset into conversations: token ids and the ranges that are learnt.
//!
//! A row has `messages`, as in chat APIs, and optionally `tools` and `enable_thinking`; or it has `tokens` and a `mask`
//! of ones and zeros. Messages are tokenized like an episode with these answers: the prompt up to the first answer,
//! each answer with the token that ends it, and between answers the text that the template puts there. An answer of
//! weight 0 is not learnt; before the first answer that is, it belongs to the prompt. [`message`] reads messages.

mod message;

use self::message::Columns;
use super::FinetuneSettings;
use crate::fault::TerminalFault;
use crate::recording::rendering;
use crate::tasks::reader::{self, Row};
use grpo_chat_template::{ChatMessage, ChatTemplate, PromptShape, Role};
use grpo_contracts::reason::Reason;
use grpo_crds::grpo_run::Overlong;
use serde_json::Value;
use serde_json::value::RawValue;
use std::path::PathBuf;

/// Most tokens of a dataset: it is held in memory, four bytes each.
const MAX_DATASET_TOKENS: usize = 512 << 20;

/// One row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversation {
    pub tokens: Vec<u32>,
    /// Ranges of tokens that are learnt, in order.
    pub learnt: Vec<(usize, usize)>,
    /// Its end was cut off.
    pub truncated: bool,
}

/// The rows of a dataset, and counts of the rows left out or cut.
#[derive(Debug, Default)]
pub struct Conversations {
    /// With their positions in the dataset.
    pub rows: Vec<(u32, Conversation)>,
    /// Of all rows read, in order.
    pub checksums: Vec<String>,
    pub unresolved: u32,
    pub overlong: u32,
    pub truncated: u32,
}

impl Conversations {
    /// A message for people if rows were left out or cut.
    pub fn message(&self, name: &str) -> Option<String> {
        let count = |number: u32, what: &str| (number > 0).then(|| format!("{number} {what}"));
        let said: Vec<String> = [
            count(self.unresolved, "were not resolved and are left out"),
            count(self.overlong, "are longer than maxTokens and are left out"),
            count(self.truncated, "are cut at maxTokens"),
        ]
        .into_iter()
        .flatten()
        .collect();
        (!said.is_empty()).then(|| format!("{name}: of {} rows {}", self.checksums.len(), said.join(", ")))
    }

    fn read(
        &mut self,
        row: &Row<'_>,
        template: &ChatTemplate,
        settings: &FinetuneSettings,
    ) -> Result<(), TerminalFault> {
        let position = self.checksums.len() as u32;
        self.checksums.push(row.sha256.clone());
        if settings.resolved_only && flag(row, "resolved")? == Some(false) {
            self.unresolved += 1;
            return Ok(());
        }
        let mut read = of_row(row, template, settings.thinking)?;
        let (tokens, longest) = (read.tokens.len(), settings.max_tokens);
        if tokens > longest {
            match settings.overlong {
                Overlong::Refuse => {
                    let what = format!(
                        "{tokens} tokens are more than {longest} (finetune.maxTokens, or the model's positions): set finetune.overlong to Truncate or LeaveOut, or raise maxTokens"
                    );
                    return Err(row.place.fault("(row)", what));
                }
                Overlong::Truncate => read.truncate(longest),
                Overlong::LeaveOut => {
                    self.overlong += 1;
                    return Ok(());
                }
            }
        }
        match read.learnt.is_empty() {
            true if read.truncated => self.overlong += 1,
            true => {
                let (field, what) = match column(row, "tokens") {
                    Some(_) => ("mask", "no token behind the first one is learnt"),
                    None => ("messages", "no message of an assistant that is learnt"),
                };
                return Err(row.place.fault(field, format!("{what}: there is nothing to learn")));
            }
            false => {
                self.truncated += u32::from(read.truncated);
                self.rows.push((position, read));
            }
        }
        Ok(())
    }
}

impl Conversation {
    fn truncate(&mut self, longest: usize) {
        self.tokens.truncate(longest);
        self.learnt.retain(|(from, _)| *from < longest);
        for (_, to) in &mut self.learnt {
            *to = (*to).min(longest);
        }
        self.truncated = true;
    }
}

/// The conversations of a dataset. `name`: the field of the spec, for faults.
pub fn read(
    name: &str,
    files: &[PathBuf],
    template: &ChatTemplate,
    settings: &FinetuneSettings,
) -> Result<Conversations, TerminalFault> {
    let mut found = Conversations::default();
    let mut tokens = 0;
    for file in files {
        for row in reader::rows(file) {
            let before = found.rows.len();
            found.read(&row?, template, settings)?;
            tokens += found.rows[before..]
                .iter()
                .map(|(_, row)| row.tokens.len())
                .sum::<usize>();
            if tokens > MAX_DATASET_TOKENS {
                let message = format!("{name} has more than {MAX_DATASET_TOKENS} tokens: divide it over several runs");
                return Err(TerminalFault::new(Reason::DatasetTooLarge, message));
            }
        }
    }
    match found.rows.is_empty() {
        true => {
            let files: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
            let message = format!(
                "{name} ({}) has no row to learn from, of {}",
                files.join(", "),
                found.checksums.len()
            );
            Err(TerminalFault::new(Reason::DatasetEmpty, message))
        }
        false => Ok(found),
    }
}

/// A column that only other rows have is null in this one.
fn column<'a>(row: &'a Row<'_>, name: &str) -> Option<&'a Value> {
    row.fields.get(name).filter(|value| !value.is_null())
}

fn flag(row: &Row<'_>, name: &str) -> Result<Option<bool>, TerminalFault> {
    message::flag(row.fields.get(name))
        .map_err(|other| row.place.fault(name, format!("{other} is neither true nor false")))
}

fn of_row(row: &Row<'_>, template: &ChatTemplate, thinking: bool) -> Result<Conversation, TerminalFault> {
    match (column(row, "messages"), column(row, "tokens")) {
        (Some(_), None) => of_messages(row, template, thinking),
        (None, Some(tokens)) => of_tokens(row, tokens),
        _ => Err(row
            .place
            .fault("messages", "give either messages, or tokens with a mask")),
    }
}

fn of_tokens(row: &Row<'_>, tokens: &Value) -> Result<Conversation, TerminalFault> {
    let numbers = |field: &str, value: &Value| -> Result<Vec<u32>, TerminalFault> {
        serde_json::from_value(value.clone()).map_err(|error| row.place.fault(field, error))
    };
    let tokens = numbers("tokens", tokens)?;
    let mask = row.fields.get("mask");
    let mask = mask.ok_or_else(|| {
        row.place
            .fault("mask", "is missing: 1 for each token that is learnt, else 0")
    })?;
    let mask = numbers("mask", mask)?;
    if mask.len() != tokens.len() || mask.iter().any(|one| *one > 1) {
        let what = format!("must have a 0 or a 1 for each of the {} tokens", tokens.len());
        return Err(row.place.fault("mask", what));
    }
    let mut read = Conversation {
        tokens,
        ..Conversation::default()
    };
    // Nothing predicts the first token of a row.
    for (at, _) in mask.iter().enumerate().skip(1).filter(|(_, one)| **one == 1) {
        match read.learnt.last_mut() {
            Some((_, to)) if *to == at => *to += 1,
            _ => read.learnt.push((at, at + 1)),
        }
    }
    Ok(read)
}

fn of_messages(row: &Row<'_>, template: &ChatTemplate, thinking: bool) -> Result<Conversation, TerminalFault> {
    let fault = |what: String| row.place.fault("messages", what);
    let columns: Columns<'_> = serde_json::from_slice(&row.json).map_err(|error| row.place.fault("(row)", error))?;
    let messages = columns.messages.map(message::unquoted).unwrap_or_default();
    let messages: Vec<&RawValue> =
        serde_json::from_str(&messages).map_err(|error| fault(format!("is no list: {error}")))?;
    let messages = messages.into_iter().enumerate();
    let (messages, learnt): (Vec<ChatMessage>, Vec<bool>) = messages
        .map(|(at, json)| message::read(json).map_err(|what| fault(format!("message {at} {what}"))))
        .collect::<Result<Vec<_>, _>>()?
        .into_iter()
        .unzip();
    let tools = columns.tools.map(message::unquoted).unwrap_or_default();
    let shape = PromptShape {
        tools: tools.into_owned(),
        thinking: flag(row, "enable_thinking")?.unwrap_or(thinking),
    };
    let rendered = |error: grpo_chat_template::TemplateError| fault(format!("the model's chat template: {error}"));
    let mut read = Conversation::default();
    let mut stop = None;
    let mut since = 0;
    for (at, message) in messages.iter().enumerate() {
        if message.role != Role::Assistant || (read.tokens.is_empty() && !learnt[at]) {
            continue;
        }
        let before = &messages[since..at];
        let between = match stop {
            None if before.is_empty() => return Err(fault("begins with an answer: nothing asks for it".to_owned())),
            None => rendering::prompt(template, &shape, before),
            Some(_) => rendering::glue(template, &shape, stop, before),
        };
        read.tokens.extend(between.map_err(rendered)?);
        let answer = template.answer(&shape, message).map_err(rendered)?;
        stop = answer.last().copied();
        if learnt[at] {
            read.learnt.push((read.tokens.len(), read.tokens.len() + answer.len()));
        }
        read.tokens.extend(answer);
        since = at + 1;
    }
    Ok(read)
}

#[cfg(test)]
mod tests;
