//! One episode: lease, turns, patch, verdict.
//!
//! Each turn is durable before the next one begins, the end of the agent before its patch is taken, the patch before
//! its sandbox is released, the verdict (`meta.json`) last. So a restarted driver finds one of: a verdict, which
//! stands; a patch, which it grades; turns with a live sandbox, which it continues; or an attempt that it leaves as is
//! and follows with another.

pub mod abort;
mod conclusion;
mod grading;
mod judging;
pub mod live;
mod once;
pub mod patches;
pub mod plan;
mod records;
mod rewarding;
mod span;
mod verdict;
pub mod work;

use self::abort::Abort;
use self::judging::Judging;
use self::live::{LiveEpisode, millis, now};
use self::patches::{NoPatch, Starts};
pub use self::plan::EpisodePlan;
use crate::agent::Agent;
use crate::config::Settings;
use crate::engine::Engines;
use crate::fault::DriverError;
use crate::grade::Grader;
use crate::judge::Judge;
use crate::patch;
use crate::recording::sessions::Sessions;
use crate::replicas::{Gate, Home};
use crate::reward::service::RewardService;
use crate::sandbox::{Gateway, Sandbox};
use crate::setup::{self, WorksNext};
use crate::tasks::Task;
use crate::traces::step;
use crate::trajectory::Trajectory;
use bytes::Bytes;
use grpo_chat_template::ChatTemplate;
use grpo_crds::grpo_run::OnSync;
use grpo_records::store::sha256_hex;
use grpo_records::{AbortCause, EpisodeEnd, EpisodeMeta, RunStore, VoidReason, Writer, paths};
use grpo_sandbox_protocol::{ExecRequest, Priority};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tokio::sync::{Mutex, OnceCell, watch};
use tracing::Instrument;

/// The state that all episodes share.
pub struct Episodes {
    pub settings: Settings,
    pub store: RunStore,
    pub writer: Writer,
    pub gateway: Gateway,
    pub engines: Engines,
    pub template: Arc<ChatTemplate>,
    pub sessions: Sessions,
    pub agent: Box<dyn Agent>,
    pub grader: Grader,
    pub judge: Option<Arc<Judge>>,
    /// The reward service (`reward.http`), which has the last word on a reward.
    pub rewards: Option<RewardService>,
    /// Closed while engines load other weights.
    pub gate: Gate,
    /// The number of episodes that are being graded.
    pub grading: watch::Sender<usize>,
    /// The base commit of each row, by checksum, once it was verified in a sandbox.
    pub bases: Mutex<HashMap<String, Arc<OnceCell<String>>>>,
    /// Whether images change files of the base commit.
    pub starts: Starts,
}

/// The end of the agent's part of an attempt. Patch and record are durable.
enum Worked {
    /// With the patch, or `None` if none could be taken.
    Ended(Option<Bytes>),
    /// An earlier driver aborted it, and died before the verdict.
    Aborted(AbortCause),
}

impl Episodes {
    /// Runs one attempt, up to its `meta.json`. `resume`: an earlier driver began this attempt. Returns `None` if it
    /// cannot continue and another attempt is due.
    pub async fn attempt(
        &self,
        plan: &EpisodePlan,
        attempt: u32,
        resume: bool,
    ) -> Result<Option<EpisodeMeta>, DriverError> {
        let span = span::attempt(plan, (&self.settings.namespace, &self.settings.name), attempt);
        let result = self.whole_attempt(plan, attempt, resume).instrument(span.clone()).await;
        span::ended(&span, &result);
        result
    }

    async fn whole_attempt(
        &self,
        plan: &EpisodePlan,
        attempt: u32,
        resume: bool,
    ) -> Result<Option<EpisodeMeta>, DriverError> {
        let dir = plan.key.dir(attempt);
        let mut trajectory = Trajectory::new(self.judge.is_some());
        // The episode's time and the time for waiting: beyond both, the infrastructure is at fault.
        let limit = self.settings.agent.limits.episode_timeout + self.settings.patience.waiting;
        // Other episodes continue, or are abandoned, when the weights change.
        let inside = match plan.on_sync {
            OnSync::Drain => Some(self.gate.enter().await),
            OnSync::Continue | OnSync::Abort => None,
        };
        let mut judging = Judging::new(plan, &dir, &self.store, &self.writer, self.judge.as_ref());
        let held = OnceLock::new();
        let work = self.run_attempt(plan, &dir, (attempt, resume), &held, &mut trajectory, &mut judging);
        let ended = tokio::time::timeout(limit, work).await;
        drop(inside);
        let ended = match ended {
            Err(_) => {
                // The work was dropped with its `Sandbox`, which does not release the lease.
                if let Some(lease) = held.get() {
                    self.gateway.release(lease).await;
                }
                let mut written = Trajectory::new(self.judge.is_some());
                match self.read_worked(&dir, &mut written).await {
                    // The limit fell between its record and the release of its sandbox.
                    Ok(Some(worked)) => {
                        trajectory = written;
                        Ok(worked)
                    }
                    Ok(None) => Err(Abort::Void {
                        reason: VoidReason::DeadlineInfrastructure,
                        message: format!("the episode took more than {limit:?}, waiting included"),
                    }),
                    Err(stop) => Err(stop),
                }
            }
            Ok(ended) => ended,
        };
        let stopped = match ended {
            Err(stop) => stop,
            Ok(worked) => {
                let concluded = match worked {
                    // Boxed: grading needs much state, and while the agent works no memory is kept for it.
                    Worked::Ended(patch) => {
                        Box::pin(self.conclude(plan, &dir, attempt, &trajectory, patch, judging)).await
                    }
                    Worked::Aborted(cause) => self.conclude_void(plan, &dir, attempt, &trajectory, cause).await,
                };
                return concluded.map(Some);
            }
        };
        match stopped {
            Abort::Driver(error) => Err(error),
            Abort::Abandoned => Ok(None),
            Abort::Void { reason, message } => {
                trajectory.end = Some(EpisodeEnd::Aborted);
                let cause = AbortCause { reason, message };
                self.write_trajectory(plan, &dir, attempt, &trajectory, Some(cause.clone()))
                    .await?;
                self.conclude_void(plan, &dir, attempt, &trajectory, cause)
                    .await
                    .map(Some)
            }
        }
    }

    /// Takes an attempt from any state to a durable patch, and releases the sandbox. `held`: the lease of the attempt.
    async fn run_attempt(
        &self,
        plan: &EpisodePlan,
        dir: &str,
        (attempt, resume): (u32, bool),
        held: &OnceLock<String>,
        trajectory: &mut Trajectory,
        judging: &mut Judging,
    ) -> Result<Worked, Abort> {
        let mut end_kept = false;
        if resume {
            if let Some(worked) = self.read_worked(dir, trajectory).await? {
                return Ok(worked);
            }
            let (kept, patch) = self.read_work(dir, trajectory).await?;
            end_kept = kept;
            // An exhausted sandbox has no patch to take.
            if patch.is_some() || trajectory.end == Some(EpisodeEnd::SandboxExhausted) {
                return Ok(self.persist(plan, dir, attempt, patch, trajectory).await?);
            }
        }
        // Turns continue only in the sandbox in which they began. Without it the attempt is abandoned.
        let begun = trajectory.turns.last().map(|turn| turn.lease.clone());
        let lease = held.get_or_init(|| begun.clone().unwrap_or_else(|| self.lease_id(plan, dir)));
        let sandbox = match begun {
            Some(lease) => self.gateway.take_up(&lease).await?.ok_or(Abort::Abandoned)?,
            None => {
                let sandbox = self.lease(plan, lease, trajectory).await?;
                match self.set_up(&sandbox, &plan.task).await {
                    Ok(()) => sandbox,
                    Err(stop) => {
                        sandbox.release().await;
                        return Err(stop);
                    }
                }
            }
        };
        // Turns sampled from other weights belong to another attempt, unless episodes continue under new weights.
        if resume
            && plan.on_sync != OnSync::Continue
            && trajectory
                .turns
                .last()
                .is_some_and(|turn| turn.weights != *plan.weights.borrow())
        {
            sandbox.release().await;
            return Err(Abort::Abandoned);
        }
        let worked = tokio::select! {
            worked = self.run_turns(plan, dir, &sandbox, trajectory, judging, end_kept) => worked,
            () = plan.stop.cancelled() => Err(Abort::Abandoned),
            () = plan.outdated() => Err(Abort::Abandoned),
        };
        match worked {
            Ok(patch) => {
                let result = self.persist(plan, dir, attempt, patch, trajectory).await?;
                sandbox.release().await;
                Ok(result)
            }
            Err(Abort::Driver(error)) => Err(Abort::Driver(error)),
            Err(stop) => {
                sandbox.release().await;
                Err(stop)
            }
        }
    }

    /// Folds an attempt whose agent is done. `None` if it is not.
    async fn read_worked(&self, dir: &str, trajectory: &mut Trajectory) -> Result<Option<Worked>, Abort> {
        let Some(record) = self.read_ended(dir, trajectory).await? else {
            return Ok(None);
        };
        Ok(Some(match record.aborted {
            Some(cause) => Worked::Aborted(cause),
            None => Worked::Ended(self.stored_patch(dir).await?),
        }))
    }

    /// Runs the agent until the episode ends, then takes the patch. `end_kept`: the end is durable already.
    async fn run_turns(
        &self,
        plan: &EpisodePlan,
        dir: &str,
        sandbox: &Sandbox,
        trajectory: &mut Trajectory,
        judging: &mut Judging,
        end_kept: bool,
    ) -> Result<Option<Bytes>, Abort> {
        let fresh = trajectory.turns.is_empty();
        let base = self.base_commit(sandbox, &plan.task, fresh).await?;
        if fresh {
            self.keep_start(sandbox, &plan.task, dir, &base).await?;
        }
        let first_turn = trajectory.next_turn();
        let mut episode = LiveEpisode {
            plan,
            dir,
            limits: &self.settings.agent.limits,
            commands: &self.settings.agent.commands,
            template: &self.template,
            trajectory,
            judging,
            sandbox,
            sessions: &self.sessions,
            driver: &self.settings.driver,
            store: &self.store,
            writer: &self.writer,
            engines: &self.engines,
            home: Home::default(),
            first_turn,
            replay: self.settings.replay.as_ref(),
        };
        let end = self.agent.run(&mut episode).instrument(step!("agent")).await?;
        trajectory.end = Some(end);
        if !end_kept {
            self.write_end(dir, end, trajectory).await?;
        }
        match end {
            EpisodeEnd::SandboxExhausted => Ok(None),
            _ => {
                let taking = self.take_patch(sandbox, &plan.task, dir, &base);
                let taken = taking.instrument(step!("patch")).await?;
                trajectory.patch_too_large = taken == Err(NoPatch::TooLarge);
                Ok(taken.ok())
            }
        }
    }

    /// Makes patch and trajectory durable.
    async fn persist(
        &self,
        plan: &EpisodePlan,
        dir: &str,
        attempt: u32,
        patch: Option<Bytes>,
        trajectory: &Trajectory,
    ) -> Result<Worked, DriverError> {
        if let Some(patch) = &patch {
            once::create_bytes(&self.store, &self.writer, &paths::patch(dir), patch.clone()).await?;
        }
        self.write_trajectory(plan, dir, attempt, trajectory, None).await?;
        Ok(Worked::Ended(patch))
    }

    async fn lease(&self, plan: &EpisodePlan, id: &str, trajectory: &mut Trajectory) -> Result<Sandbox, Abort> {
        let began = Instant::now();
        let image = &plan.task.image;
        let leased = self
            .gateway
            .lease(id, image, Priority::Agent, self.settings.patience.gateway)
            .instrument(step!("lease"))
            .await;
        trajectory.waited_millis += millis(began.elapsed());
        Ok(leased?)
    }

    async fn set_up(&self, sandbox: &Sandbox, task: &Task) -> Result<(), Abort> {
        let id = format!("setup-{}", self.writer.epoch);
        let done = setup::run(sandbox, task, &id, WorksNext::Policy)
            .instrument(step!("set up"))
            .await?;
        done.map_err(|message| Abort::Void {
            reason: VoidReason::TaskBroken,
            message,
        })
    }

    /// The base commit of patches, verified before the policy could touch it. If the row names none, it is stored
    /// before the first turn: a later driver may get a sandbox in which the policy has committed.
    async fn base_commit(&self, sandbox: &Sandbox, task: &Task, fresh: bool) -> Result<String, Abort> {
        // An earlier driver has verified it, and the policy may have broken its repository since.
        if !fresh && let Some(base) = &task.base_commit {
            return Ok(base.clone());
        }
        // Keyed by row: two sets may have different rows of one instance.
        let cell = self.bases.lock().await.entry(task.sha256.clone()).or_default().clone();
        let base = cell.get_or_try_init(|| async {
            let kept = paths::task_base(&task.sha256);
            if task.base_commit.is_none() && self.store.exists(&kept).await.map_err(DriverError::from)? {
                let bytes = self.store.bytes(&kept).await.map_err(DriverError::from)?;
                return Ok(String::from_utf8_lossy(&bytes).into_owned());
            }
            if task.base_commit.is_none() && !fresh {
                return Err(Abort::Abandoned);
            }
            let repository = &task.environment.directory;
            let argv = match &task.base_commit {
                Some(base) => patch::check(repository, base),
                None => patch::head(repository),
            };
            // In the agent's environment, so that an image without it is found before the policy acts.
            let request = ExecRequest {
                activate: self.settings.agent.commands.activation(&task.environment),
                ..self.own_command("base", argv, 60)
            };
            let result = sandbox.exec(&request).await?;
            let printed = result.output.trim();
            match (result.exit_code, &task.base_commit) {
                (Some(0), Some(base)) => Ok(base.clone()),
                (Some(0), None) if printed.len() >= 40 && printed.bytes().all(|b| b.is_ascii_hexdigit()) => {
                    let bytes = Bytes::from(printed.to_owned());
                    once::create_bytes(&self.store, &self.writer, &kept, bytes).await?;
                    Ok(printed.to_owned())
                }
                _ => Err(Abort::Void {
                    reason: VoidReason::TaskBroken,
                    message: format!(
                        "{repository} of image {} has no commit {}, or the task's environment cannot be activated: {printed}",
                        task.image,
                        task.base_commit.as_deref().unwrap_or("HEAD")
                    ),
                }),
            }
        });
        Ok(base.await?.clone())
    }

    fn own_command(&self, id: &str, argv: Vec<String>, timeout_seconds: u64) -> ExecRequest {
        ExecRequest {
            id: format!("{id}-{}", self.writer.epoch),
            argv,
            cwd: None,
            env: Default::default(),
            user: None,
            activate: None,
            stdin: None,
            timeout_seconds,
            max_output_bytes: Some(64 << 10),
        }
    }

    /// The id differs by attempt, weights and driver: two drivers that live at once begin no episode in the same
    /// sandbox. A restarted driver finds the lease in the last turn.
    fn lease_id(&self, plan: &EpisodePlan, dir: &str) -> String {
        let (uid, epoch) = (&self.settings.uid, self.writer.epoch);
        let name = format!("{uid} {dir} {} {epoch}", *plan.weights.borrow());
        format!("a-{}", &sha256_hex(name.as_bytes())[..24])
    }
}
