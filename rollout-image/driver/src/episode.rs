//! One episode: lease, talk, patch, verdict.
//!
//! Every turn is durable before the next begins, the patch before its sandbox is given back, the verdict (`meta.json`) last.
//! So a driver that comes back finds one of: a verdict, which stands; a patch, which is graded; turns whose sandbox is still
//! there, which go on; or a try that is left as it lies and followed by another.

use crate::agent_bash::{self, BashAgent};
use crate::config::Settings;
use crate::engine::{Ask, EngineError, Engines, Sampled};
use crate::fault::{DriverError, Fault};
use crate::grade::{Graded, Grader};
use crate::patch;
use crate::sandbox::{Gateway, Sandbox, SandboxError};
use crate::seeds;
use crate::tasks::Task;
use crate::template::{ChatTemplate, TemplateError};
use crate::transcript::{Transcript, TranscriptFault};
use bytes::Bytes;
use grpo_engine_protocol::FinishReason;
use grpo_records::store::sha256_hex;
use grpo_records::{
    EpisodeEnd, EpisodeKey, EpisodeMeta, EpisodeRecord, ExecSummary, Outcome, RunStore, SCHEMA, TurnAction, TurnRecord,
    VoidReason, Writer, paths,
};
use grpo_sandbox_protocol::{ExecRequest, ExecResult, Fault as Whose, Priority};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, OnceCell, watch};

/// Time on top of the policy's own, for waiting; when it is over too, the infrastructure is at fault.
const INFRASTRUCTURE_ALLOWANCE: Duration = Duration::from_secs(1800);
/// How long taking a patch may take.
const PATCH_TIMEOUT: u64 = 300;

/// What an episode is to be.
#[derive(Clone, Debug)]
pub struct Plan {
    pub key: EpisodeKey,
    pub task: Arc<Task>,
    /// The run's seed, or the evaluated set's.
    pub seed: u64,
}

/// Everything episodes share.
pub struct Episodes {
    pub settings: Settings,
    pub store: RunStore,
    pub writer: Writer,
    pub gateway: Gateway,
    pub engines: Engines,
    pub template: ChatTemplate,
    pub agent: BashAgent,
    pub grader: Grader,
    /// The weights to sample from.
    pub wanted: watch::Receiver<String>,
    /// Counts the episodes that are being graded.
    pub grading: watch::Sender<usize>,
    /// The base commit of each task, once it was seen to be there.
    pub bases: Mutex<HashMap<String, Arc<OnceCell<String>>>>,
}

/// Why a try stopped short of a verdict.
enum Stop {
    Void {
        reason: VoidReason,
        message: String,
    },
    /// An earlier driver's try that cannot go on.
    Abandoned,
    Driver(DriverError),
}

impl From<DriverError> for Stop {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}

impl From<grpo_records::StoreError> for Stop {
    fn from(error: grpo_records::StoreError) -> Self {
        Self::Driver(error.into())
    }
}

impl From<TemplateError> for Stop {
    fn from(error: TemplateError) -> Self {
        Self::Driver(Fault::new("TemplateUnusable", error.to_string()).into())
    }
}

impl From<minijinja::Error> for Stop {
    fn from(error: minijinja::Error) -> Self {
        Self::Driver(
            Fault::new(
                "PromptUnusable",
                format!("rendering a template of spec.agent.bash: {error:#}"),
            )
            .into(),
        )
    }
}

impl From<TranscriptFault> for Stop {
    fn from(fault: TranscriptFault) -> Self {
        Self::Driver(DriverError::Other(fault.to_string()))
    }
}

impl From<EngineError> for Stop {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Terminal(fault) => Self::Driver(fault.into()),
            EngineError::Unavailable { .. } => Self::Void {
                reason: VoidReason::EngineUnavailable,
                message: error.to_string(),
            },
        }
    }
}

impl From<SandboxError> for Stop {
    fn from(error: SandboxError) -> Self {
        let reason = match &error {
            SandboxError::Lost { .. } | SandboxError::NoSuchLease { .. } => VoidReason::SandboxLost,
            SandboxError::ImageUnavailable { .. } => VoidReason::ImageUnavailable,
            _ => VoidReason::SandboxUnavailable,
        };
        Self::Void {
            reason,
            message: error.to_string(),
        }
    }
}

/// What the agent left behind: the patch, or nothing where none could be taken.
struct Left {
    patch: Option<Bytes>,
    transcript: Transcript,
}

impl Episodes {
    /// One try, up to its `meta.json`. `resume` when an earlier driver began this very try; nothing comes back if it cannot
    /// go on and another try is due.
    pub async fn attempt(&self, plan: &Plan, number: u32, resume: bool) -> Result<Option<EpisodeMeta>, DriverError> {
        let dir = plan.key.dir(number);
        let mut transcript = Transcript::opening(&self.opening(plan)?);
        let limit = self.settings.agent.episode_timeout + INFRASTRUCTURE_ALLOWANCE;
        let acted = tokio::time::timeout(limit, self.act(plan, &dir, number, resume, &mut transcript)).await;
        let stopped = match acted {
            Err(_) => Stop::Void {
                reason: VoidReason::DeadlineInfrastructure,
                message: format!("the episode took more than {limit:?}, waiting included"),
            },
            Ok(Err(stop)) => stop,
            Ok(Ok(left)) => return self.conclude(plan, &dir, number, left).await.map(Some),
        };
        match stopped {
            Stop::Driver(error) => Err(error),
            Stop::Abandoned => Ok(None),
            Stop::Void { reason, message } => {
                transcript.end = Some(EpisodeEnd::Aborted);
                let graded = Graded {
                    outcome: Outcome::void(reason),
                    record: None,
                    log: None,
                    message: Some(message),
                    took: Duration::ZERO,
                };
                self.write_trajectory(plan, &dir, number, &transcript).await?;
                self.write_meta(plan, &dir, number, &transcript, None, graded)
                    .await
                    .map(Some)
            }
        }
    }

    fn opening(&self, plan: &Plan) -> Result<Vec<crate::template::ChatMessage>, DriverError> {
        self.agent.opening(&plan.task.variables()).map_err(|error| {
            let message = format!("rendering the prompt of {}: {error:#}", plan.key.instance);
            Fault::new("PromptUnusable", message).into()
        })
    }

    /// From wherever the try stands to the durable patch; the sandbox is given back on the way.
    async fn act(
        &self,
        plan: &Plan,
        dir: &str,
        number: u32,
        resume: bool,
        transcript: &mut Transcript,
    ) -> Result<Left, Stop> {
        let lease = self.lease_id(dir);
        if resume {
            self.read_turns(dir, transcript).await?;
            if let Some(patch) = self.stored_patch(dir).await? {
                return Ok(self.left(plan, dir, number, patch, transcript).await?);
            }
        }
        let sandbox = match resume {
            true => self.gateway.take_up(&lease).await?.ok_or(Stop::Abandoned)?,
            false => self.lease(plan, &lease, transcript).await?,
        };
        // What was sampled by other weights belongs to another try.
        if resume
            && transcript
                .weights
                .last()
                .is_some_and(|span| span.version != *self.wanted.borrow())
        {
            sandbox.release().await;
            return Err(Stop::Abandoned);
        }
        match self.work(plan, dir, &sandbox, transcript).await {
            Ok(patch) => {
                let left = self.left(plan, dir, number, patch, transcript).await?;
                sandbox.release().await;
                Ok(left)
            }
            Err(Stop::Driver(error)) => Err(Stop::Driver(error)),
            Err(stop) => {
                sandbox.release().await;
                Err(stop)
            }
        }
    }

    /// Turns until the episode ends, then the patch.
    async fn work(
        &self,
        plan: &Plan,
        dir: &str,
        sandbox: &Sandbox,
        transcript: &mut Transcript,
    ) -> Result<Option<Bytes>, Stop> {
        let base = self.base_commit(sandbox, &plan.task).await?;
        while transcript.end.is_none() {
            self.turn(plan, dir, sandbox, transcript).await?;
        }
        match transcript.end {
            Some(EpisodeEnd::SandboxExhausted) => Ok(None),
            _ => self.take_patch(sandbox, &base).await,
        }
    }

    /// Makes patch and trajectory durable.
    async fn left(
        &self,
        plan: &Plan,
        dir: &str,
        number: u32,
        patch: Option<Bytes>,
        transcript: &Transcript,
    ) -> Result<Left, DriverError> {
        if let Some(patch) = &patch {
            self.store.create_bytes(&paths::patch(dir), patch.clone()).await?;
        }
        self.write_trajectory(plan, dir, number, transcript).await?;
        Ok(Left {
            patch,
            transcript: transcript.clone(),
        })
    }

    async fn lease(&self, plan: &Plan, id: &str, transcript: &mut Transcript) -> Result<Sandbox, Stop> {
        let began = Instant::now();
        let image = &plan.task.image;
        let leased = self
            .gateway
            .lease(id, image, Priority::Agent, self.settings.patience.gateway)
            .await;
        transcript.waited_millis += millis(began.elapsed());
        Ok(leased?)
    }

    /// The commit patches are taken against, seen to exist before the policy could have touched it.
    async fn base_commit(&self, sandbox: &Sandbox, task: &Task) -> Result<String, Stop> {
        let cell = self
            .bases
            .lock()
            .await
            .entry(task.instance.clone())
            .or_default()
            .clone();
        let base = cell.get_or_try_init(|| async {
            let repository = &self.settings.agent.repository;
            let argv = match &task.base_commit {
                Some(base) => patch::check(repository, base),
                None => patch::head(repository),
            };
            let result = sandbox.exec(&self.own_command("base", argv, 60)).await?;
            let printed = result.output.trim();
            match (result.exit_code, &task.base_commit) {
                (Some(0), Some(base)) => Ok(base.clone()),
                (Some(0), None) if printed.len() >= 40 && printed.bytes().all(|b| b.is_ascii_hexdigit()) => {
                    Ok(printed.to_owned())
                }
                _ => Err(Stop::Void {
                    reason: VoidReason::TaskBroken,
                    message: format!(
                        "{} of image {} has no commit {}: {printed}",
                        repository,
                        task.image,
                        task.base_commit.as_deref().unwrap_or("HEAD")
                    ),
                }),
            }
        });
        Ok(base.await?.clone())
    }

    /// One turn: sample, act, observe, record.
    async fn turn(&self, plan: &Plan, dir: &str, sandbox: &Sandbox, transcript: &mut Transcript) -> Result<(), Stop> {
        let number = transcript.turns;
        let prompt = if number == 0 {
            self.template.prompt(&self.opening(plan)?)?
        } else {
            Vec::new()
        };
        let given: Vec<u32> = [&transcript.tokens[..], &prompt[..]].concat();
        let agent = &self.settings.agent;
        if given.len() >= agent.context_tokens {
            return Err(Stop::Void {
                reason: VoidReason::TaskBroken,
                message: format!(
                    "the prompt has {} tokens, the context {}; raise agent.limits.contextTokens or leave the task out",
                    given.len(),
                    agent.context_tokens
                ),
            });
        }
        let seed = seeds::of_turn(
            plan.seed,
            &plan.key.home,
            &plan.key.instance,
            plan.key.group,
            plan.key.sample,
            number,
        );
        let prompt_length = given.len();
        let sampled = self.sample(given, seed).await?;
        let mut record = TurnRecord {
            schema: SCHEMA,
            writer: self.writer.clone(),
            episode: plan.key.name(),
            turn: number,
            lease: sandbox.id().to_owned(),
            prompt_length,
            prompt,
            seed,
            text: self.template.text(&sampled.ids)?,
            sampled: sampled.ids,
            logprobs: sampled.logprobs,
            weights: sampled.weights,
            finish: finish_word(sampled.finish).to_owned(),
            action: TurnAction::Truncated,
            exec: None,
            observation: Vec::new(),
            observation_text: String::new(),
            end: None,
            sample_millis: millis(sampled.took),
            exec_millis: 0,
            waited_millis: millis(sampled.waited),
            at: now(),
        };
        if sampled.finish == FinishReason::Stop {
            record.action = agent_bash::action_of(&record.text);
        }
        self.respond(plan, sandbox, transcript, &mut record).await?;
        transcript.push(&record)?;
        self.store.create(&paths::turn(dir, number), &record).await?;
        Ok(())
    }

    async fn sample(&self, prompt: Vec<u32>, seed: u64) -> Result<Sampled, Stop> {
        let sampling = &self.settings.sampling;
        let room = self.settings.agent.context_tokens - prompt.len();
        let ask = Ask {
            max_tokens: sampling
                .max_tokens_per_call
                .min(u32::try_from(room).unwrap_or(u32::MAX)),
            prompt,
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k,
            seed,
            stop_token_ids: self.template.stop_ids(),
        };
        Ok(self.engines.sample(&ask, &self.wanted).await?)
    }

    /// Runs what was asked for, and fills in what comes back or why this was the last turn.
    async fn respond(
        &self,
        plan: &Plan,
        sandbox: &Sandbox,
        transcript: &Transcript,
        record: &mut TurnRecord,
    ) -> Result<(), Stop> {
        let agent = &self.settings.agent;
        let turns_left = agent.turns.saturating_sub(record.turn + 1);
        let used = record.prompt_length + record.sampled.len();
        if record.finish == "length" && used >= agent.context_tokens {
            record.end = Some(EpisodeEnd::ContextFull);
            return Ok(());
        }
        let text = match record.action.clone() {
            TurnAction::Command { command } => match self.run(plan, sandbox, transcript, record, &command).await? {
                None => {
                    record.end = Some(EpisodeEnd::SandboxExhausted);
                    return Ok(());
                }
                Some((output, exec)) => {
                    let submitted = self.agent.is_submission(&output, &exec);
                    let text = self.agent.observation(&output, &exec, turns_left)?;
                    record.exec = Some(exec);
                    if submitted {
                        record.end = Some(EpisodeEnd::Submitted);
                        record.observation_text = text;
                        return Ok(());
                    }
                    text
                }
            },
            action => self.agent.format_error(&action, turns_left)?,
        };
        let stop = record
            .sampled
            .last()
            .copied()
            .filter(|id| self.template.stop_ids().contains(id));
        let observation = self.template.observation(stop, &text)?;
        record.end = if turns_left == 0 {
            Some(EpisodeEnd::TurnLimit)
        } else if self.spent(transcript, record) >= agent.episode_timeout {
            Some(EpisodeEnd::EpisodeTimeout)
        } else if used + observation.len() >= agent.context_tokens {
            Some(EpisodeEnd::ContextFull)
        } else {
            None
        };
        if record.end.is_none() {
            record.observation = observation;
        }
        record.observation_text = text;
        Ok(())
    }

    /// The policy's own time so far; waiting for the infrastructure is not in it.
    fn spent(&self, transcript: &Transcript, record: &TurnRecord) -> Duration {
        let before = transcript.sample_millis + transcript.exec_millis;
        Duration::from_millis(before + record.sample_millis + record.exec_millis)
    }

    /// Runs a command of the policy; nothing if its sandbox did not survive it, by its own fault.
    async fn run(
        &self,
        plan: &Plan,
        sandbox: &Sandbox,
        transcript: &Transcript,
        record: &mut TurnRecord,
        command: &str,
    ) -> Result<Option<(String, ExecSummary)>, Stop> {
        let agent = &self.settings.agent;
        let left = agent.episode_timeout.saturating_sub(self.spent(transcript, record));
        let timeout = agent.command_timeout.min(left + Duration::from_secs(1));
        let request = ExecRequest {
            // Another command of the same turn is another command: what an earlier driver left unrecorded is not mistaken for it.
            id: format!("t{}-{}", record.turn, &sha256_hex(command.as_bytes())[..12]),
            argv: vec!["/bin/bash".into(), "-c".into(), command.to_owned()],
            cwd: Some(agent.repository.clone()),
            env: plan.task.env.clone().into_iter().collect(),
            stdin: None,
            timeout_seconds: timeout.as_secs().max(1),
            max_output_bytes: Some(agent.output_bytes as _),
        };
        let began = Instant::now();
        let ran = sandbox.exec(&request).await;
        let took = millis(began.elapsed());
        let result = match ran {
            Ok(result) => result,
            Err(error) if error.is_workloads_fault() => {
                record.exec_millis = took;
                return Ok(None);
            }
            // A command that cannot even be asked for, such as one with a zero byte in it, has failed like any other.
            Err(SandboxError::Refused { message, fault, .. }) if fault != Whose::Infrastructure => not_run(message),
            Err(error) => return Err(error.into()),
        };
        record.exec_millis = result.duration_millis;
        record.waited_millis += took.saturating_sub(result.duration_millis);
        let summary = ExecSummary {
            exec: request.id,
            exit_code: result.exit_code,
            signal: result.signal,
            timed_out: result.timed_out,
            killed: result.killed.map(|killed| format!("{killed:?}")),
            output_bytes: result.output.len() as u64,
            omitted_bytes: result.omitted_bytes,
            duration_millis: result.duration_millis,
        };
        Ok(Some((result.output, summary)))
    }

    /// The patch; nothing where the policy left no repository that one could be taken from.
    async fn take_patch(&self, sandbox: &Sandbox, base: &str) -> Result<Option<Bytes>, Stop> {
        let argv = patch::take(&self.settings.agent.repository, base);
        let taken = match sandbox.exec(&self.own_command("patch", argv, PATCH_TIMEOUT)).await {
            Ok(result) if result.exit_code == Some(0) => sandbox.get_file(patch::PATCH_FILE).await,
            Ok(result) => {
                tracing::info!(lease = sandbox.id(), exit = ?result.exit_code, output = %result.output, "no patch to take");
                return Ok(None);
            }
            Err(error) => Err(error),
        };
        match taken {
            Ok(patch) if patch.len() <= patch::MAX_PATCH => Ok(Some(patch)),
            Ok(_) | Err(SandboxError::NoSuchFile { .. }) => Ok(None),
            Err(error) if error.is_workloads_fault() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn own_command(&self, id: &str, argv: Vec<String>, timeout_seconds: u64) -> ExecRequest {
        ExecRequest {
            id: format!("{id}-{}", self.writer.attempt),
            argv,
            cwd: None,
            env: Default::default(),
            stdin: None,
            timeout_seconds,
            max_output_bytes: Some(64 << 10),
        }
    }

    async fn read_turns(&self, dir: &str, transcript: &mut Transcript) -> Result<(), Stop> {
        let (files, _) = self.store.names_in(&paths::turns(dir)).await?;
        for number in 0..files.len() as u32 {
            let record: TurnRecord = self.store.read(&paths::turn(dir, number)).await?;
            transcript.push(&record)?;
        }
        Ok(())
    }

    /// The patch an earlier driver stored; the inner option as [`Left`] has it.
    async fn stored_patch(&self, dir: &str) -> Result<Option<Option<Bytes>>, DriverError> {
        let there = self.store.exists(&paths::patch(dir)).await?;
        if there {
            return Ok(Some(Some(self.store.bytes(&paths::patch(dir)).await?)));
        }
        // A trajectory is written behind its patch: where it stands alone there was none to take.
        Ok(self.store.exists(&paths::trajectory(dir)).await?.then_some(None))
    }

    async fn conclude(&self, plan: &Plan, dir: &str, number: u32, left: Left) -> Result<EpisodeMeta, DriverError> {
        let Left { patch, transcript } = left;
        let end = transcript.end.unwrap_or(EpisodeEnd::Aborted);
        self.grading.send_modify(|grading| *grading += 1);
        let graded = self.graded(plan, dir, end, patch.as_ref()).await;
        self.grading.send_modify(|grading| *grading -= 1);
        let graded = graded?;
        if let Some(log) = &graded.log {
            self.store.create_bytes(&paths::grade_log(dir), log.clone()).await?;
        }
        self.write_meta(plan, dir, number, &transcript, patch.as_ref(), graded)
            .await
    }

    async fn graded(
        &self,
        plan: &Plan,
        dir: &str,
        end: EpisodeEnd,
        patch: Option<&Bytes>,
    ) -> Result<Graded, DriverError> {
        if let Some(patch) = patch {
            let log = paths::grade_log(dir);
            if self.store.exists(&log).await? {
                let log = self.store.bytes(&log).await?;
                let again = self
                    .grader
                    .judge_again(&plan.task, patch, &String::from_utf8_lossy(&log))
                    .await?;
                if let Some(graded) = again {
                    return Ok(graded);
                }
            }
        }
        self.grader.grade(&plan.task, dir, end, patch).await
    }

    async fn write_trajectory(
        &self,
        plan: &Plan,
        dir: &str,
        number: u32,
        transcript: &Transcript,
    ) -> Result<(), DriverError> {
        let end = transcript.end.unwrap_or(EpisodeEnd::Aborted);
        let sampling = &self.settings.sampling;
        let record = EpisodeRecord {
            schema: SCHEMA,
            writer: self.writer.clone(),
            run: self.settings.uid.clone(),
            key: plan.key.clone(),
            attempt: number,
            task: plan.task.index,
            image: plan.task.image.clone(),
            end,
            turns: transcript.turns,
            messages: transcript.messages.clone(),
            temperature: sampling.temperature as f32,
            top_p: sampling.top_p as f32,
            top_k: sampling.top_k,
            prompt_length: transcript.prompt_length,
            tokens: transcript.tokens.clone(),
            mask: transcript.mask.clone(),
            logprobs: transcript.logprobs.clone(),
            weights: transcript.weights.clone(),
            truncated: end.is_truncation(),
            started_at: transcript.started_at.unwrap_or_else(now),
            finished_at: now(),
        };
        self.store.create(&paths::trajectory(dir), &record).await?;
        Ok(())
    }

    async fn write_meta(
        &self,
        plan: &Plan,
        dir: &str,
        number: u32,
        transcript: &Transcript,
        patch: Option<&Bytes>,
        graded: Graded,
    ) -> Result<EpisodeMeta, DriverError> {
        let end = transcript.end.unwrap_or(EpisodeEnd::Aborted);
        let meta = EpisodeMeta {
            schema: SCHEMA,
            writer: self.writer.clone(),
            run: self.settings.uid.clone(),
            key: plan.key.clone(),
            attempt: number,
            reward: self.reward(&graded.outcome),
            outcome: graded.outcome,
            end,
            turns: transcript.turns,
            tokens: transcript.tokens.len(),
            sampled_tokens: transcript.sampled(),
            format_errors: transcript.format_errors,
            truncated: end.is_truncation(),
            weights: transcript.versions(),
            patch_bytes: patch.map_or(0, Bytes::len),
            patch_sha256: patch.map(|p| sha256_hex(p)),
            grade: graded.record,
            message: graded.message,
            agent_millis: transcript.sample_millis + transcript.exec_millis,
            grade_millis: millis(graded.took),
            waited_millis: transcript.waited_millis,
            at: now(),
        };
        match self.store.create(&paths::meta(dir), &meta).await? {
            grpo_records::Created::Written { .. } => Ok(meta),
            // Somebody was faster: there is one verdict per episode, and that is theirs.
            grpo_records::Created::Existed => Ok(self.store.read(&paths::meta(dir)).await?),
        }
    }

    fn reward(&self, outcome: &Outcome) -> Option<f32> {
        match outcome {
            Outcome::Resolved => Some(self.settings.reward.resolved),
            Outcome::Unresolved => Some(self.settings.reward.unresolved),
            Outcome::Void { .. } => None,
        }
    }

    /// The same for a restarted driver, so that it finds the lease again; another for every try and for other weights.
    fn lease_id(&self, dir: &str) -> String {
        let name = format!("{} {dir} {}", self.settings.uid, *self.wanted.borrow());
        format!("a-{}", &sha256_hex(name.as_bytes())[..24])
    }
}

fn not_run(message: String) -> ExecResult {
    ExecResult {
        id: String::new(),
        exit_code: Some(126),
        signal: None,
        timed_out: false,
        output: format!("the command cannot be run: {message}"),
        omitted_bytes: 0,
        duration_millis: 0,
        killed: None,
    }
}

fn finish_word(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Abort => "abort",
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}
