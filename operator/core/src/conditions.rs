//! Standard conditions: the last transition time changes only with the status.

use grpo_contracts::reason::Reason;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Maximum length of a message in a status.
const LONGEST_MESSAGE: usize = 4096;

/// Status of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

impl ConditionStatus {
    pub fn of(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }

    pub fn text(&self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// Builds the conditions of a status from the previous ones.
pub struct Conditions<'a> {
    previous: &'a [Condition],
    generation: Option<i64>,
    now: Time,
    built: Vec<Condition>,
}

impl<'a> Conditions<'a> {
    pub fn after(previous: &'a [Condition], generation: Option<i64>, now: Time) -> Self {
        Self {
            previous,
            generation,
            now,
            built: Vec::new(),
        }
    }

    pub fn set(self, type_: &str, status: ConditionStatus, reason: Reason, message: &str) -> Self {
        self.set_as_told(type_, status, reason.text(), message)
    }

    /// Like `set`, with a reason of another component: a driver of another version declares its faults in its own
    /// words.
    pub fn set_as_told(mut self, type_: &str, status: ConditionStatus, reason: &str, message: &str) -> Self {
        let status = status.text();
        let since = self
            .previous
            .iter()
            .find(|condition| condition.type_ == type_ && condition.status == status)
            .map_or_else(|| self.now.clone(), |condition| condition.last_transition_time.clone());
        self.built.push(Condition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: shortened(message),
            observed_generation: self.generation,
            last_transition_time: since,
        });
        self
    }

    /// Conditions about an end that the object has not reached.
    pub fn not_finished(self, types: [&str; 2], message: &str) -> Self {
        types.into_iter().fold(self, |conditions, type_| {
            conditions.set(type_, ConditionStatus::False, Reason::NotFinished, message)
        })
    }

    /// Keeps a previous condition, if it exists.
    pub fn keep(mut self, type_: &str) -> Self {
        let before = self.previous.iter().find(|condition| condition.type_ == type_);
        self.built.extend(before.cloned());
        self
    }

    /// Sets one condition and keeps every other as it was, in its place.
    pub fn set_alone(self, type_: &str, status: ConditionStatus, reason: Reason, message: &str) -> Self {
        let previous = self.previous;
        let is_it = |condition: &Condition| condition.type_ == type_;
        let set = |conditions: Self| conditions.set(type_, status.clone(), reason, message);
        let all = previous.iter().fold(self, |conditions, before| match is_it(before) {
            true => set(conditions),
            false => conditions.keep(&before.type_),
        });
        match previous.iter().any(is_it) {
            true => all,
            false => set(all),
        }
    }

    pub fn done(self) -> Vec<Condition> {
        self.built
    }
}

/// Whether a condition is True.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    conditions
        .iter()
        .any(|condition| condition.type_ == type_ && condition.status == "True")
}

/// Shortens a text to fit into a condition: keeps the beginning and the end.
pub fn shortened(text: &str) -> String {
    if text.len() <= LONGEST_MESSAGE {
        return text.to_owned();
    }
    let half = LONGEST_MESSAGE / 2 - 8;
    let head = text
        .char_indices()
        .take_while(|(at, _)| *at < half)
        .last()
        .map_or(0, |(at, c)| at + c.len_utf8());
    let tail = text
        .char_indices()
        .find(|(at, _)| *at >= text.len() - half)
        .map_or(text.len(), |(at, _)| at);
    format!("{} … {}", &text[..head], &text[tail..])
}

#[cfg(test)]
mod tests;
