//! Long-lived child processes of the official grader: one JSON line in, one JSON line out.
//!
//! A worker that hangs, dies or answers something else is killed and replaced; the caller learns that nothing was
//! judged. There are several, because one log may occupy a worker for a minute, and other gradings do not wait for it.

use grpo_verify::grader::GraderCommand;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::Semaphore;

/// How long judging one log may take. Ends a parser that a crafted log sends into endless backtracking.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest answer, in bytes: a row with its evaluation script, or the tests of a log.
const ANSWER_BYTES: u64 = 64 << 20;
/// Bounds of the number of workers.
const WORKERS: RangeInclusive<usize> = 2..=4;
/// How long Python may take to start.
const START_PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    #[error(
        "starting the grader {worker} with packages from {site}: {what}; is rollout-image/grader/requirements.txt installed there?"
    )]
    Start {
        worker: PathBuf,
        site: PathBuf,
        what: String,
    },
    /// The row is wrong, not the log.
    #[error("the grader refuses the row of {instance}, field {field}: {what}")]
    Row {
        instance: String,
        field: String,
        what: String,
    },
    #[error("the grader gave no answer about {instance}: {what}")]
    NoAnswer { instance: String, what: String },
}

/// The official package's report on a log.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub resolved: bool,
    /// `Judged`, or `NoReport` if the log shows no result.
    pub status: String,
    pub fail_to_pass: grpo_records::episode::TestCounts,
    pub pass_to_pass: grpo_records::episode::TestCounts,
    #[serde(default)]
    pub infra_failure: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    id: Option<u64>,
    ok: bool,
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    field: Option<String>,
    #[serde(flatten)]
    rest: Value,
}

/// The workers and the command that starts one. Each takes one request at a time.
pub struct GraderWorker {
    command: GraderCommand,
    patience: Duration,
    /// One permit for each worker.
    places: Semaphore,
    /// Idle workers. A new one starts only if none is left.
    idle: Mutex<Vec<Running>>,
}

struct Running {
    _child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    next: u64,
}

/// One worker per processor, within [`WORKERS`]: judging is computation, and each worker holds some hundred MiB.
fn workers() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    processors.clamp(*WORKERS.start(), *WORKERS.end())
}

impl GraderWorker {
    /// `worker` is worker.py, `site` the folder of its packages.
    pub fn new(worker: impl Into<PathBuf>, site: impl Into<PathBuf>) -> Self {
        Self {
            command: GraderCommand {
                worker: worker.into(),
                site: site.into(),
            },
            patience: PATIENCE,
            places: Semaphore::new(workers()),
            idle: Mutex::default(),
        }
    }

    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The evaluation script of a row, completed by the official package; refuses a row that the package cannot grade.
    pub async fn eval_script(&self, instance: &str, row: &Value) -> Result<String, WorkerError> {
        let answer = self.ask(instance, json!({"op": "prepare", "row": row})).await?;
        match answer["evalScript"].as_str() {
            Some(script) => Ok(script.to_owned()),
            None => Err(no_answer(instance, "an answer without evalScript")),
        }
    }

    /// Completes a row of another format with all fields that grading needs; refuses a row that cannot be completed.
    pub async fn complete(&self, instance: &str, format: &str, row: &Value) -> Result<Map<String, Value>, WorkerError> {
        let request = json!({"op": "complete", "format": format, "row": row});
        match self.ask(instance, request).await?["row"].take() {
            Value::Object(row) => Ok(row),
            other => Err(no_answer(instance, format!("{other} in the place of a row"))),
        }
    }

    /// The verdict on a log.
    pub async fn judge(&self, instance: &str, row: &Value, patch: &str, log: &Path) -> Result<Report, WorkerError> {
        let request = json!({"op": "grade", "row": row, "patch": patch, "log": log});
        let answer = self.ask(instance, request).await?;
        serde_json::from_value(answer).map_err(|error| no_answer(instance, error))
    }

    async fn ask(&self, instance: &str, request: Value) -> Result<Value, WorkerError> {
        // The semaphore is never closed.
        let _place = self.places.acquire().await;
        let idle = self.idle().pop();
        let mut running = match idle {
            Some(running) => running,
            None => self.start().await?,
        };
        let asked = tokio::time::timeout(self.patience, running.ask(request)).await;
        let answer = match asked {
            Err(_) => return Err(no_answer(instance, format!("nothing within {:?}", self.patience))),
            Ok(Err(error)) => return Err(no_answer(instance, error)),
            Ok(Ok(answer)) => answer,
        };
        // Only a worker that answered is reused; any other was dropped above, which kills it.
        self.idle().push(running);
        match answer {
            Answer { ok: true, rest, .. } => Ok(rest),
            Answer {
                field: Some(field),
                error,
                ..
            } => Err(WorkerError::Row {
                instance: instance.to_owned(),
                field,
                what: error.unwrap_or_default(),
            }),
            Answer { error, .. } => Err(no_answer(instance, error.unwrap_or_default())),
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Running>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn start(&self) -> Result<Running, WorkerError> {
        let cannot = |what: String| WorkerError::Start {
            worker: self.command.worker.clone(),
            site: self.command.site.clone(),
            what,
        };
        let mut child = Command::from(self.command.process())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| cannot(error.to_string()))?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(cannot("no pipes".to_owned()));
        };
        let mut stdout = BufReader::new(stdout);
        match tokio::time::timeout(START_PATIENCE, next_line(&mut stdout, ANSWER_BYTES)).await {
            Ok(Ok(Some(line))) if line.contains("\"ready\"") => Ok(Running {
                _child: child,
                stdin,
                stdout,
                next: 0,
            }),
            Ok(Ok(line)) => Err(cannot(format!("it said {line:?} and not that it is ready"))),
            Ok(Err(error)) => Err(cannot(error.to_string())),
            Err(_) => Err(cannot(format!("not ready within {START_PATIENCE:?}"))),
        }
    }
}

impl Running {
    async fn ask(&mut self, mut request: Value) -> std::io::Result<Answer> {
        self.next += 1;
        request["id"] = self.next.into();
        let mut line = request.to_string();
        line.push('\n');
        self.stdin.write_all(line.as_bytes()).await?;
        self.stdin.flush().await?;
        let Some(line) = next_line(&mut self.stdout, ANSWER_BYTES).await? else {
            return Err(std::io::Error::other("it ended"));
        };
        let answer: Answer = serde_json::from_str(&line)?;
        if answer.id == Some(self.next) {
            Ok(answer)
        } else {
            Err(std::io::Error::other(format!(
                "an answer to {:?}, not to {}",
                answer.id, self.next
            )))
        }
    }
}

/// The next line; `None` at the end. A line that is longer than `longest` is an error before it is read in full.
async fn next_line(from: &mut (impl AsyncBufRead + Unpin), longest: u64) -> std::io::Result<Option<String>> {
    let mut line = Vec::new();
    from.take(longest).read_until(b'\n', &mut line).await?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.len() as u64 == longest && line.last() != Some(&b'\n') {
        return Err(std::io::Error::other(format!("an answer of more than {longest} bytes")));
    }
    let line = String::from_utf8(line).map_err(std::io::Error::other)?;
    Ok(Some(line))
}

fn no_answer(instance: &str, what: impl std::fmt::Display) -> WorkerError {
    WorkerError::NoAnswer {
        instance: instance.to_owned(),
        what: what.to_string(),
    }
}

#[cfg(test)]
mod tests;
