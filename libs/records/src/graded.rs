//! What a verdict is about: the columns of a task's row that its grading follows from, its image, and the time that
//! its tests have. A verdict counts for another task only where all of these are the same. The task's name does not
//! suffice.

use crate::store::sha256_hex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// `eval_script` has the test command and the test patch in it. `patch`, the task's fix, says which files of a policy's
/// patch count.
const COLUMNS: [&str; 9] = [
    "instance_id",
    "repo",
    "version",
    "base_commit",
    "setup",
    "eval_script",
    "log_parser",
    "eval_type",
    "patch",
];
/// Lists of names, or JSON of them in a text: both say the same.
const TESTS: [&str; 2] = ["FAIL_TO_PASS", "PASS_TO_PASS"];

/// A task as it is graded.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GradedTask {
    /// As [`row_sha256`] has it.
    pub row_sha256: String,
    pub image: String,
    /// How long its evaluation may take.
    pub timeout_seconds: u64,
}

impl GradedTask {
    pub fn sha256(&self) -> String {
        let parts = json!([self.row_sha256, self.image, self.timeout_seconds]);
        sha256_hex(parts.to_string().as_bytes())
    }
}

/// Of a complete row, from the columns that grading reads. A statement or a hint has no say.
pub fn row_sha256(row: &Value) -> String {
    let columns = COLUMNS.iter().map(|name| row[name].clone());
    let tests = TESTS.iter().map(|name| match &row[name] {
        Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| Value::from(text.as_str())),
        list => list.clone(),
    });
    let all: Vec<Value> = columns.chain(tests).collect();
    sha256_hex(Value::Array(all).to_string().as_bytes())
}

#[cfg(test)]
mod tests;
