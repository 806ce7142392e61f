//! Turns a row into a task, by the format of its dataset.
//!
//! A complete row says how it is graded. Rows of other formats are completed by the grader's worker, which has the
//! publishers' packages. A row that lacks a field is skipped; the run does not fail.

use super::reader::Row;
use super::{Task, TaskEnvironment, installs};
use grpo_crds::grpo_run::RowFormat;
use grpo_records::graded;
use grpo_records::paths::is_plain_name;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

type Fields = Map<String, Value>;

/// The folder of the repository in SWE-bench images, and in those of rows without `workdir`.
const REPOSITORY: &str = "/testbed";
/// In the names of images of SWE-bench and of datasets built like it; their tests run in its conda environment.
const SWE_BENCH_IMAGE: &str = "/sweb.eval.";
/// The first commands of their evaluation scripts.
const SWE_BENCH_ACTIVATION: &str = ". /opt/miniconda3/bin/activate && conda activate testbed";
/// Columns that say how a row is graded.
const GRADED_BY: [&str; 3] = ["eval_script", "log_parser", "eval_type"];
/// Columns with lists of tests.
const TESTS: [&str; 2] = ["FAIL_TO_PASS", "PASS_TO_PASS"];
/// Columns with an image; the first that is given wins.
const IMAGE: [&str; 3] = ["image", "image_name", "docker_image"];

/// Why a row cannot be graded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("field {field}: {what}")]
pub struct Ungradable {
    pub field: String,
    pub what: String,
}

impl Ungradable {
    pub fn new(field: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            what: what.into(),
        }
    }
}

/// The kind of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RowKind {
    /// With image, evaluation script, log parser and lists of tests.
    Compiled,
    /// The columns of SWE-bench before its version 5.
    SweBench,
    SweGym,
    R2E,
    SweSmith,
    SweRebench,
    SweRebenchV2,
    SweBenchLive,
    /// Files of a small program and its tests.
    KodCode,
}

impl RowKind {
    /// The name for the worker and for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Compiled => "Compiled",
            Self::SweBench => "SweBench",
            Self::SweGym => "SweGym",
            Self::R2E => "R2E",
            Self::SweSmith => "SweSmith",
            Self::SweRebench => "SweRebench",
            Self::SweRebenchV2 => "SweRebenchV2",
            Self::SweBenchLive => "SweBenchLive",
            Self::KodCode => "KodCode",
        }
    }

    /// The column with the repository, for selections.
    fn repo(self) -> &'static str {
        match self {
            Self::R2E => "repo_name",
            Self::Compiled
            | Self::SweBench
            | Self::SweGym
            | Self::SweSmith
            | Self::SweRebench
            | Self::SweRebenchV2
            | Self::SweBenchLive
            | Self::KodCode => "repo",
        }
    }

    /// The instance of a row without `instance_id`.
    fn instance(self, fields: &Fields) -> Result<String, Ungradable> {
        match self {
            Self::R2E => Ok(format!(
                "{}__{}",
                text(fields, "repo_name")?,
                text(fields, "commit_hash")?
            )),
            Self::KodCode => kod_code_name(fields),
            Self::Compiled
            | Self::SweBench
            | Self::SweGym
            | Self::SweSmith
            | Self::SweRebench
            | Self::SweRebenchV2
            | Self::SweBenchLive => Err(Ungradable::new("instance_id", "missing")),
        }
    }
}

/// A row before it is completed, as selections see it.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub kind: RowKind,
    pub instance: String,
    pub repo: String,
    pub fields: Fields,
    /// The checksum of the row's bytes.
    pub sha256: String,
}

impl Candidate {
    /// Finds the kind and the instance of a row.
    pub fn of(format: RowFormat, row: Row<'_>) -> Result<Self, Ungradable> {
        let (mut fields, source) = unwrapped(row.fields)?;
        let kind = kind(format, &fields, source.as_deref())?;
        if !has(&fields, "instance_id") {
            fields.insert("instance_id".to_owned(), Value::String(kind.instance(&fields)?));
        }
        let instance = text(&fields, "instance_id")?;
        if !is_plain_name(&instance) {
            let what = format!("{instance:?} may only hold letters, digits, '.', '_' and '-'");
            return Err(Ungradable::new("instance_id", what));
        }
        let repo = fields.get(kind.repo()).and_then(Value::as_str).unwrap_or_default();
        Ok(Self {
            kind,
            instance,
            repo: repo.to_owned(),
            fields,
            sha256: row.sha256,
        })
    }

    /// Sets the image of a row that names none.
    pub fn fill_image(&mut self, image: Option<&str>) {
        if let (Some(image), false) = (image, IMAGE.iter().any(|name| has(&self.fields, name))) {
            self.fields.insert(IMAGE[0].to_owned(), image.into());
        }
    }
}

/// The instance, from `task_id` (a text or a number) or `task_name`. Characters that an instance cannot have become
/// dashes.
fn kod_code_name(fields: &Fields) -> Result<String, Ungradable> {
    let id = match fields.get("task_id") {
        Some(Value::String(id)) if !id.is_empty() => Some(id.clone()),
        Some(Value::Number(id)) => Some(id.to_string()),
        _ => None,
    };
    let name = || Some(extra_info(fields)?.get("task_name")?.as_str()?.to_owned());
    let id = id.or_else(name).filter(|id| !id.is_empty());
    let id = id.ok_or_else(|| Ungradable::new("task_id", "missing, and extra_info has no task_name"))?;
    let plain = |c: char| match c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') {
        true => c,
        false => '-',
    };
    Ok(id.chars().map(plain).collect())
}

/// The field `extra_info`, an object or JSON in a text.
fn extra_info(fields: &Fields) -> Option<Fields> {
    match fields.get("extra_info")? {
        Value::Object(info) => Some(info.clone()),
        Value::String(text) => serde_json::from_str(text).ok(),
        _ => None,
    }
}

/// The inner row of a row of slime, `{text, input or prompt, metadata: {instance, data_source}}`, and its source. Any
/// other row stays as is.
fn unwrapped(mut outer: Fields) -> Result<(Fields, Option<String>), Ungradable> {
    if has(&outer, "instance_id") {
        return Ok((outer, None));
    }
    let object = |value: Option<Value>, field: &str| match value {
        Some(Value::Object(object)) => Ok(Some(object)),
        Some(Value::String(text)) => serde_json::from_str(&text)
            .map(Some)
            .map_err(|error| Ungradable::new(field, format!("not a JSON object: {error}"))),
        None | Some(Value::Null) => Ok(None),
        Some(_) => Err(Ungradable::new(field, "not an object")),
    };
    let is_wrapped = ["text", "input", "prompt"].into_iter().find(|field| has(&outer, field));
    let Some(statement) = is_wrapped.filter(|_| has(&outer, "metadata") || has(&outer, "instance")) else {
        return Ok((outer, None));
    };
    let mut metadata = object(outer.remove("metadata"), "metadata")?.unwrap_or_default();
    let instance = metadata.remove("instance").or_else(|| outer.remove("instance"));
    let Some(mut inner) = object(instance, "metadata.instance")? else {
        return Err(Ungradable::new("metadata.instance", "missing"));
    };
    if let (false, Some(Value::String(text))) = (has(&inner, "problem_statement"), outer.get(statement)) {
        inner.insert("problem_statement".to_owned(), Value::String(text.clone()));
    }
    let source = metadata.get("data_source").or(outer.get("data_source"));
    let source = source.and_then(Value::as_str).map(str::to_lowercase);
    Ok((inner, source))
}

fn has(fields: &Fields, name: &str) -> bool {
    !matches!(fields.get(name), None | Some(Value::Null)) && fields[name] != ""
}

/// `source`: the name of the dataset, if the row has it.
fn kind(format: RowFormat, fields: &Fields, source: Option<&str>) -> Result<RowKind, Ungradable> {
    let says_how = GRADED_BY.iter().any(|name| has(fields, name));
    Ok(match format {
        RowFormat::Auto => detected(fields, source),
        RowFormat::Compiled => RowKind::Compiled,
        RowFormat::SweBench if says_how => RowKind::Compiled,
        RowFormat::SweBench => RowKind::SweBench,
        RowFormat::SweGym => RowKind::SweGym,
        RowFormat::R2E => RowKind::R2E,
        RowFormat::SweSmith => RowKind::SweSmith,
        RowFormat::SweRebench => RowKind::SweRebench,
        RowFormat::SweRebenchV2 => RowKind::SweRebenchV2,
        RowFormat::SweBenchLive => RowKind::SweBenchLive,
        RowFormat::KodCode => RowKind::KodCode,
    })
}

fn detected(fields: &Fields, source: Option<&str>) -> RowKind {
    let has = |name| has(fields, name);
    let from = |name: &str| source.is_some_and(|source| source.contains(name));
    let is_of_smith = |field| {
        fields
            .get(field)
            .and_then(Value::as_str)
            .is_some_and(|name| name.contains("swesmith"))
    };
    // Its parser is no parser of swebench.
    if has("test_cmds") && !has("eval_script") {
        return RowKind::SweBenchLive;
    }
    if has("log_parser") || has("eval_type") {
        return RowKind::Compiled;
    }
    if has("expected_output_json") {
        return RowKind::R2E;
    }
    if has("install_config") {
        // Version 1 is of Python alone, so it has no such column, and another one for the image.
        return match has("language") || has("image_name") && !has("docker_image") {
            true => RowKind::SweRebenchV2,
            false => RowKind::SweRebench,
        };
    }
    if is_of_smith("image_name") || is_of_smith("repo") {
        return RowKind::SweSmith;
    }
    if !has("instance_id") && extra_info(fields).is_some_and(|info| lists_files(&info)) {
        return RowKind::KodCode;
    }
    // The only dataset with scripts but no parser.
    if from("swe-gym") || has("eval_script") && has("test_patch") && !has("image") {
        return RowKind::SweGym;
    }
    match has("test_patch") && has("version") && !has("eval_script") {
        true => RowKind::SweBench,
        false => RowKind::Compiled,
    }
}

fn lists_files(info: &Fields) -> bool {
    let files = info.get("files").and_then(Value::as_array);
    files.is_some_and(|files| !files.is_empty() && files.iter().all(|file| file.get("path").is_some()))
}

/// The task of a complete row. Its position among the selected rows is not known yet.
pub fn task(mut fields: Fields, sha256: String) -> Result<Task, Ungradable> {
    let instance = text(&fields, "instance_id")?;
    for field in ["problem_statement", "repo", "version"].into_iter().chain(GRADED_BY) {
        text(&fields, field)?;
    }
    let named = tests(&fields, TESTS[0])?.len() + tests(&fields, TESTS[1])?.len();
    if named == 0 {
        // The official grader counts an empty list as passed.
        let what = format!(
            "neither it nor {} names a test, so every patch would resolve the task",
            TESTS[1]
        );
        return Err(Ungradable::new(TESTS[0], what));
    }
    let image = image(&fields, &instance)?;
    let environment = TaskEnvironment {
        directory: directory(&fields)?,
        variables: read::<BTreeMap<String, String>>(&fields, "env", "an object of names and texts")?,
        activation: activation(&fields, &image)?,
        setup: read::<String>(&fields, "setup", "a shell script")?,
        hidden: read::<Vec<String>>(&fields, "hide", "a list of paths")?,
        test_command: read::<Option<String>>(&fields, "test_command", "a shell command")?.filter(|it| !it.is_empty()),
    };
    fields.insert("image".to_owned(), Value::String(image.clone()));
    let installs = installs::command(&text(&fields, "eval_script")?);
    let row = Value::Object(fields);
    Ok(Task {
        index: 0,
        revealed: Vec::new(),
        image,
        base_commit: row["base_commit"].as_str().map(str::to_owned),
        environment,
        installs,
        sha256,
        graded_sha256: graded::row_sha256(&row),
        row: Arc::new(row),
        instance,
    })
}

/// The row's own folder wins. Prompts and scripts have it in commands, so only plain characters are taken.
fn directory(fields: &Fields) -> Result<String, Ungradable> {
    let Some(named) = read::<Option<String>>(fields, "workdir", "a path")?.filter(|named| !named.is_empty()) else {
        return Ok(REPOSITORY.to_owned());
    };
    let parts = named.strip_prefix('/').map(|path| path.split('/'));
    match parts.is_some_and(|mut parts| parts.all(is_plain_name)) {
        true => Ok(named),
        false => {
            let what = format!("{named:?} is not an absolute path of letters, digits, '.', '_' and '-'");
            Err(Ungradable::new("workdir", what))
        }
    }
}

fn text(fields: &Fields, field: &str) -> Result<String, Ungradable> {
    match fields.get(field) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Null) | None => Err(Ungradable::new(field, "missing")),
        Some(_) => Err(Ungradable::new(field, "not a text")),
    }
}

/// Reads an optional field.
fn read<T: serde::de::DeserializeOwned + Default>(fields: &Fields, field: &str, wanted: &str) -> Result<T, Ungradable> {
    match fields.get(field) {
        None | Some(Value::Null) => Ok(T::default()),
        Some(value) => {
            serde_json::from_value(value.clone()).map_err(|_| Ungradable::new(field, format!("not {wanted}")))
        }
    }
}

/// A list of tests, given as a list or as JSON in a text.
fn tests(fields: &Fields, field: &str) -> Result<Vec<String>, Ungradable> {
    let read = match fields.get(field) {
        None | Some(Value::Null) => return Err(Ungradable::new(field, "missing")),
        Some(Value::String(text)) => serde_json::from_str(text),
        Some(value) => serde_json::from_value(value.clone()),
    };
    read.map_err(|error| Ungradable::new(field, format!("not a list of test names: {error}")))
}

/// The row's own script wins; an empty one activates nothing.
fn activation(fields: &Fields, image: &str) -> Result<Option<String>, Ungradable> {
    match fields.get("activate") {
        Some(Value::String(script)) => Ok(Some(script.clone()).filter(|script| !script.is_empty())),
        Some(Value::Null) | None => Ok(image.contains(SWE_BENCH_IMAGE).then(|| SWE_BENCH_ACTIVATION.to_owned())),
        Some(_) => Err(Ungradable::new("activate", "not a shell script")),
    }
}

/// The row's own image wins; rows without one follow SWE-bench's naming rule.
fn image(fields: &Fields, instance: &str) -> Result<String, Ungradable> {
    for field in IMAGE {
        match fields.get(field) {
            Some(Value::String(image)) if !image.is_empty() => return Ok(image.clone()),
            None | Some(Value::Null | Value::String(_)) => {}
            Some(_) => return Err(Ungradable::new(field, "not the name of an image")),
        }
    }
    let id = instance.replace("__", "_1776_").to_lowercase();
    Ok(format!("docker.io/swebench/sweb.eval.x86_64.{id}:latest"))
}

#[cfg(test)]
mod tests;
