//! Tasks: the rows of a dataset, read once, checked once.
//!
//! A dataset is a JSONL file of SWE-bench 5 rows. A row that cannot be used is a fault that names file, line and field;
//! nothing is skipped in silence. The whole row goes to the official grader; the policy sees only [`Task::variables`],
//! never the gold patch or the names of the tests.

use crate::fault::TerminalFault;
use grpo_crds::grpo_run::TaskOrder;
use grpo_records::paths::is_plain_name;
use grpo_records::store::sha256_hex;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The longest row that is read, in bytes.
const MAX_ROW: usize = 16 << 20;

/// Fields of a row that no prompt may show.
const KEPT_FROM_PROMPTS: [&str; 5] = ["patch", "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS", "eval_script"];

/// One task.
#[derive(Clone, Debug)]
pub struct Task {
    /// Position among the selected rows.
    pub index: u32,
    pub instance: String,
    pub image: String,
    /// The commit patches are taken against.
    pub base_commit: Option<String>,
    /// Environment of the policy's commands, from the row's `env`.
    pub env: BTreeMap<String, String>,
    /// The row as it goes to the grader, `image` filled in.
    pub row: Arc<Value>,
    /// Of the row's bytes.
    pub sha256: String,
}

/// Which rows of which file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    pub file: PathBuf,
    /// Only these, in the order of the file; empty means all.
    pub instances: Vec<String>,
    /// Only rows of this repository.
    pub repo: Option<String>,
    pub limit: Option<usize>,
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

/// Reads the selected rows.
pub fn load(selection: &Selection) -> Result<Vec<Task>, TerminalFault> {
    let file = &selection.file;
    let text = std::fs::read_to_string(file).map_err(|error| {
        TerminalFault::new(
            "DatasetUnreadable",
            format!(
                "reading the dataset {}: {error}; does its volume hold that path?",
                file.display()
            ),
        )
    })?;
    let wanted: HashSet<&str> = selection.instances.iter().map(String::as_str).collect();
    let mut seen = HashSet::new();
    let mut tasks = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let task = read_row(file, number + 1, line, tasks.len())?;
        if !seen.insert(task.instance.clone()) {
            return Err(bad(
                file,
                number + 1,
                "instance_id",
                format!("{} is there twice", task.instance),
            ));
        }
        let of_repo = selection.repo.as_deref().is_none_or(|repo| task.row["repo"] == repo);
        if of_repo && (wanted.is_empty() || wanted.contains(task.instance.as_str())) {
            tasks.push(task);
        }
        if selection.limit.is_some_and(|limit| tasks.len() == limit) {
            break;
        }
    }
    let missing: Vec<&str> = match selection.limit {
        Some(_) => Vec::new(),
        None => wanted.into_iter().filter(|id| !seen.contains(*id)).collect(),
    };
    if !missing.is_empty() {
        return Err(TerminalFault::new(
            "TaskNotFound",
            format!("{} has no row for {}", file.display(), missing.join(", ")),
        ));
    }
    if tasks.is_empty() {
        return Err(TerminalFault::new(
            "NoTasks",
            format!("{} has no row that the selection asks for", file.display()),
        ));
    }
    Ok(tasks)
}

/// One checksum over the rows in order: tells whether a run goes on with the tasks it began with.
pub fn checksum(tasks: &[Task]) -> String {
    let all: String = tasks.iter().map(|task| task.sha256.as_str()).collect();
    sha256_hex(all.as_bytes())
}

/// A fault that names file, line and field.
pub fn bad(file: &Path, line: usize, field: &str, what: impl std::fmt::Display) -> TerminalFault {
    TerminalFault::new(
        "TaskRowInvalid",
        format!("{} line {line}, field {field}: {what}", file.display()),
    )
}

fn read_row(file: &Path, line: usize, text: &str, index: usize) -> Result<Task, TerminalFault> {
    if text.len() > MAX_ROW {
        return Err(bad(file, line, "(row)", format!("longer than {MAX_ROW} bytes")));
    }
    let mut row: Map<String, Value> =
        serde_json::from_str(text).map_err(|error| bad(file, line, "(row)", format!("not a JSON object: {error}")))?;
    let instance = text_field(file, line, &row, "instance_id")?;
    if !is_plain_name(&instance) {
        let what = format!("{instance:?} may only hold letters, digits, '.', '_' and '-'");
        return Err(bad(file, line, "instance_id", what));
    }
    for field in [
        "problem_statement",
        "repo",
        "version",
        "eval_script",
        "log_parser",
        "eval_type",
    ] {
        text_field(file, line, &row, field)?;
    }
    for field in ["FAIL_TO_PASS", "PASS_TO_PASS"] {
        test_list(file, line, &row, field)?;
    }
    let image = image_of(file, line, &row, &instance)?;
    row.insert("image".to_owned(), Value::String(image.clone()));
    let env = match row.get("env") {
        None | Some(Value::Null) => BTreeMap::new(),
        Some(value) => serde_json::from_value(value.clone())
            .map_err(|_| bad(file, line, "env", "not an object of names and texts"))?,
    };
    Ok(Task {
        index: index as u32,
        image,
        base_commit: row.get("base_commit").and_then(Value::as_str).map(str::to_owned),
        env,
        sha256: sha256_hex(text.as_bytes()),
        row: Arc::new(Value::Object(row)),
        instance,
    })
}

fn text_field(file: &Path, line: usize, row: &Map<String, Value>, field: &str) -> Result<String, TerminalFault> {
    match row.get(field) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(bad(file, line, field, "not a text")),
        None => Err(bad(file, line, field, "missing")),
    }
}

/// The lists come as lists, or as JSON in a text.
fn test_list(file: &Path, line: usize, row: &Map<String, Value>, field: &str) -> Result<Vec<String>, TerminalFault> {
    let read = match row.get(field) {
        None => return Err(bad(file, line, field, "missing")),
        Some(Value::String(text)) => serde_json::from_str(text),
        Some(value) => serde_json::from_value(value.clone()),
    };
    read.map_err(|error| bad(file, line, field, format!("not a list of test names: {error}")))
}

/// The row's own image wins; SWE-bench's naming rule is for rows that have none.
fn image_of(file: &Path, line: usize, row: &Map<String, Value>, instance: &str) -> Result<String, TerminalFault> {
    for field in ["image", "image_name", "docker_image"] {
        match row.get(field) {
            Some(Value::String(image)) if !image.is_empty() => return Ok(image.clone()),
            None | Some(Value::Null) => {}
            Some(_) => return Err(bad(file, line, field, "not the name of an image")),
        }
    }
    let id = instance.replace("__", "_1776_").to_lowercase();
    Ok(format!("docker.io/swebench/sweb.eval.x86_64.{id}:latest"))
}

/// The positions of the tasks of iteration `k` (from 1): the next `prompts` of an endless sequence of passes over the
/// dataset, each pass shuffled by itself. A pure function, so a restarted driver takes the same ones.
pub fn for_iteration(order: TaskOrder, seed: u64, tasks: usize, prompts: usize, k: u32) -> Vec<u32> {
    let first = (k as usize - 1) * prompts;
    let mut pass: Option<(usize, Vec<u32>)> = None;
    (first..first + prompts)
        .map(|at| {
            let (number, inside) = (at / tasks, at % tasks);
            if pass.as_ref().is_none_or(|(of, _)| *of != number) {
                pass = Some((number, order_of_pass(order, seed, tasks, number)));
            }
            pass.as_ref().map_or(0, |(_, positions)| positions[inside])
        })
        .collect()
}

fn order_of_pass(order: TaskOrder, seed: u64, tasks: usize, pass: usize) -> Vec<u32> {
    let mut positions: Vec<u32> = (0..tasks as u32).collect();
    if order == TaskOrder::Shuffled {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[8..16].copy_from_slice(&(pass as u64).to_le_bytes());
        bytes[16..].copy_from_slice(b"order of a pass.");
        positions.shuffle(&mut StdRng::from_seed(bytes));
    }
    positions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str) -> Value {
        serde_json::json!({
            "instance_id": id, "repo": "r/r", "version": "1", "problem_statement": "fix", "patch": "gold",
            "FAIL_TO_PASS": "[\"a\"]", "PASS_TO_PASS": ["b"], "eval_script": "x", "log_parser": "p", "eval_type": "pass_and_fail",
            "image": "i:1", "base_commit": "abc", "env": {"F": "a.py"},
        })
    }

    fn file(rows: &[String]) -> (tempfile::TempDir, Selection) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("train.jsonl");
        std::fs::write(&path, rows.join("\n")).unwrap();
        let selection = Selection {
            file: path,
            ..Selection::default()
        };
        (dir, selection)
    }

    #[test]
    fn a_row_becomes_a_task_and_the_policy_never_sees_the_gold_patch() {
        let (_dir, selection) = file(&[row("a__b-1").to_string()]);
        let tasks = load(&selection).unwrap();
        assert_eq!((tasks[0].instance.as_str(), tasks[0].image.as_str()), ("a__b-1", "i:1"));
        assert_eq!(tasks[0].env["F"], "a.py");
        assert!(!format!("{:?}", tasks[0].variables()).contains("gold"));
    }

    #[test]
    fn an_unreadable_row_names_file_line_and_field() {
        let mut second = row("b");
        second["FAIL_TO_PASS"] = Value::String("not json".into());
        let (_dir, selection) = file(&[row("a").to_string(), second.to_string()]);
        let fault = load(&selection).unwrap_err();
        assert_eq!(fault.reason, "TaskRowInvalid");
        assert!(
            fault.message.contains("train.jsonl line 2, field FAIL_TO_PASS"),
            "{fault}"
        );

        let (_dir, selection) = file(&["{\"instance_id\":".to_owned()]);
        assert!(load(&selection).unwrap_err().message.contains("line 1, field (row)"));
        let mut no_parser = row("c");
        no_parser.as_object_mut().unwrap().remove("log_parser");
        let (_dir, selection) = file(&[no_parser.to_string()]);
        assert!(
            load(&selection)
                .unwrap_err()
                .message
                .contains("line 1, field log_parser: missing")
        );
    }

    #[test]
    fn an_instance_that_would_climb_out_of_the_store_is_refused() {
        let (_dir, selection) = file(&[row("../../etc").to_string()]);
        assert!(load(&selection).unwrap_err().message.contains("field instance_id"));
    }

    #[test]
    fn a_row_without_an_image_gets_the_swebench_name() {
        let mut one = row("django__django-11099");
        one.as_object_mut().unwrap().remove("image");
        let (_dir, selection) = file(&[one.to_string()]);
        let task = &load(&selection).unwrap()[0];
        assert_eq!(
            task.image,
            "docker.io/swebench/sweb.eval.x86_64.django_1776_django-11099:latest"
        );
        assert_eq!(task.row["image"], Value::String(task.image.clone()));
    }

    #[test]
    fn a_selection_by_name_misses_nobody_silently() {
        let (_dir, mut selection) = file(&[row("a").to_string(), row("b").to_string()]);
        selection.instances = vec!["b".into()];
        assert_eq!(load(&selection).unwrap()[0].index, 0);
        selection.instances.push("z".into());
        assert_eq!(load(&selection).unwrap_err().reason, "TaskNotFound");
    }

    #[test]
    fn every_pass_takes_every_task_once_and_iterations_follow_each_other() {
        let taken: Vec<u32> = (1..=5)
            .flat_map(|k| for_iteration(TaskOrder::Shuffled, 7, 10, 4, k))
            .collect();
        let (mut first, mut second) = (taken[..10].to_vec(), taken[10..].to_vec());
        assert_ne!(first, second);
        first.sort_unstable();
        second.sort_unstable();
        assert_eq!(first, (0..10).collect::<Vec<u32>>());
        assert_eq!(first, second);
        assert_eq!(for_iteration(TaskOrder::InOrder, 7, 3, 2, 2), [2, 0]);
    }
}
