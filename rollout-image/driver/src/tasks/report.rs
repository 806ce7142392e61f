//! What was made of the rows of a set: their formats, how many are tasks, and which were skipped for which cause.
//!
//! It is logged, shown in the run's progress, and kept in the store beside the rows that graders were given.

use super::format::RowKind;
use super::{Task, TaskSet};
use crate::fault::DriverError;
use grpo_contracts::task_sets::{SetReport, SkippedRow};
use grpo_crds::grpo_run::RowFormat;
use grpo_records::{RunStore, paths};
use std::collections::BTreeMap;

/// How many skipped rows the log names; the store has all.
const LOGGED: usize = 100;

pub(super) fn count(report: &mut SetReport, kinds: &BTreeMap<RowKind, usize>, tasks: usize) {
    report.rows = kinds
        .iter()
        .map(|(kind, count)| (kind.name().to_owned(), *count))
        .collect();
    report.tasks = tasks;
}

/// For people: what Auto found, unless the rows are complete as they are, and what was skipped.
pub fn message(report: &SetReport) -> Option<String> {
    let is_plain =
        report.format != RowFormat::Auto || report.rows.keys().all(|format| format == RowKind::Compiled.name());
    let formats = report
        .rows
        .iter()
        .map(|(format, count)| format!("{count} {format} rows"));
    let formats = formats.collect::<Vec<_>>().join(", ");
    match (is_plain, report.skipped.is_empty()) {
        (true, true) => None,
        (_, true) => Some(format!("tasks.{}: {formats}", report.set)),
        (_, false) => Some(format!(
            "tasks.{}: {formats}; {}",
            report.set,
            report.skipped_in_words()
        )),
    }
}

/// To the log.
pub fn log(report: &SetReport) {
    let SetReport {
        set,
        format,
        rows,
        tasks,
        skipped,
    } = report;
    tracing::info!(set, ?format, ?rows, tasks, skipped = skipped.len(), "the rows are read");
    for SkippedRow { instance, place, cause } in skipped.iter().take(LOGGED) {
        tracing::warn!(set, instance, place, cause, "a row is skipped: it cannot be graded");
    }
}

/// Keeps the report in the store, and the rows where they are not those of the dataset. The first driver's stay.
pub async fn keep(store: &RunStore, set: &TaskSet) -> Result<(), DriverError> {
    let report = &set.report;
    store.create(&paths::task_report(&report.set), report).await?;
    if report.rows.keys().any(|format| format != RowKind::Compiled.name()) {
        let line = |task: &Task| format!("{}\n", task.row);
        let rows: String = set.tasks.iter().map(line).collect();
        store.create_bytes(&paths::task_rows(&report.set), rows).await?;
    }
    Ok(())
}
