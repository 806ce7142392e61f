//! The task rows an evaluation ran on, as far as a report needs them: which function a task is about, which kind of bug it has
//! and which edit repairs it. Rows are SWE-bench-shaped JSON lines; the demo's carry those three fields on top.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum TasksError {
    #[error("{path} cannot be read: {source}; --tasks wants the folder with train.jsonl and heldout.jsonl")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path}, line {line}: {what}")]
    Row { path: PathBuf, line: usize, what: String },
}

/// Rows by instance id.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    rows: BTreeMap<String, Value>,
}

impl Tasks {
    /// Every `*.jsonl` of a folder.
    pub fn read(folder: &Path) -> Result<Self, TasksError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| TasksError::Read { path, source }
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

    fn take(&mut self, path: &Path, text: &str) -> Result<(), TasksError> {
        for (at, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
            let wrong = |what: String| TasksError::Row {
                path: path.to_owned(),
                line: at + 1,
                what,
            };
            let row: Value = serde_json::from_str(line).map_err(|e| wrong(format!("not JSON: {e}")))?;
            let Some(id) = row["instance_id"].as_str() else {
                return Err(wrong("the row has no instance_id".into()));
            };
            self.rows.insert(id.to_owned(), row);
        }
        Ok(())
    }

    pub fn row(&self, instance: &str) -> Option<&Value> {
        self.rows.get(instance)
    }

    /// What tasks are clustered by: two bugs in one function are not independent. Where a row does not say, a task stands for itself.
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
        self.rows.get(instance)?[field].as_str()
    }

    /// Kinds of bug that training tasks have.
    pub fn trained_kinds(&self) -> std::collections::BTreeSet<&str> {
        self.rows
            .keys()
            .filter(|id| self.split(id) == Some("train"))
            .filter_map(|id| self.kind(id))
            .collect()
    }

    /// The floor: the one edit that repairs most of these tasks when it is made everywhere, and the share it repairs.
    pub fn best_constant_edit<'a>(&self, instances: impl Iterator<Item = &'a str>) -> Option<(String, f64)> {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        let mut tasks = 0usize;
        for instance in instances {
            tasks += 1;
            let repair = self.rows.get(instance).map(|r| &r["repair"]);
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
mod tests {
    use super::*;

    fn tasks(lines: &[&str]) -> Tasks {
        let mut tasks = Tasks::default();
        tasks.take(Path::new("rows.jsonl"), &lines.join("\n")).unwrap();
        tasks
    }

    #[test]
    fn the_best_constant_edit_is_the_repair_that_most_tasks_share() {
        let tasks = tasks(&[
            r#"{"instance_id":"a","repair":["<","<="]}"#,
            r#"{"instance_id":"b","repair":["<","<="]}"#,
            r#"{"instance_id":"c","repair":["and","or"]}"#,
            r#"{"instance_id":"d","repair":["==","!="]}"#,
        ]);
        assert_eq!(
            tasks.best_constant_edit(["a", "b", "c", "d"].into_iter()),
            Some(("< -> <=".into(), 0.5))
        );
    }

    #[test]
    fn a_task_whose_row_is_unknown_is_a_cluster_of_its_own() {
        let tasks = tasks(&[r#"{"instance_id":"a","function":"pkg:f"}"#]);
        assert_eq!((tasks.function("a"), tasks.function("x")), ("pkg:f", "x"));
    }

    #[test]
    fn a_broken_row_is_named_by_file_and_line() {
        let error = Tasks::default()
            .take(Path::new("rows.jsonl"), "{\"instance_id\":\"a\"}\n{")
            .unwrap_err();
        assert!(error.to_string().starts_with("rows.jsonl, line 2: not JSON"), "{error}");
    }
}
