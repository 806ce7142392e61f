//! Tasks: the rows of a dataset, read once, checked once.
//!
//! Bytes from a [`source`] become rows in a [`reader`], rows become tasks by their [`format`], and a [`selection`] says
//! which are taken and in which order. A row that cannot be used is a fault that names file, line and field; nothing is
//! skipped in silence. The whole row goes to the official grader; the policy sees only [`Task::variables`], never the
//! gold patch or the names of the tests.

pub mod format;
pub mod reader;
pub mod selection;
pub mod source;

use crate::fault::TerminalFault;
use grpo_records::store::sha256_hex;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Fields of a row that no prompt may show.
const KEPT_FROM_PROMPTS: [&str; 5] = ["patch", "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS", "eval_script"];

/// What a task's format says of the place in which the agent works and its tests run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskEnvironment {
    /// The folder of the repository inside the sandbox.
    pub directory: String,
    /// Environment of the policy's commands, from the row's `env`.
    pub variables: BTreeMap<String, String>,
    /// A shell script whose environment the policy's commands get, such as that of a conda environment.
    pub activation: Option<String>,
}

/// One task.
#[derive(Clone, Debug)]
pub struct Task {
    /// Position among the selected rows.
    pub index: u32,
    pub instance: String,
    pub image: String,
    /// The commit patches are taken against.
    pub base_commit: Option<String>,
    /// Where agent and grader work.
    pub environment: TaskEnvironment,
    /// The row as it goes to the grader, `image` filled in.
    pub row: Arc<Value>,
    /// Of the row's bytes.
    pub sha256: String,
}

impl Task {
    /// What a prompt template may use: the row without what gives the answer away.
    pub fn variables(&self) -> Map<String, Value> {
        let row = self.row.as_object().into_iter().flatten();
        row.filter(|(name, _)| !KEPT_FROM_PROMPTS.contains(&name.as_str()))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    }
}

/// Reads the selected tasks from the files of their source.
pub fn load(selection: &selection::Selection, files: &[PathBuf]) -> Result<Vec<Task>, TerminalFault> {
    let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    selection::choose(
        selection,
        &names.join(", "),
        files.iter().flat_map(|file| reader::rows(file)),
    )
}

/// One checksum over the rows in order: tells whether a run goes on with the tasks it began with.
pub fn checksum(tasks: &[Task]) -> String {
    let all: String = tasks.iter().map(|task| task.sha256.as_str()).collect();
    sha256_hex(all.as_bytes())
}

#[cfg(test)]
mod tests;
