//! The task rows that graders need again: one JSON object for each instance id, as dataset files have them, or as the
//! run completed them.

use super::VerifyError;
use grpo_records::folder::RunFolder;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A row without it is completed when its run begins.
const GRADED_BY: &str = "log_parser";

#[derive(Debug, thiserror::Error)]
pub enum RowsError {
    #[error("{path} cannot be read: {source}; --tasks wants the folder with train.jsonl and heldout.jsonl")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path}, line {line}: {what}")]
    Row { path: PathBuf, line: usize, what: String },
}

/// Rows by instance id.
#[derive(Clone, Debug, Default)]
pub struct TaskRows {
    rows: BTreeMap<String, Value>,
}

impl TaskRows {
    /// Every `*.jsonl` of a folder.
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

    /// Adds the rows of a file of JSON lines; `path` is for errors alone.
    pub fn take(&mut self, path: &Path, text: &str) -> Result<(), RowsError> {
        for (at, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
            let wrong = |what: String| RowsError::Row {
                path: path.to_owned(),
                line: at + 1,
                what,
            };
            let row: Value = serde_json::from_str(line).map_err(|e| wrong(format!("not JSON: {e}")))?;
            // Formats whose rows have no such name are known by the rows that the store kept.
            if let Some(id) = row["instance_id"].as_str() {
                self.rows.insert(id.to_owned(), row);
            }
        }
        Ok(())
    }

    /// With the rows that a run completed and kept in its store, where these here do not say how they are graded.
    pub fn completed_by(&self, folder: &RunFolder) -> Result<Self, VerifyError> {
        let mut kept = Self::default();
        for (path, text) in folder.task_rows()? {
            kept.take(Path::new(&path), &text)?;
        }
        let mut rows = self.clone();
        for (id, row) in kept.rows {
            if rows.row(&id).is_none_or(|row| row[GRADED_BY].is_null()) {
                rows.rows.insert(id, row);
            }
        }
        Ok(rows)
    }

    /// All rows, by instance id.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.rows.iter().map(|(id, row)| (id.as_str(), row))
    }

    pub fn row(&self, instance: &str) -> Option<&Value> {
        self.rows.get(instance)
    }
}

#[cfg(test)]
mod tests;
