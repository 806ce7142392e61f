//! Turns a patch into a verdict: a fresh sandbox, the task's evaluation script, the official grader on its log.
//!
//! The agent's sandbox is released before a grader is leased. If a grader is lost, the driver leases another one after
//! a pause, within its patience: the patch is durable, and only the grading repeats. A patch with a doubtful result is
//! graded once more; then the empty patch shows whether task or patch is at fault ([`crate::outcome`] decides, this
//! module gathers the facts). Within a run a byte-identical patch of the same task reuses the verdict that was recorded
//! first, and names its source. Two tasks are the same if all that grading reads is equal ([`grpo_records::graded`]),
//! not if their names are.

mod control;
mod graded;
mod known;
mod losses;
mod packages;
mod trial;
mod tried;

pub use self::graded::Graded;
pub use self::trial::Tested;

use self::control::{Controlled, NoControl};
use self::known::{Known, Shared, entry};
use self::losses::Losses;
use self::tried::{Evaluated, Stage, Tried, lost, record_of, without_log};
use crate::fault::{DriverError, TerminalFault};
use crate::grader_worker::{GraderWorker, WorkerError};
use crate::outcome::{self, Attempt, Control, Next};
use crate::patch::hidden::Hidden;
use crate::patch::{self, test_setup};
use crate::retry::{Budget, Pauses};
use crate::sandbox::{Blame, Gateway, Sandbox, SandboxError};
use crate::setup::{self, WorksNext};
use crate::tasks::Task;
use bytes::Bytes;
use grpo_contracts::reason::Reason;
use grpo_records::store::sha256_hex;
use grpo_records::{EpisodeEnd, EpisodeMeta, GradeRecord, GradedTask, Outcome, VoidReason};
use grpo_sandbox_protocol::{ExecRequest, Priority};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, OnceCell};

/// Longest kept log, in bytes; a longer one loses its middle.
const MAX_LOG: u64 = 16 << 20;
/// How long applying a patch may take, in seconds.
const APPLY_TIMEOUT: u64 = 120;

/// Grades the patches of one run.
pub struct Grader {
    gateway: Gateway,
    worker: GraderWorker,
    timeout: Duration,
    /// `request`: for one lease. `total`: for one patch while graders are lost.
    patience: Budget,
    pauses: Pauses,
    /// Keeps lease ids apart from an earlier driver's: a grader is always fresh.
    epoch: String,
    scratch: tempfile::TempDir,
    /// Key: the part of a row that grading reads.
    scripts: Shared<OnceCell<String>>,
    /// Key: the graded task and the patch.
    verdicts: Shared<Mutex<Option<Known>>>,
    /// Key: the graded task.
    controls: Shared<Mutex<Option<Controlled>>>,
    controls_asked: AtomicU64,
}

impl Grader {
    pub fn new(
        gateway: Gateway,
        worker: GraderWorker,
        timeout: Duration,
        patience: Budget,
        pauses: Pauses,
        epoch: impl Into<String>,
    ) -> Result<Self, DriverError> {
        Ok(Self {
            gateway,
            worker,
            timeout,
            patience,
            pauses,
            epoch: epoch.into(),
            scratch: tempfile::tempdir().map_err(DriverError::io("making a folder for logs"))?,
            scripts: Mutex::default(),
            verdicts: Mutex::default(),
            controls: Mutex::default(),
            controls_asked: AtomicU64::default(),
        })
    }

    /// Completes the task's evaluation script with the official package; a row that the package cannot grade is a
    /// fault.
    pub async fn script(&self, task: &Task) -> Result<String, DriverError> {
        let cell = entry(&self.scripts, task.graded_sha256.clone()).await;
        let made = cell
            .get_or_try_init(|| self.worker.eval_script(&task.instance, &task.row))
            .await;
        made.cloned().map_err(|error| worker_fault(error).into())
    }

    /// Makes a verdict of an earlier attempt of this run available for reuse.
    pub async fn remember(&self, meta: &EpisodeMeta) {
        let (Some(task), Some(patch), Some(record)) = (&meta.graded, &meta.patch_sha256, &meta.grade) else {
            return;
        };
        if meta.patch_bytes > 0 {
            self.reuse(task, patch, &meta.key.dir(meta.attempt), &meta.outcome, record)
                .await;
        }
    }

    /// Makes the verdict on a patch, which the episode in `folder` has, available for reuse.
    pub async fn reuse(&self, task: &GradedTask, patch: &str, folder: &str, outcome: &Outcome, record: &GradeRecord) {
        if record.reused_from.is_some() || !outcome.is_verdict() {
            return;
        }
        let slot = entry(&self.verdicts, known::key(task, patch)).await;
        // While another episode's patch is being graded, that verdict is the one to reuse.
        if let Ok(mut known) = slot.try_lock() {
            known.get_or_insert_with(|| Known {
                folder: folder.to_owned(),
                outcome: outcome.clone(),
                record: record.clone(),
            });
        }
    }

    /// The identity of this task in verdicts: all that grading reads.
    pub fn graded(&self, task: &Task) -> GradedTask {
        task.graded(self.timeout)
    }

    /// The verdict on an episode. `patch` is `None` if none could be taken. A verdict with a grader, or one that is
    /// taken over, goes through `keep`, which makes it durable and returns the one that counts: identical patches take
    /// it over after that only.
    pub async fn grade<K: Future<Output = Result<Graded, DriverError>>>(
        &self,
        task: &Task,
        folder: &str,
        end: EpisodeEnd,
        patch: Option<&Bytes>,
        keep: impl FnOnce(Graded) -> K,
    ) -> Result<Graded, DriverError> {
        let began = Instant::now();
        let task_graded = self.graded(task);
        if let Some(outcome) = outcome::without_grader(end, patch.map(|p| p.as_ref())) {
            let status = if patch.is_some_and(Bytes::is_empty) {
                "EmptyPatch"
            } else {
                "NoPatch"
            };
            return Ok(Graded::without_grader(outcome, status, Vec::new(), task_graded));
        }
        let patch = patch.cloned().unwrap_or_default();
        let slot = entry(&self.verdicts, known::key(&task_graded, &sha256_hex(&patch))).await;
        // Identical patches wait here for the first one and reuse its verdict.
        let mut known = slot.lock().await;
        if let Some(found) = known.as_ref() {
            let taken = found.taken_over(began.elapsed(), task_graded);
            drop(known);
            return keep(taken).await;
        }
        let decided = self.decide(task, folder, &patch).await?;
        let graded = Graded {
            took: began.elapsed(),
            ..decided
        };
        if !graded.outcome.is_verdict() {
            return Ok(graded);
        }
        let graded = keep(graded).await?;
        // Another driver's verdict may be of another image or time limit.
        let is_own = graded.task.as_ref() == Some(&task_graded);
        if let Some(record) = graded
            .record
            .as_ref()
            .filter(|record| is_own && record.reused_from.is_none())
        {
            *known = Some(Known {
                folder: folder.to_owned(),
                outcome: graded.outcome.clone(),
                record: record.clone(),
            });
        }
        Ok(graded)
    }

    /// Judges a log that an earlier driver stored before it died; `None` if the log shows no result.
    pub async fn judge_again(&self, task: &Task, patch: &Bytes, log: &str) -> Result<Option<Graded>, DriverError> {
        let tried = self.judge(task, Some(patch), log.to_owned()).await?;
        let Attempt::Judged { resolved } = tried.attempt else {
            return Ok(None);
        };
        Ok(Some(Graded {
            outcome: verdict_of(resolved),
            record: Some(record_of(&tried, 1, Vec::new())),
            log: None,
            message: None,
            took: Duration::ZERO,
            task: None,
        }))
    }

    async fn decide(&self, task: &Task, folder: &str, patch: &Bytes) -> Result<Graded, DriverError> {
        let hidden = Hidden::of(&task.environment.directory, &task.environment.hidden);
        let applied = test_setup::without(patch, &task.row, &hidden);
        let mut notes = applied.notes();
        let patch = &applied.patch;
        if patch.is_empty() {
            return Ok(Graded::without_grader(
                Outcome::Unresolved,
                "EmptyPatch",
                notes,
                self.graded(task),
            ));
        }
        let mut attempts = Vec::new();
        let mut control = None;
        let mut doubtful_since = None;
        let mut losses = Losses::new(self.patience, self.pauses, folder);
        loop {
            let began = Instant::now();
            let lease = self.lease_id(&format!("grade {folder} {}", attempts.len()));
            let tried = self.attempt(task, Some(patch), &lease).await?;
            attempts.push(tried.attempt.clone());
            notes.extend(tried.note.clone());
            let mut next = outcome::after_grading(&attempts, control);
            if tried.attempt.needs_control() {
                doubtful_since.get_or_insert(began);
            }
            if next == Next::AskControl {
                next = match self.control(task, doubtful_since.unwrap_or(began)).await {
                    Ok(known) => {
                        control = Some(known);
                        notes.push(format!("the empty patch says that the task is {known:?}"));
                        outcome::after_grading(&attempts, control)
                    }
                    Err(NoControl::Lost { reason }) => Next::Conclude(Outcome::void(reason)),
                    Err(NoControl::NoWorker) => {
                        notes.push("the official grader gave no answer about the empty patch".to_owned());
                        outcome::after_grading(&attempts, Some(Control::Broken))
                    }
                    Err(NoControl::Driver(error)) => return Err(error),
                };
            }
            match &tried.attempt {
                Attempt::Lost { reason } => {
                    if losses.another().await.is_err() {
                        next = Next::Conclude(Outcome::void(*reason));
                    }
                }
                _ => losses.end(),
            }
            if let Next::Conclude(outcome) = next {
                let message = (!outcome.is_verdict()).then(|| notes.join("; "));
                let record = record_of(&tried, attempts.len() as u32, notes);
                return Ok(Graded {
                    outcome,
                    record: Some(record),
                    log: tried.log,
                    message,
                    took: Duration::ZERO,
                    task: Some(self.graded(task)),
                });
            }
        }
    }

    fn lease_id(&self, what: &str) -> String {
        format!("g-{}", &sha256_hex(format!("{} {what}", self.epoch).as_bytes())[..24])
    }

    /// One fresh sandbox, one evaluation, one log.
    async fn attempt(&self, task: &Task, patch: Option<&Bytes>, lease: &str) -> Result<Tried, DriverError> {
        let script = self.script(task).await?;
        let leased = self
            .gateway
            .lease(lease, &task.image, Priority::Grader, self.patience.request)
            .await;
        let sandbox = match leased {
            Ok(sandbox) => sandbox,
            Err(error) => return Ok(lost(&error)),
        };
        let mut stage = Stage::SettingUp;
        let facts = self.evaluate(&sandbox, task, patch, script, &mut stage).await;
        sandbox.release().await;
        match facts {
            Ok(Evaluated::Log { log, limit }) => {
                let tried = self.judge(task, patch, log).await?;
                // The empty patch only has to be judged.
                let tried = tried.under(limit.filter(|_| patch.is_some()));
                Ok(self.unless_packages_were_missing(task, tried).await)
            }
            Ok(Evaluated::Not(tried)) => Ok(self.unless_packages_were_missing(task, tried).await),
            // The policy's patch is not in the sandbox yet: a limit that is hit does not count against the policy.
            Err(error) if stage == Stage::SettingUp => Ok(lost(&error)),
            Err(error) => Ok(match error.blame() {
                Blame::Workload => without_log(Attempt::Exhausted, &error),
                Blame::Unknown if stage == Stage::Patched => without_log(Attempt::Silent, &error),
                Blame::Unknown | Blame::Infrastructure => lost(&error),
            }),
        }
    }

    async fn evaluate(
        &self,
        sandbox: &Sandbox,
        task: &Task,
        patch: Option<&Bytes>,
        script: String,
        stage: &mut Stage,
    ) -> Result<Evaluated, SandboxError> {
        if let Err(note) = setup::run(sandbox, task, "setup", WorksNext::Grader).await? {
            return Ok(Evaluated::Not(Tried {
                attempt: Attempt::Lost {
                    reason: VoidReason::TaskBroken,
                },
                report: None,
                log: None,
                note: Some(note),
            }));
        }
        sandbox.put_file(patch::EVAL_FILE, Bytes::from(script)).await?;
        if let Some(patch) = patch {
            sandbox.put_file(patch::PATCH_FILE, patch.clone()).await?;
            let base = task.base_commit.as_deref().unwrap_or("HEAD");
            let argv = patch::apply(&task.environment.directory, base);
            *stage = Stage::Patched;
            let applied = sandbox.exec(&command("apply", argv, APPLY_TIMEOUT, 64 << 10)).await?;
            if applied.exit_code != Some(0) {
                return Ok(Evaluated::Not(Tried::not_applied(applied)));
            }
        } else {
            *stage = Stage::Unpatched;
        }
        let mut eval = command("eval", evaluation(), self.timeout.as_secs(), MAX_LOG);
        eval.cwd = Some(task.environment.directory.clone());
        let result = sandbox.exec(&eval).await?;
        Ok(Evaluated::of(result, self.timeout))
    }

    async fn judge(&self, task: &Task, patch: Option<&Bytes>, log: String) -> Result<Tried, DriverError> {
        let file = self.log_file(&task.instance, &log).await?;
        // The grader needs a text, also for the empty patch of the control.
        let text = patch
            .map(|p| String::from_utf8_lossy(p).into_owned())
            .unwrap_or_default();
        let judged = self.worker.judge(&task.instance, &task.row, &text, &file).await;
        let _ = tokio::fs::remove_file(&file).await;
        let (attempt, report, note) = match judged {
            Ok(report) if report.status == "Judged" => {
                let attempt = Attempt::Judged {
                    resolved: report.resolved,
                };
                (attempt, Some(report), None)
            }
            Ok(report) => {
                let why = report
                    .infra_failure
                    .clone()
                    .unwrap_or_else(|| "no test results in it".into());
                (
                    Attempt::NoReport,
                    Some(report),
                    Some(format!("the log tells nothing: {why}")),
                )
            }
            Err(error @ WorkerError::NoAnswer { .. }) => (Attempt::WorkerFailed, None, Some(error.to_string())),
            // The worker started when the run began, so its installation is sound.
            Err(error @ WorkerError::Start { .. }) => {
                let reason = VoidReason::GraderFailed;
                (Attempt::Lost { reason }, None, Some(error.to_string()))
            }
            Err(error) => return Err(worker_fault(error).into()),
        };
        Ok(Tried {
            attempt,
            report,
            log: Some(log),
            note,
        })
    }

    async fn log_file(&self, instance: &str, log: &str) -> Result<PathBuf, DriverError> {
        let unique: u64 = rand::random();
        let file = self.scratch.path().join(format!("{instance}-{unique:x}.log"));
        tokio::fs::write(&file, log)
            .await
            .map_err(DriverError::io("writing a log for the grader"))?;
        Ok(file)
    }
}

/// Runs the evaluation script and ends with 1. The results are in the script's log; its exit status is 0 in any case.
/// sandboxd looks for a limit that was met, such as a full disk, only after a command that fails.
fn evaluation() -> Vec<String> {
    let script = format!("/bin/bash {}; exit 1", patch::EVAL_FILE);
    ["/bin/bash", "-c", &script].map(str::to_owned).to_vec()
}

fn command(id: &str, argv: Vec<String>, timeout_seconds: u64, max_output: u64) -> ExecRequest {
    ExecRequest {
        id: id.to_owned(),
        argv,
        cwd: None,
        env: Default::default(),
        user: None,
        activate: None,
        stdin: None,
        timeout_seconds: timeout_seconds.max(1),
        max_output_bytes: Some(max_output as _),
    }
}

fn verdict_of(resolved: bool) -> Outcome {
    if resolved {
        Outcome::Resolved
    } else {
        Outcome::Unresolved
    }
}

fn worker_fault(error: WorkerError) -> TerminalFault {
    let reason = match &error {
        WorkerError::Row { .. } => Reason::TaskRowInvalid,
        WorkerError::Start { .. } | WorkerError::NoAnswer { .. } => Reason::GraderUnavailable,
    };
    TerminalFault::new(reason, error.to_string())
}
