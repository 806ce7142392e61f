//! Leaves tasks whose first prompt is too long out of their set, and names them in its report.
//!
//! The selection comes first: a set with a limit then has fewer tasks, and the remaining tasks are those of a run
//! without this bound.

use grpo_contracts::reason::Reason;

use super::{Task, TaskSet, report};
use crate::fault::TerminalFault;
use grpo_contracts::task_sets::SkippedRow;

/// Leaves out of a set every task whose first prompt has more than `limit` tokens. `tokens`: the number of tokens of a
/// task's first prompt, if known.
pub fn leave_out(
    set: &mut TaskSet,
    limit: usize,
    tokens: impl Fn(&Task) -> Result<Option<usize>, TerminalFault>,
) -> Result<(), TerminalFault> {
    let (before, known) = (set.tasks.len(), set.report.skipped.len());
    for task in std::mem::take(&mut set.tasks) {
        match tokens(&task)?.filter(|tokens| *tokens > limit) {
            None => {
                let index = set.tasks.len() as u32;
                set.tasks.push(Task { index, ..task });
            }
            Some(tokens) => set.report.skipped.push(SkippedRow {
                instance: Some(task.instance),
                place: format!("task {} of the selection", task.index + 1),
                cause: format!("its prompt has {tokens} tokens, agent.limits.promptTokens is {limit}"),
            }),
        }
    }
    report::choose(&mut set.report, &set.tasks);
    if set.tasks.is_empty() && before > 0 {
        let mut report = set.report.clone();
        report.skipped.drain(..known);
        let what = format!(
            "tasks.{}: no task is left, every prompt is too long: {}; raise agent.limits.promptTokens",
            report.set,
            report.skipped_in_words()
        );
        return Err(TerminalFault::new(Reason::NoTasks, what));
    }
    Ok(())
}
