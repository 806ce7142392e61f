//! The script for the bash loop with the edit tool, and the agent of these runs: preset `MiniSweAgentPlus`, with its
//! own observations and sentinel. Its prompt of 7 kB is replaced by short sentences, because the policy is small.
//!
//! The tool needs a text that the file has exactly once. So an edit names the whole line, and a short one together with
//! the line before it. The tool refuses an edit of a text that still occurs twice; the script takes that for a failed
//! attempt.

use super::conversation::{Answer, Excerpt, Function};
use super::flips::Flip;
use super::shell;
use serde_json::{Value, json};

/// Shorter lines, in characters without blanks around them, are taken together with a neighbour: `return False`,
/// `break` and the like occur in many functions.
const SHORT: usize = 24;

pub fn agent() -> Value {
    json!({"bash": {
        "preset": "MiniSweAgentPlus",
        "system": "Fix the bug. One bash block per turn. Edit by edit_via_str_replace.",
        "task": "{{ task.problem_statement }}",
    }})
}

pub fn look(function: &Function) -> Answer {
    Answer::block("Look.", &shell::look(function))
}

pub fn attempt(excerpt: &Excerpt<'_>, flip: &Flip, undo: Option<&Flip>) -> Answer {
    let lines = &excerpt.lines;
    let (mut from, mut to) = (flip.line, flip.line);
    if lines[flip.line].trim().len() < SHORT {
        match from.checked_sub(1) {
            Some(before) => from = before,
            None => to = (to + 1).min(lines.len() - 1),
        }
    }
    let edited = |at: usize| match at == flip.line {
        true => flip.applied(lines[at]),
        false => lines[at].to_owned(),
    };
    let old = lines[from..=to].join("\n");
    let new = (from..=to).map(edited).collect::<Vec<_>>().join("\n");
    let (word, first) = match undo {
        Some(_) => ("Retry.", shell::UNDO),
        None => ("Edit.", ""),
    };
    let edit = format!("edit_via_str_replace $F -- {} {}", quoted("O", &old), quoted("N", &new));
    Answer::block(word, &format!("{first}{edit}{}", shell::TEST))
}

/// A text as one word of a command, with any quotes in it.
fn quoted(end: &str, text: &str) -> String {
    format!("\"$(cat <<'{end}'\n{text}\n{end}\n)\"")
}

/// Submits.
pub fn give_up() -> Answer {
    Answer::block("Done.", "echo MINI_SWE_AGENT_FINAL_OUTPUT")
}

#[cfg(test)]
mod tests;
