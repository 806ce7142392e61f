//! The report on the rows of a set: their formats, the number of tasks, and the skipped rows with their causes.
//!
//! It is logged, shown in the run's progress, and kept in the store beside the rows for graders.

use super::format::RowKind;
use super::{Task, TaskSet};
use crate::fault::DriverError;
use grpo_contracts::task_sets::{SetReport, SkippedRow};
use grpo_crds::grpo_run::RowFormat;
use grpo_records::{RunStore, paths};
use std::collections::BTreeMap;

/// How many skipped rows the log names; the store has all.
const LOGGED: usize = 100;

pub(super) fn count(report: &mut SetReport, kinds: &BTreeMap<RowKind, usize>, tasks: &[Task]) {
    report.rows = kinds
        .iter()
        .map(|(kind, count)| (kind.name().to_owned(), *count))
        .collect();
    choose(report, tasks);
}

/// Counts the run's tasks, and those that install packages.
pub(super) fn choose(report: &mut SetReport, tasks: &[Task]) {
    report.tasks = tasks.len();
    report.installing = Default::default();
    for task in tasks {
        if let Some(command) = &task.installs {
            report.installing.add(&task.instance, command);
        }
    }
}

/// The message for people: the formats that Auto found, unless all rows are complete; skipped rows; unused statements;
/// and tasks that install packages, if graders reach no index (`without_index`).
pub fn message(report: &SetReport, without_index: bool) -> Option<String> {
    let is_plain =
        report.format != RowFormat::Auto || report.rows.keys().all(|format| format == RowKind::Compiled.name());
    let formats = report
        .rows
        .iter()
        .map(|(format, count)| format!("{count} {format} rows"));
    let formats = formats.collect::<Vec<_>>().join(", ");
    let mut parts = Vec::new();
    if !(is_plain && report.skipped.is_empty()) {
        parts.push(formats);
    }
    if !report.skipped.is_empty() {
        parts.push(report.skipped_in_words());
    }
    // Names without a row are probably misspelt, and nothing else reports them.
    if report.overridden < report.statements {
        let SetReport {
            overridden, statements, ..
        } = report;
        parts.push(format!(
            "{overridden} of {statements} statements of promptOverrides are for rows of this set"
        ));
    }
    if without_index {
        parts.extend(report.installing.in_words());
    }
    (!parts.is_empty()).then(|| format!("tasks.{}: {}", report.set, parts.join("; ")))
}

/// Logs the report.
pub fn log(report: &SetReport) {
    let SetReport {
        set,
        format,
        rows,
        tasks,
        skipped,
        overridden,
        installing,
        ..
    } = report;
    tracing::info!(
        set,
        ?format,
        ?rows,
        tasks,
        skipped = skipped.len(),
        overridden,
        installing = installing.count,
        "the rows are read"
    );
    for SkippedRow { instance, place, cause } in skipped.iter().take(LOGGED) {
        tracing::warn!(set, instance, place, cause, "a row is skipped");
    }
}

/// Keeps the report in the store, and the rows if they differ from the dataset's. The first driver's files stay.
pub async fn keep(store: &RunStore, set: &TaskSet) -> Result<(), DriverError> {
    let report = &set.report;
    store.create(&paths::task_report(&report.set), report).await?;
    let completed = report.rows.keys().any(|format| format != RowKind::Compiled.name());
    if completed || report.overridden > 0 {
        let line = |task: &Task| format!("{}\n", task.row);
        let rows: String = set.tasks.iter().map(line).collect();
        store.create_bytes(&paths::task_rows(&report.set), rows).await?;
    }
    Ok(())
}
