//! The script for unmodified qwen-code, and the agent of these runs: preset `QwenCode` with its shortest prompt
//! (`bare`), whose system text is one line. The requests still have the schemas of its three tools.
//!
//! Only its tool `run_shell_command` is called, with the demo's own commands. An answer without a call ends the agent.

use super::conversation::{Answer, Excerpt, Function};
use super::flips::Flip;
use super::shell;
use crate::tasks::Repair;
use serde_json::{Value, json};

/// As `e2e/cluster/images.sh agents` names it.
const IMAGE: &str = "grpo.dev/cli/qwen-code:0.24.4";
/// Before the first line of a command's output.
const OUTPUT: &str = "Output: ";

pub fn agent() -> Value {
    json!({"cli": {
        "preset": "QwenCode",
        "image": IMAGE,
        "bare": true,
        "system": "Fix the bug. One command per turn.",
        "task": "{{ task.problem_statement }}",
    }})
}

fn run(word: &str, command: &str) -> Answer {
    let arguments = json!({"command": command, "is_background": false});
    Answer::calls(word, vec![("run_shell_command", arguments)])
}

pub fn look(function: &Function) -> Answer {
    run("Look.", &shell::look(function))
}

/// The code of a shown line.
pub fn code_of(line: &str, number: u64) -> Option<&str> {
    shell::code_of(line.strip_prefix(OUTPUT).unwrap_or(line), number)
}

pub fn attempt(excerpt: &Excerpt<'_>, flip: &Flip, undo: Option<&Flip>) -> Answer {
    let Repair { first, last, .. } = excerpt.function.repair;
    let (word, before) = match undo {
        Some(_) => ("Retry.", shell::UNDO),
        None => ("Edit.", ""),
    };
    let edit = format!("sed -i '{first},{last}s/{}/{}/' $F", flip.old, flip.new);
    run(word, &format!("{before}{edit}{}", shell::TEST))
}

pub fn give_up() -> Answer {
    Answer::text("Done.")
}

#[cfg(test)]
mod tests;
