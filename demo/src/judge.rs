//! A judge of turns that is right about 80 % of them, for `grpo-learning --arm judge`: it stands for a process reward
//! model of that quality.
//!
//! A judge does not know how an episode ends, so right is defined for a turn, by the one repair that a demo task is
//! known to need. A turn is good if it makes that repair in a file without another edit, or if it is the first look at
//! the function's lines, before any edit. Every other turn that ran something is bad: another edit, a second look,
//! tests alone. The turn that submits is not judged (`skipSubmit`).
//!
//! [`Judge::answer`] tells the truth about [`RIGHT`] of the questions and the opposite about the others. The checksum
//! of the question decides which, so a restarted judge votes the same. Episodes that ask the same get the same vote:
//! its errors are systematic, as a model's are, and more samples do not average them out.
//!
//! A question is what [`PROMPT`] makes of a turn. [`server`] answers questions over HTTP, [`effect`] measures what the
//! votes changed.

pub mod effect;
pub mod server;

use crate::tasks::{Repair, Tasks};
use grpo_records::store::sha256_hex;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Share of the questions that are answered rightly.
pub const RIGHT: f64 = 0.8;
/// `reward.process.prompt` of the judged runs. The output is not read, but two turns that differ in it are two
/// questions.
pub const PROMPT: &str =
    r#"{{ {"problem": problemStatement, "history": history, "response": response, "output": output} | tojson }}"#;

const SPLIT: &str = "train";
const EDIT: &str = "sed -i";
const UNDO: &str = "git checkout";
const FENCE: &str = "```";
const UNKNOWN: &str = "This is no turn of a training task.";

impl Repair {
    /// Whether the turn with this command is a good one. `earlier`: a text with the commands before it.
    pub fn is_good(&self, earlier: &str, command: &str) -> bool {
        let Some((before, edit)) = command.find(EDIT).map(|at| command.split_at(at)) else {
            let look = format!("'{},{}p'", self.first, self.last);
            return command.contains(&look) && !earlier.contains(&look) && !earlier.contains(EDIT);
        };
        let repair = format!("{EDIT} '{},{}s/{}/{}/'", self.first, self.last, self.old, self.new);
        let only_edit = edit.rfind(EDIT) == Some(0) && !edit.contains(UNDO);
        let is_clean = before.contains(UNDO) || earlier.rfind(EDIT) <= earlier.rfind(UNDO);
        edit.starts_with(&repair) && only_edit && is_clean
    }
}

/// A turn, as [`PROMPT`] writes it.
#[derive(Deserialize)]
struct Question {
    problem: String,
    history: String,
    response: String,
}

/// The repairs of the training tasks, by problem statement: a question has no instance id.
#[derive(Clone, Debug)]
pub struct Judge {
    repairs: BTreeMap<String, Repair>,
}

impl Judge {
    /// Only training episodes are judged.
    pub fn of(tasks: &Tasks) -> Self {
        let known = |(_, row): (&str, &Value)| {
            let problem = row["problem_statement"].as_str()?.to_owned();
            (row["split"] == SPLIT).then_some((problem, Repair::of(row)?))
        };
        Self {
            repairs: tasks.rows.iter().filter_map(known).collect(),
        }
    }

    /// The answer to a question, with a vote if it is about a turn of a known task.
    pub fn answer(&self, question: &str) -> String {
        match self.vote(question) {
            Some(true) => r"\boxed{1}".to_owned(),
            Some(false) => r"\boxed{-1}".to_owned(),
            None => UNKNOWN.to_owned(),
        }
    }

    fn vote(&self, question: &str) -> Option<bool> {
        let asked: Question = serde_json::from_str(question).ok()?;
        let repair = self.repairs.get(&asked.problem)?;
        let good = repair.is_good(&asked.history, command_of(&asked.response));
        Some(good == is_right(question))
    }
}

/// The command of an answer's one block; the whole answer if it has none.
fn command_of(response: &str) -> &str {
    let inside = response.split_once(FENCE).map(|(_, rest)| rest);
    let command = inside.and_then(|rest| rest.split_once(FENCE));
    command.map_or(response, |(command, _)| command)
}

/// Whether this question is one of those that are answered rightly.
fn is_right(question: &str) -> bool {
    let digest = sha256_hex(question.as_bytes());
    let drawn = digest.get(..8).and_then(|hex| u32::from_str_radix(hex, 16).ok());
    drawn.is_some_and(|drawn| f64::from(drawn) < f64::from(u32::MAX) * RIGHT)
}

#[cfg(test)]
mod tests;
