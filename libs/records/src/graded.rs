//! The inputs of a verdict: the columns of a task's row that grading reads, the image, and the time limit of the tests.
//! A verdict is reused for another task only if all of these are equal. An equal task name is not enough.

use crate::store::sha256_hex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// `eval_script` contains the test command and the test patch. `patch`, the task's fix, decides which files of a
/// policy's patch count.
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
/// Columns that only some rows have. One that is missing leaves the checksum as it was before the column existed.
/// `hide` decides which files of a policy's patch count.
const OPTIONAL: [&str; 2] = ["workdir", HIDE];
const HIDE: &str = "hide";
/// Lists of names, or JSON text of such lists: both are equivalent.
const TESTS: [&str; 2] = ["FAIL_TO_PASS", "PASS_TO_PASS"];

/// The inputs of a task's grading.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GradedTask {
    /// From [`row_sha256`]. In verdicts of drivers that did not read `hide` for grading, as if the row had none.
    pub row_sha256: String,
    pub image: String,
    /// The time limit of its evaluation.
    pub timeout_seconds: u64,
}

impl GradedTask {
    pub fn sha256(&self) -> String {
        let parts = json!([self.row_sha256, self.image, self.timeout_seconds]);
        sha256_hex(parts.to_string().as_bytes())
    }

    /// Whether this is the grading of a row.
    pub fn is_of(&self, row: &Value) -> bool {
        self.row_sha256 == row_sha256(row) || self.row_sha256 == sha256_over(row, |name| name != HIDE)
    }
}

/// Checksum of a complete row, over the columns that grading reads. The problem statement and the hints do not count.
pub fn row_sha256(row: &Value) -> String {
    sha256_over(row, |_| true)
}

/// With only some of the optional columns.
fn sha256_over(row: &Value, counts: impl Fn(&str) -> bool) -> String {
    let columns = COLUMNS.iter().map(|name| row[name].clone());
    let tests = TESTS.iter().map(|name| match &row[name] {
        Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| Value::from(text.as_str())),
        list => list.clone(),
    });
    let optional = OPTIONAL
        .iter()
        .filter(|name| counts(name))
        .map(|name| row[name].clone());
    let all: Vec<Value> = columns
        .chain(tests)
        .chain(optional.filter(|value| !value.is_null()))
        .collect();
    sha256_hex(Value::Array(all).to_string().as_bytes())
}

#[cfg(test)]
mod tests;
