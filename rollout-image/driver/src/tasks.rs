//! Tasks: the rows of a dataset, read once, checked once.
//!
//! A [`reader`] turns bytes from a [`source`] into rows, a [`format`] turns rows into tasks, and a [`selection`]
//! chooses and orders them. An unreadable row is a fault that names file, line and field. A row that cannot be graded,
//! or whose image lacks its [`imports`], is skipped and named in the [`report`]. A row whose script [`installs`]
//! packages is taken and counted. A task whose prompt is [`overlong`] is left out. The whole row goes to the official
//! grader. The policy sees only [`Task::variables`], without the gold patch and the names of the tests, unless the set
//! reveals them.

pub mod format;
pub mod imports;
pub mod installs;
pub mod listing;
pub mod overlong;
pub mod reader;
pub mod report;
pub mod selection;
pub mod source;
pub mod statements;

use self::format::{Candidate, RowKind, Ungradable};
use self::imports::ImageModules;
use self::statements::Statements;
use crate::fault::{DriverError, TerminalFault};
use crate::grader_worker::{GraderWorker, WorkerError};
use grpo_contracts::reason::Reason;
use grpo_contracts::task_sets::{SetReport, SkippedRow};
use grpo_crds::grpo_run::HiddenField;
use grpo_records::GradedTask;
use grpo_records::store::sha256_hex;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The place where a task's agent works and its tests run, by the task's format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskEnvironment {
    /// The folder of the repository inside the sandbox.
    pub directory: String,
    /// Environment of the policy's commands, from the row's `env`.
    pub variables: BTreeMap<String, String>,
    /// A shell script whose environment the policy's commands get, such as that of a conda environment.
    pub activation: Option<String>,
    /// A script that every sandbox of the task runs before anything else; may be empty.
    pub setup: String,
    /// Paths that are then removed from sandboxes in which the policy works.
    pub hidden: Vec<String>,
    /// The shell command that runs the task's tests, for an agent that evaluates its own work.
    pub test_command: Option<String>,
}

/// One task.
#[derive(Clone, Debug)]
pub struct Task {
    /// Position among the selected rows.
    pub index: u32,
    pub instance: String,
    pub image: String,
    /// The commit against which patches are taken.
    pub base_commit: Option<String>,
    /// Where agent and grader work.
    pub environment: TaskEnvironment,
    /// The first command of the grading script that needs a package index.
    pub installs: Option<String>,
    /// The row as it goes to the grader, `image` filled in.
    pub row: Arc<Value>,
    /// The checksum of the row's bytes.
    pub sha256: String,
    /// The checksum of the fields that grading reads.
    pub graded_sha256: String,
    /// Fields that prompts may show although they give the answer away.
    pub revealed: Vec<HiddenField>,
}

impl Task {
    /// The subject of a verdict whose evaluation has this time limit.
    pub fn graded(&self, timeout: Duration) -> GradedTask {
        GradedTask {
            row_sha256: self.graded_sha256.clone(),
            image: self.image.clone(),
            timeout_seconds: timeout.as_secs(),
        }
    }

    /// The variables of prompt templates: the row without the fields that give the answer away, unless the set reveals
    /// them; and `working_dir`, the folder of the repository.
    pub fn variables(&self) -> Map<String, Value> {
        let row = self.row.as_object().into_iter().flatten();
        let is_hidden = |name: &str| {
            let hidden = HiddenField::ALL
                .into_iter()
                .filter(|field| !self.revealed.contains(field));
            hidden.map(HiddenField::name).any(|hidden| hidden == name)
        };
        row.filter(|(name, _)| !is_hidden(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .chain([(
                "working_dir".to_owned(),
                Value::from(self.environment.directory.as_str()),
            )])
            .collect()
    }
}

/// The tasks of a set, and the report on its rows.
#[derive(Clone, Debug)]
pub struct TaskSet {
    pub tasks: Vec<Task>,
    pub report: SetReport,
}

/// Reads the selected tasks of the set `name` from the files of their source. Rows that cannot be graded appear only in
/// the report. Rows after the limit are not read.
pub async fn load(
    name: &str,
    selection: &selection::Selection,
    files: &[PathBuf],
    statements: &Statements,
    worker: &GraderWorker,
    images: &impl ImageModules,
) -> Result<TaskSet, DriverError> {
    let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    let from = names.join(", ");
    let mut choice = selection::Choice::new(selection);
    let (mut report, mut kinds) = (SetReport::new(name, selection.format), BTreeMap::new());
    for row in files.iter().flat_map(|file| reader::rows(file)) {
        let row = row?;
        let place = row.place;
        let named = row.fields.get("instance_id").and_then(Value::as_str).map(str::to_owned);
        let graded = match Candidate::of(selection.format, row) {
            Ok(candidate) if !choice.takes(&candidate, &place)? => continue,
            Ok(mut candidate) => {
                candidate.fill_image(selection.image.as_deref());
                report.overridden += usize::from(statements.apply(&mut candidate));
                let instance = candidate.instance.clone();
                let graded = match complete(candidate, worker).await? {
                    Ok((RowKind::KodCode, task)) => imported(task, images).await?.map(|task| (RowKind::KodCode, task)),
                    other => other,
                };
                (Some(instance), graded)
            }
            Err(ungradable) => (named, Err(ungradable)),
        };
        match graded {
            (_, Ok((kind, task))) => {
                *kinds.entry(kind).or_default() += 1;
                let revealed = selection.revealed.clone();
                choice.keep(Task { revealed, ..task });
            }
            (instance, Err(ungradable)) => report.skipped.push(SkippedRow {
                instance,
                place: place.to_string(),
                cause: ungradable.to_string(),
            }),
        }
        if choice.is_full() {
            break;
        }
    }
    let tasks = choice.tasks(&from)?;
    report.statements = statements.len();
    report::count(&mut report, &kinds, &tasks);
    if tasks.is_empty() {
        let what = match kinds.is_empty() && !report.skipped.is_empty() {
            false => format!("tasks.{name}: {from} has no row that the selection asks for"),
            true => format!(
                "tasks.{name}: {from} has no row that can be graded: {}; complete the rows, or name their format",
                report.skipped_in_words()
            ),
        };
        return Err(TerminalFault::new(Reason::NoTasks, what).into());
    }
    Ok(TaskSet { tasks, report })
}

/// Asks a second time if the worker does not answer: it is another process then.
async fn twice<T>(ask: impl AsyncFn() -> Result<T, WorkerError>) -> Result<T, WorkerError> {
    match ask().await {
        Err(WorkerError::NoAnswer { .. }) => ask().await,
        answer => answer,
    }
}

/// The task of a row, with the fields that the publishers' packages add. Refused if the official grader would refuse
/// it.
async fn complete(
    candidate: Candidate,
    worker: &GraderWorker,
) -> Result<Result<(RowKind, Task), Ungradable>, DriverError> {
    let Candidate {
        kind,
        instance,
        fields,
        sha256,
        ..
    } = candidate;
    let asked = match kind {
        RowKind::Compiled => match format::task(fields, sha256) {
            Ok(task) => {
                let ask = async || worker.eval_script(&instance, &task.row).await;
                twice(ask).await.map(|_| Ok(task))
            }
            Err(ungradable) => return Ok(Err(ungradable)),
        },
        kind => {
            let fields = Value::Object(fields);
            let ask = async || worker.complete(&instance, kind.name(), &fields).await;
            twice(ask).await.map(|fields| format::task(fields, sha256))
        }
    };
    match asked {
        Ok(task) => Ok(task.map(|task| (kind, task))),
        Err(WorkerError::Row { field, what, .. }) => Ok(Err(Ungradable { field, what })),
        // Lack of memory or time passes; a row skipped for it would be missing for good.
        Err(error @ WorkerError::NoAnswer { .. }) => Err(DriverError::Other(error.to_string())),
        Err(error) => Err(TerminalFault::new(Reason::GraderUnavailable, error.to_string()).into()),
    }
}

/// The task, if its image has the modules that its row names.
async fn imported(task: Task, images: &impl ImageModules) -> Result<Result<Task, Ungradable>, DriverError> {
    let named = imports::named(&task.row);
    if named.is_empty() {
        return Ok(Ok(task));
    }
    let contents = images.contents(&task.image).await?;
    let checked = imports::check(&task.image, &named, &contents);
    Ok(checked.map(|()| task))
}

/// One checksum over the rows of all sets in order. It shows whether a run continues with the tasks it began with.
pub fn checksum(sets: &[TaskSet]) -> String {
    let tasks = sets.iter().flat_map(|set| &set.tasks);
    let all: String = tasks.map(|task| task.sha256.as_str()).collect();
    sha256_hex(all.as_bytes())
}

/// The same with the name and the number of rows of each set: a row that moves from one set to the next makes another.
pub fn checksum_of_sets(sets: &[TaskSet]) -> String {
    let mut all = String::new();
    for TaskSet { tasks, report } in sets {
        all.push_str(&format!("{} {}\n", report.set, tasks.len()));
        all.extend(tasks.iter().map(|task| task.sha256.as_str()));
    }
    sha256_hex(all.as_bytes())
}

#[cfg(test)]
mod tests;
