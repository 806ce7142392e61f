//! Mode Validate: finds the tasks that are fit for training.
//!
//! For each task it looks for commits beside the base commit, and grades the gold patch and the empty patch several
//! times each, in fresh sandboxes. The record of a task is durable when the task is done, so that a restarted driver
//! continues with the others. At the end each set has a list for `select.instanceIds`. A task that the infrastructure
//! lost is unfit in the list and has no record: the next run on the store tries it again.

use super::Run;
use crate::fault::DriverError;
use crate::grade::Tested;
use crate::patch;
use crate::progress::Topic;
use crate::sandbox::SandboxError;
use crate::setup::{self, WorksNext};
use crate::tasks::Task;
use bytes::Bytes;
use futures::StreamExt;
use grpo_contracts::task_sets;
use grpo_crds::progress::Stage;
use grpo_records::validation::{EMPTY, Finding, GOLD, TaskValidation, Trial, findings, id_list};
use grpo_records::{Created, SCHEMA, paths};
use grpo_sandbox_protocol::{ExecRequest, ExecResult, Priority};
use std::sync::Arc;

/// Trials of each patch: three find 48 of 100 tasks with a test that fails one time in five with the gold patch.
const TRIALS: u32 = 3;
const LOOK_TIMEOUT: u64 = 120;

/// What was found out about a task.
#[derive(Default)]
struct Examined {
    findings: Vec<Finding>,
    gold: Vec<Trial>,
    empty: Vec<Trial>,
}

/// Why a task was not examined.
enum Unexamined {
    /// The infrastructure lost every try until patience ended.
    Lost(Finding),
    Driver(DriverError),
}

impl From<DriverError> for Unexamined {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}

impl Run {
    pub(super) async fn validate(&self) -> Result<(), DriverError> {
        let train = self
            .settings
            .train
            .iter()
            .map(|_| (task_sets::TRAIN.to_owned(), &self.train_tasks));
        let evaluations = self.settings.evaluate.iter().zip(&self.evaluation_tasks);
        let evaluations = evaluations.map(|(set, tasks)| (task_sets::evaluation(&set.name), tasks));
        self.board.begin(Stage::Grading);
        let mut said = Vec::new();
        for (set, tasks) in train.chain(evaluations) {
            let validated = self.validate_set(&set, tasks).await?;
            let fit = validated.iter().filter(|one| one.findings.is_empty()).count();
            said.push(format!("tasks.{set}: {fit} of {} tasks are fit", validated.len()));
            // Tasks with a changed image, limit or row were validated again, so an earlier list may be outdated.
            let ids = id_list(&set, &validated);
            self.store.replace(&paths::validated_ids(&set), ids.into()).await?;
        }
        self.board.end(Stage::Grading);
        self.board.say(Topic::Tasks, Some(said.join("; ")));
        Ok(())
    }

    /// Returns results in the order of the tasks.
    async fn validate_set(&self, set: &str, tasks: &[Arc<Task>]) -> Result<Vec<TaskValidation>, DriverError> {
        let width = self.rollouts.width().await;
        let (total, mut done) = (tasks.len() as u32, 0);
        self.board
            .change(|progress| (progress.episodes_done, progress.episodes_total) = (Some(0), Some(total)));
        let mut running = futures::stream::iter(tasks.iter().cloned().enumerate())
            .map(|(at, task)| async move { (at, self.validated(set, &task).await) })
            .buffer_unordered(width);
        let mut validated: Vec<Option<TaskValidation>> = vec![None; tasks.len()];
        while let Some((at, one)) = running.next().await {
            let one = one?;
            self.metrics.tasks_validated.inc();
            for finding in &one.findings {
                tracing::warn!(set, instance = %one.instance, %finding, "a task is not fit");
            }
            validated[at] = Some(one);
            done += 1;
            self.board.change(|progress| progress.episodes_done = Some(done));
        }
        Ok(validated.into_iter().flatten().collect())
    }

    /// From the store if its record is current.
    async fn validated(&self, set: &str, task: &Task) -> Result<TaskValidation, DriverError> {
        let path = paths::validation(set, &task.instance);
        let grader = &self.rollouts.episodes.grader;
        let graded = Some(grader.graded(task));
        let known = self.store.read_if_there::<TaskValidation>(&path).await?;
        let outdated = match known {
            // A record of another image, limit or row is outdated.
            Some(known) => match known.is_about_its_task() && (known.graded.is_none() || known.graded == graded) {
                true => return Ok(known),
                false => true,
            },
            None => false,
        };
        let (examined, is_lost) = match self.examined(task).await {
            Ok(examined) => (examined, false),
            Err(Unexamined::Lost(finding)) => {
                let findings = vec![finding];
                (
                    Examined {
                        findings,
                        ..Examined::default()
                    },
                    true,
                )
            }
            Err(Unexamined::Driver(error)) => return Err(error),
        };
        let record = TaskValidation {
            schema: SCHEMA,
            writer: self.writer.clone(),
            set: set.to_owned(),
            instance: task.instance.clone(),
            graded,
            findings: examined.findings,
            gold: examined.gold,
            empty: examined.empty,
            at: jiff::Timestamp::now().as_second(),
        };
        if outdated {
            self.store.delete(&path).await?;
        }
        if is_lost {
            return Ok(record);
        }
        match self.store.create(&path, &record).await? {
            Created::Written { .. } => Ok(record),
            Created::Existed => Ok(self.store.read(&path).await?),
        }
    }

    /// Looks at the task's repository and grades its patches.
    async fn examined(&self, task: &Task) -> Result<Examined, Unexamined> {
        let mut examined = Examined {
            findings: self.repository(task).await?,
            ..Examined::default()
        };
        let is_setup = |finding: &Finding| matches!(finding, Finding::SetupFails { .. });
        if examined.findings.iter().any(is_setup) {
            return Ok(examined);
        }
        let gold = task.row["patch"].as_str().filter(|patch| !patch.trim().is_empty());
        let gold = gold.map(patch::published);
        for trial in 0..TRIALS {
            if gold.is_some() {
                let name = format!("gold {trial}");
                examined.gold.push(self.tested(task, gold.as_ref(), GOLD, &name).await?);
            }
            let name = format!("empty {trial}");
            examined.empty.push(self.tested(task, None, EMPTY, &name).await?);
        }
        examined.findings.extend(findings(&examined.gold, &examined.empty));
        Ok(examined)
    }

    /// One trial. `patch_name`: that of the patch in findings.
    async fn tested(
        &self,
        task: &Task,
        patch: Option<&Bytes>,
        patch_name: &str,
        name: &str,
    ) -> Result<Trial, Unexamined> {
        match self.rollouts.episodes.grader.trial(task, patch, name).await? {
            Tested::Ended(trial) => Ok(trial),
            Tested::Lost { message } => Err(Unexamined::Lost(Finding::Ungradable {
                patch: patch_name.to_owned(),
                message,
            })),
        }
    }

    /// Findings on the repository as the policy would see it.
    async fn repository(&self, task: &Task) -> Result<Vec<Finding>, Unexamined> {
        let patience = self.settings.patience;
        let mut retry = crate::retry::Retry::new(patience.grading, patience.pauses).with_jitter(&task.instance);
        for tries in 0.. {
            match self.look(task, tries).await {
                Ok(found) => return Ok(found),
                Err(error) if error.is_workloads_fault() => {
                    let message = error.to_string();
                    return Ok(vec![Finding::SetupFails { message }]);
                }
                Err(error) => {
                    tracing::warn!(instance = %task.instance, %error, "a sandbox is lost; trying again");
                    if retry.pause().await.is_err() {
                        let message = error.to_string();
                        return Err(Unexamined::Lost(Finding::NoSandbox { message }));
                    }
                }
            }
        }
        Ok(Vec::new())
    }

    async fn look(&self, task: &Task, tries: u32) -> Result<Vec<Finding>, SandboxError> {
        let gateway = &self.rollouts.episodes.gateway;
        let name = format!(
            "{} {} look {} {tries}",
            self.settings.uid, self.writer.epoch, task.instance
        );
        let lease = format!("v-{}", &grpo_records::store::sha256_hex(name.as_bytes())[..24]);
        let sandbox = gateway
            .lease(&lease, &task.image, Priority::Agent, self.settings.patience.gateway)
            .await?;
        let looked = async {
            if let Err(message) = setup::run(&sandbox, task, "setup", WorksNext::Policy).await? {
                return Ok(vec![Finding::SetupFails { message }]);
            }
            let command = |id: &str, argv: Vec<String>| ExecRequest {
                id: id.to_owned(),
                argv,
                cwd: None,
                env: Default::default(),
                user: None,
                activate: None,
                stdin: None,
                timeout_seconds: LOOK_TIMEOUT,
                max_output_bytes: Some(1 << 20),
            };
            let repository = &task.environment.directory;
            if let Some(base) = &task.base_commit {
                let there = sandbox.exec(&command("base", patch::check(repository, base))).await?;
                if too_slow(&there) {
                    return Ok(vec![slow()]);
                }
                if there.exit_code != Some(0) {
                    let message = there.output.trim().to_owned();
                    return Ok(vec![Finding::BaseMissing { message }]);
                }
            }
            let base = task.base_commit.as_deref().unwrap_or("HEAD");
            let later = sandbox.exec(&command("later", patch::later(repository, base))).await?;
            if too_slow(&later) {
                return Ok(vec![slow()]);
            }
            if later.exit_code != Some(0) {
                let message = later.output.trim().to_owned();
                return Ok(vec![Finding::BaseMissing { message }]);
            }
            Ok(later_commits(&later.output).into_iter().collect())
        };
        let looked = looked.await;
        sandbox.release().await;
        looked
    }
}

fn too_slow(ran: &ExecResult) -> bool {
    ran.timed_out || ran.killed.is_some() || ran.exit_code.is_none()
}

fn slow() -> Finding {
    let message = format!("git took more than {LOOK_TIMEOUT} s, or more memory than its sandbox has");
    Finding::SetupFails { message }
}

/// Parses one line for each commit, newest first.
fn later_commits(output: &str) -> Option<Finding> {
    // Skips git's warnings.
    let mut lines = output.lines().filter_map(|line| line.strip_prefix(patch::LATER_MARK));
    let newest = lines.next()?.trim().to_owned();
    let count = 1 + lines.count() as u64;
    Some(Finding::LaterCommits { count, newest })
}
