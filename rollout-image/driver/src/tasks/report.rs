//! What was made of the rows of a set: their formats, how many are tasks, and which were skipped for which cause.
//!
//! It is logged, shown in the run's progress, and kept in the store beside the rows that graders were given.

use super::format::RowKind;
use super::{Task, TaskSet};
use crate::fault::DriverError;
use grpo_crds::grpo_run::RowFormat;
use grpo_records::{RunStore, paths};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How many skipped rows a message names.
const NAMED: usize = 3;
/// How many skipped rows the log names; the store has all.
const LOGGED: usize = 100;
/// The longest cause in a message, in characters.
const LONGEST_CAUSE: usize = 160;

/// Of one set, as it is in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SetReport {
    /// `train`, or `evaluate.` and the name of an evaluation set.
    pub set: String,
    /// The format in the spec.
    pub format: RowFormat,
    /// How many rows of which format could be graded.
    pub rows: BTreeMap<String, usize>,
    /// How many of these are tasks of the run, after shuffle, slice and limit.
    pub tasks: usize,
    pub skipped: Vec<SkippedRow>,
}

/// A row that cannot be graded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SkippedRow {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// File and line, or row.
    pub place: String,
    pub cause: String,
}

impl SetReport {
    pub fn new(set: &str, format: RowFormat) -> Self {
        Self {
            set: set.to_owned(),
            format,
            ..Self::default()
        }
    }

    pub(super) fn count(&mut self, kinds: &BTreeMap<RowKind, usize>, tasks: usize) {
        self.rows = kinds
            .iter()
            .map(|(kind, count)| (kind.name().to_owned(), *count))
            .collect();
        self.tasks = tasks;
    }

    /// The number of skipped rows, and the first of them with their causes.
    pub fn skipped_in_words(&self) -> String {
        let row = |row: &SkippedRow| {
            let cause: String = row.cause.chars().take(LONGEST_CAUSE).collect();
            format!("{} ({cause})", row.instance.as_deref().unwrap_or(&row.place))
        };
        let first: Vec<String> = self.skipped.iter().take(NAMED).map(row).collect();
        let more = match self.skipped.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("{} skipped: {}{more}", self.skipped.len(), first.join(", "))
    }

    /// For people: what Auto found, unless the rows are complete as they are, and what was skipped.
    pub fn message(&self) -> Option<String> {
        let is_plain =
            self.format != RowFormat::Auto || self.rows.keys().all(|format| format == RowKind::Compiled.name());
        let formats = self.rows.iter().map(|(format, count)| format!("{count} {format} rows"));
        let formats = formats.collect::<Vec<_>>().join(", ");
        match (is_plain, self.skipped.is_empty()) {
            (true, true) => None,
            (_, true) => Some(format!("tasks.{}: {formats}", self.set)),
            (_, false) => Some(format!("tasks.{}: {formats}; {}", self.set, self.skipped_in_words())),
        }
    }

    /// To the log.
    pub fn log(&self) {
        let Self {
            set,
            format,
            rows,
            tasks,
            skipped,
        } = self;
        tracing::info!(set, ?format, ?rows, tasks, skipped = skipped.len(), "the rows are read");
        for SkippedRow { instance, place, cause } in skipped.iter().take(LOGGED) {
            tracing::warn!(set, instance, place, cause, "a row is skipped: it cannot be graded");
        }
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
