//! The demo's task rows, as far as a report needs them: which function a task is about, which kind of bug it has
//! and which edit repairs it. Rows are SWE-bench-shaped JSON lines; the demo's carry those three fields on top.

use std::{collections::BTreeMap, path::Path};

use grpo_verify::rows::{RowsError, TaskRows};
use serde_json::Value;

/// Rows by instance id.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    pub rows: TaskRows,
}

impl Tasks {
    /// Every `*.jsonl` of a folder.
    pub fn read(folder: &Path) -> Result<Self, RowsError> {
        Ok(Self {
            rows: TaskRows::read(folder)?,
        })
    }

    /// What tasks are clustered by: two bugs in one function are not independent. Where a row does not say, a task
    /// stands for itself.
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

    /// The floor: the one edit that repairs most of these tasks when it is made everywhere, and the share it repairs.
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
