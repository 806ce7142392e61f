//! The parts of the demo's task rows that reports and simulated servers need: the function that a task is about, its
//! kind of bug and the edit that repairs it. Rows are JSON lines in SWE-bench's shape; the demo's rows have these three
//! fields in addition.

use std::{collections::BTreeMap, path::Path};

use grpo_verify::rows::{RowsError, TaskRows};
use serde_json::Value;

/// The one edit that repairs a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// First and last line of the function.
    pub first: u64,
    pub last: u64,
    pub old: String,
    pub new: String,
}

impl Repair {
    /// `None` if the row is not one of the demo's.
    pub fn of(row: &Value) -> Option<Self> {
        let [first, last] = row["lines"].as_array()?.as_slice() else {
            return None;
        };
        let [old, new] = row["repair"].as_array()?.as_slice() else {
            return None;
        };
        Some(Self {
            first: first.as_u64()?,
            last: last.as_u64()?,
            old: old.as_str()?.to_owned(),
            new: new.as_str()?.to_owned(),
        })
    }
}

/// Rows by instance id.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    pub rows: TaskRows,
}

impl Tasks {
    /// Reads every `*.jsonl` of a folder.
    pub fn read(folder: &Path) -> Result<Self, RowsError> {
        Ok(Self {
            rows: TaskRows::read(folder)?,
        })
    }

    /// The cluster of a task: two bugs in one function are not independent. A task without this field is its own
    /// cluster.
    pub fn function<'a>(&'a self, instance: &'a str) -> &'a str {
        self.text(instance, "function").unwrap_or(instance)
    }

    pub fn kind(&self, instance: &str) -> Option<&str> {
        self.text(instance, "bug_kind")
    }

    pub fn split(&self, instance: &str) -> Option<&str> {
        self.text(instance, "split")
    }

    fn text(&self, instance: &str, field: &str) -> Option<&str> {
        self.rows.row(instance)?[field].as_str()
    }

    /// Kinds of bug that training tasks have.
    pub fn trained_kinds(&self) -> std::collections::BTreeSet<&str> {
        self.rows
            .iter()
            .filter(|(id, _)| self.split(id) == Some("train"))
            .filter_map(|(id, _)| self.kind(id))
            .collect()
    }

    /// The floor: the single edit that repairs the most of these tasks when every patch makes it, and the share that it
    /// repairs.
    pub fn best_constant_edit<'a>(&self, instances: impl Iterator<Item = &'a str>) -> Option<(String, f64)> {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        let mut tasks = 0usize;
        for instance in instances {
            tasks += 1;
            let repair = self.rows.row(instance).map(|r| &r["repair"]);
            if let Some([Value::String(old), Value::String(new)]) = repair.and_then(Value::as_array).map(Vec::as_slice)
            {
                *counts.entry(format!("{old} -> {new}")).or_default() += 1;
            }
        }
        let (edit, count) = counts.into_iter().max_by_key(|(_, n)| *n)?;
        Some((edit, count as f64 / tasks as f64))
    }
}

#[cfg(test)]
mod tests;
