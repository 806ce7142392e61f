//! What the scripts of agents with a shell share: the demo's own commands (`demo/model/conversations.py`), and their
//! output.

use super::conversation::Function;
use crate::tasks::Repair;

/// Undoes all edits before the next one.
pub const UNDO: &str = "git checkout -q .; ";
/// Runs the task's tests behind an edit.
pub const TEST: &str = "; sh t";
/// Its output if they pass.
pub const PASSED: &str = "1 passed";

/// Prints the function with the numbers of its lines.
pub fn look(function: &Function) -> String {
    let Repair { first, last, .. } = function.repair;
    format!("grep -n '' $F | sed -n '{first},{last}p'")
}

/// The code of a line that [`look`] printed.
pub fn code_of(line: &str, number: u64) -> Option<&str> {
    line.strip_prefix(&number.to_string())?.strip_prefix(':')
}
