//! A driver's report on the rows of a run's sets: the report of each set in the store, and the lines of `grpo-driver
//! tasks`, which gives the same answer before a run exists.

use std::collections::BTreeMap;

use grpo_crds::grpo_run::RowFormat;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::RunConfig;

/// The name of the training set in reports.
pub const TRAIN: &str = "train";

/// The name of an evaluation set in reports.
pub fn evaluation(name: &str) -> String {
    format!("evaluate.{name}")
}

/// Maximum skipped rows that a message names.
const NAMED: usize = 3;
/// Maximum length of a cause in a message, in characters.
const LONGEST_CAUSE: usize = 160;

/// How the rows of one set became tasks; stored as a record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SetReport {
    /// `train`, or `evaluate.` and the name of an evaluation set.
    pub set: String,
    /// The format in the spec.
    pub format: RowFormat,
    /// For each format, how many rows can be graded.
    pub rows: BTreeMap<String, usize>,
    /// How many of these rows are tasks of the run, after shuffle, slice and limit.
    pub tasks: usize,
    pub skipped: Vec<SkippedRow>,
    /// How many statements `promptOverrides` has.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub statements: usize,
    /// How many rows received one of them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub overridden: usize,
    /// Tasks whose grading scripts install packages.
    #[serde(default, skip_serializing_if = "InstallingRows::is_empty")]
    pub installing: InstallingRows,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// Rows whose grading scripts install packages. They are graded anyway: most images already contain the packages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstallingRows {
    pub count: usize,
    /// The first few of these rows.
    pub first: Vec<InstallingRow>,
}

/// One such row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstallingRow {
    pub instance: String,
    /// The first command that installs a package.
    pub command: String,
}

impl InstallingRows {
    fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn add(&mut self, instance: &str, command: &str) {
        self.count += 1;
        if self.first.len() < NAMED {
            self.first.push(InstallingRow {
                instance: instance.to_owned(),
                command: command.to_owned(),
            });
        }
    }

    /// The consequence if graders reach no package index, and the remedy.
    pub fn in_words(&self) -> Option<String> {
        let row = |row: &InstallingRow| format!("{} ({})", row.instance, row.command);
        let first: Vec<String> = self.first.iter().map(row).collect();
        (self.count > 0).then(|| {
            let rows = match self.count {
                1 => "1 row installs packages in its grading script".to_owned(),
                count => format!("{count} rows install packages in their grading scripts"),
            };
            format!(
                "{rows}, for example {}; the sandbox pool names no spec.packageIndex, so these installs fail and the \
                 image's packages are used; name an index in the pool",
                first.join(", ")
            )
        })
    }
}

/// A row that cannot be graded, or whose prompt is too long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SkippedRow {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// File and line, or row number.
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
}

/// The path of `grpo-driver tasks`: a POST of a [`TasksQuestion`].
pub const ROUTE: &str = "/v1/tasks";

/// Selects a run and its sets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TasksQuestion {
    pub config: RunConfig,
    /// Names of sets as in reports; empty means all.
    pub sets: Vec<String>,
}

/// A line of the answer. A set's report precedes its rows, and the last line is `done` or `fault`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TasksLine {
    /// Progress, for display.
    Progress(String),
    Set(SetReport),
    /// A row as graders receive it: completed, with its image.
    Row(Value),
    /// The fault with which a run of this spec would end, or lose an attempt.
    Fault {
        reason: String,
        message: String,
    },
    Done,
}
