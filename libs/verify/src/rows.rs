//! The task rows that graders need again: one JSON object for each instance id, from dataset files or as the run
//! completed them.

use super::VerifyError;
use grpo_records::folder::RunFolder;
use grpo_records::{GradedTask, graded};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A row without this field is completed when its run begins.
const GRADED_BY: &str = "log_parser";

#[derive(Debug, thiserror::Error)]
pub enum RowsError {
    #[error("{path} cannot be read: {source}; --tasks wants the folder with train.jsonl and heldout.jsonl")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path}, line {line}: {what}")]
    Row { path: PathBuf, line: usize, what: String },
}

/// Rows by instance id. If two sets have different tasks with one id, both are here.
#[derive(Clone, Debug, Default)]
pub struct TaskRows {
    rows: BTreeMap<String, Vec<Value>>,
}

/// Why a verdict has no row to be judged by.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRow {
    #[error("there is no row for {instance} among --tasks, and the store kept none")]
    Unknown { instance: String },
    #[error(
        "none of {known} rows for {instance} is the one that was graded (digest {row_sha256}); give --tasks the rows that the run had"
    )]
    Other {
        instance: String,
        known: usize,
        row_sha256: String,
    },
}

impl TaskRows {
    /// Reads every `*.jsonl` of a folder.
    pub fn read(folder: &Path) -> Result<Self, RowsError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| RowsError::Read { path, source }
        };
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(failed(folder))? {
            let path = entry.map_err(failed(folder))?.path();
            if path.extension().is_some_and(|e| e == "jsonl") {
                files.push(path);
            }
        }
        files.sort();
        let mut tasks = Self::default();
        for path in files {
            let text = std::fs::read_to_string(&path).map_err(failed(&path))?;
            tasks.take(&path, &text)?;
        }
        Ok(tasks)
    }

    /// Adds the rows of a file of JSON lines; `path` is only for errors.
    pub fn take(&mut self, path: &Path, text: &str) -> Result<(), RowsError> {
        for (at, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
            let wrong = |what: String| RowsError::Row {
                path: path.to_owned(),
                line: at + 1,
                what,
            };
            let row: Value = serde_json::from_str(line).map_err(|e| wrong(format!("not JSON: {e}")))?;
            // Formats whose rows lack this name rely on the rows in the store.
            if let Some(id) = row["instance_id"].as_str() {
                self.add(id.to_owned(), row);
            }
        }
        Ok(())
    }

    fn add(&mut self, id: String, row: Value) {
        let rows = self.rows.entry(id).or_default();
        rows.retain(|known| graded::row_sha256(known) != graded::row_sha256(&row));
        rows.push(row);
    }

    /// Adds the completed rows from a run's store for rows that do not say how they are graded.
    pub fn completed_by(&self, folder: &RunFolder) -> Result<Self, VerifyError> {
        let mut kept = Self::default();
        for (path, text) in folder.task_rows()? {
            kept.take(Path::new(&path), &text)?;
        }
        let mut rows = self.clone();
        for (id, completed) in kept.rows {
            if let Some(known) = rows.rows.get_mut(&id) {
                known.retain(|row| !row[GRADED_BY].is_null());
            }
            for row in completed {
                rows.add(id.clone(), row);
            }
        }
        Ok(rows)
    }

    /// All rows, by instance id.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.rows
            .iter()
            .flat_map(|(id, rows)| rows.iter().map(move |row| (id.as_str(), row)))
    }

    /// The row that was read last.
    pub fn row(&self, instance: &str) -> Option<&Value> {
        self.rows.get(instance)?.last()
    }

    /// The row of a verdict. Stores from before this field have one row for each id.
    pub fn graded(&self, instance: &str, task: Option<&GradedTask>) -> Result<&Value, NoRow> {
        let unknown = || NoRow::Unknown {
            instance: instance.to_owned(),
        };
        let Some(task) = task else {
            return self.row(instance).ok_or_else(unknown);
        };
        let rows = self.rows.get(instance).ok_or_else(unknown)?;
        let same = rows.iter().find(|row| task.is_of(row));
        same.ok_or_else(|| NoRow::Other {
            instance: instance.to_owned(),
            known: rows.len(),
            row_sha256: task.row_sha256.clone(),
        })
    }
}

#[cfg(test)]
mod tests;
