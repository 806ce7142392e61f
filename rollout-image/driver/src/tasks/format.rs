//! From a row to a task, by the format of its dataset.

use super::reader::Row;
use super::{Task, TaskEnvironment};
use crate::fault::TerminalFault;
use grpo_crds::grpo_run::RowFormat;
use grpo_records::paths::is_plain_name;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where SWE-bench images have the repository.
const REPOSITORY: &str = "/testbed";
/// Images of SWE-bench and of the data sets that are built as it is; their tests run in its conda environment.
const SWE_BENCH_IMAGE: &str = "/sweb.eval.";
/// As their evaluation scripts begin.
const SWE_BENCH_ACTIVATION: &str = ". /opt/miniconda3/bin/activate && conda activate testbed";

/// Its position among the selected ones is not known yet.
pub fn task(format: RowFormat, row: Row<'_>) -> Result<Task, TerminalFault> {
    match format {
        // SWE-bench's rows are compiled ones since its version 5.
        RowFormat::Auto | RowFormat::Compiled | RowFormat::SweBench => compiled(row),
        RowFormat::SweGym | RowFormat::R2E | RowFormat::KodCode => {
            let what = format!("rows of {format:?} are not read; compile them, and use format: Compiled");
            Err(row.place.fault("(format)", what))
        }
    }
}

/// A row that names its image, evaluation script, log parser and tests, with the fields of SWE-bench 5.
fn compiled(row: Row<'_>) -> Result<Task, TerminalFault> {
    let instance = text(&row, "instance_id")?;
    if !is_plain_name(&instance) {
        let what = format!("{instance:?} may only hold letters, digits, '.', '_' and '-'");
        return Err(row.place.fault("instance_id", what));
    }
    for field in [
        "problem_statement",
        "repo",
        "version",
        "eval_script",
        "log_parser",
        "eval_type",
    ] {
        text(&row, field)?;
    }
    for field in ["FAIL_TO_PASS", "PASS_TO_PASS"] {
        tests(&row, field)?;
    }
    let image = image(&row, &instance)?;
    let variables = match row.fields.get("env") {
        None | Some(Value::Null) => BTreeMap::new(),
        Some(value) => serde_json::from_value(value.clone())
            .map_err(|_| row.place.fault("env", "not an object of names and texts"))?,
    };
    let activation = activation(&row, &image)?;
    let mut fields = row.fields;
    fields.insert("image".to_owned(), Value::String(image.clone()));
    Ok(Task {
        index: 0,
        image,
        base_commit: fields.get("base_commit").and_then(Value::as_str).map(str::to_owned),
        environment: TaskEnvironment {
            directory: REPOSITORY.to_owned(),
            variables,
            activation,
        },
        sha256: row.sha256,
        row: Arc::new(Value::Object(fields)),
        instance,
    })
}

fn text(row: &Row<'_>, field: &str) -> Result<String, TerminalFault> {
    match row.fields.get(field) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(row.place.fault(field, "not a text")),
        None => Err(row.place.fault(field, "missing")),
    }
}

/// The lists come as lists, or as JSON in a text.
fn tests(row: &Row<'_>, field: &str) -> Result<Vec<String>, TerminalFault> {
    let read = match row.fields.get(field) {
        None => return Err(row.place.fault(field, "missing")),
        Some(Value::String(text)) => serde_json::from_str(text),
        Some(value) => serde_json::from_value(value.clone()),
    };
    read.map_err(|error| row.place.fault(field, format!("not a list of test names: {error}")))
}

/// The row's own script wins; an empty one activates nothing.
fn activation(row: &Row<'_>, image: &str) -> Result<Option<String>, TerminalFault> {
    match row.fields.get("activate") {
        Some(Value::String(script)) => Ok(Some(script.clone()).filter(|script| !script.is_empty())),
        Some(Value::Null) | None => Ok(image.contains(SWE_BENCH_IMAGE).then(|| SWE_BENCH_ACTIVATION.to_owned())),
        Some(_) => Err(row.place.fault("activate", "not a shell script")),
    }
}

/// The row's own image wins; SWE-bench's naming rule is for rows that have none.
fn image(row: &Row<'_>, instance: &str) -> Result<String, TerminalFault> {
    for field in ["image", "image_name", "docker_image"] {
        match row.fields.get(field) {
            Some(Value::String(image)) if !image.is_empty() => return Ok(image.clone()),
            None | Some(Value::Null) => {}
            Some(_) => return Err(row.place.fault(field, "not the name of an image")),
        }
    }
    let id = instance.replace("__", "_1776_").to_lowercase();
    Ok(format!("docker.io/swebench/sweb.eval.x86_64.{id}:latest"))
}
