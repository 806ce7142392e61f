//! Tasks whose first prompt is longer than the run takes: left out of their set, and named in its report.
//!
//! The selection comes first: a set with a limit has fewer tasks then, and the tasks that are left stay those of a run
//! without such a bound.

use grpo_contracts::reason::Reason;

use super::{Task, TaskSet, report};
use crate::fault::TerminalFault;
use grpo_contracts::task_sets::SkippedRow;

/// Leaves out of a set every task whose first prompt has more than `limit` tokens. `tokens`: how many a task's has,
/// where that is known.
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
