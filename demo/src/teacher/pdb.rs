//! The script for the tool-calling loop with the set `Pdb`, and the agent of these runs: the tools as system 2 has
//! them, without `grep` and the list of files. Its system text of 2 kB is one line here.
//!
//! `view` shows the function, `rewrite` replaces the flipped line, and `eval` runs the tests, which ends the episode if
//! they pass. The script does not start the debugger: what is measured is that GRPO improves a policy through these
//! tools. The loop has no call that submits. So a script that gives up runs the tests until the limit of turns.

use super::conversation::{Answer, Excerpt, Function};
use super::flips::Flip;
use crate::tasks::Repair;
use serde_json::{Value, json};

/// What `eval` runs: the column `test_command` of a task's row.
pub const TEST_COMMAND: &str = "PYTHONHASHSEED=0 LANG=C.UTF-8 python3 -S -s -B /opt/task/run.py short";

const VIEW: &str = "view";
const REWRITE: &str = "rewrite";
const EVAL: &str = "eval";

pub fn agent() -> Value {
    json!({"tools": {
        "toolset": "Pdb",
        "callFormat": "Hermes",
        "grep": false,
        "directoryTree": false,
        "system": "Fix the bug. View, rewrite, eval.",
        "task": "{{ task.problem_statement | replace('$F', task.file) }}",
    }})
}

/// The problem as the prompt has it: the tools take no variables of a shell.
pub fn problem(statement: &str, function: &Function) -> String {
    statement.replace("$F", &function.file)
}

pub fn look(function: &Function) -> Answer {
    let Repair { first, last, .. } = function.repair;
    let arguments = json!({"path": function.file, "start": first, "end": last});
    Answer::calls("Look.", vec![(VIEW, arguments)])
}

/// The code of a line that `view` shows. A `B` marks a breakpoint.
pub fn code_of(line: &str, number: u64) -> Option<&str> {
    let line = line.strip_prefix(['B', ' '])?.trim_start_matches(' ');
    line.strip_prefix(&number.to_string())?.strip_prefix(' ')
}

/// Rewrites the line of the earlier edit as it was, unless this edit rewrites it anyway.
pub fn attempt(excerpt: &Excerpt<'_>, flip: &Flip, undo: Option<&Flip>) -> Answer {
    let rewrite = |line: usize, code: String| {
        let number = excerpt.function.repair.first + line as u64;
        let arguments = json!({"path": excerpt.function.file, "start": number, "new_code": code});
        (REWRITE, arguments)
    };
    let other_line = undo.filter(|undo| undo.line != flip.line);
    let undone = other_line.map(|undo| rewrite(undo.line, excerpt.lines[undo.line].to_owned()));
    let edited = rewrite(flip.line, flip.applied(excerpt.lines[flip.line]));
    let calls = undone.into_iter().chain([edited, (EVAL, json!({}))]);
    Answer::calls(if undo.is_some() { "Retry." } else { "Edit." }, calls.collect())
}

/// Runs the tests again, and changes nothing.
pub fn give_up() -> Answer {
    Answer::calls("Done.", vec![(EVAL, json!({}))])
}

#[cfg(test)]
mod tests;
