//! The interface of an episode to the agent that works on it.
//!
//! An agent samples, runs commands and records turns here. A turn exists once its record is durable.

use super::abort::Abort;
use super::judging::Judging;
use super::once;
use super::plan::EpisodePlan;
use crate::agent::commands::CommandSurroundings;
use crate::agent::limits::AgentLimits;
use crate::agent::observation::Observation;
use crate::engine::text::Conversation;
use crate::engine::{Answered, Ask, Engines, Experts};
use crate::experts::Mixture;
use crate::recording::sessions::Sessions;
use crate::replicas::Home;
use crate::sandbox::Sandbox;
use crate::traces::step;
use crate::trajectory::{Trajectory, experts_to};
use grpo_chat_template::ChatTemplate;
use grpo_engine_protocol::TokenIds;
use grpo_records::store::sha256_hex;
use grpo_records::{EpisodeScope, ExecSummary, ExpertsSpan, RunStore, SCHEMA, TurnAction, TurnRecord, Writer, paths};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tracing::Instrument;

/// One attempt of an episode, with what its agent needs.
pub struct LiveEpisode<'a> {
    pub plan: &'a EpisodePlan,
    /// The folder of the attempt.
    pub dir: &'a str,
    pub limits: &'a AgentLimits,
    pub commands: &'a CommandSurroundings,
    pub template: &'a Arc<ChatTemplate>,
    /// The turns so far.
    pub trajectory: &'a mut Trajectory,
    pub(super) judging: &'a mut Judging,
    pub sandbox: &'a Sandbox,
    /// The recording endpoint for command-line agents, and the driver's URL for them.
    pub sessions: &'a Sessions,
    pub driver: &'a str,
    pub(super) store: &'a RunStore,
    pub(super) writer: &'a Writer,
    pub(super) engines: &'a Engines,
    pub(super) home: Home,
    /// The first turn of this driver.
    pub(super) first_turn: u32,
    /// The mixture of experts whose choices are recorded, for router replay.
    pub(super) replay: Option<&'a Arc<Mixture>>,
}

/// A command that ran to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    pub output: String,
    pub exec: ExecSummary,
}

/// The result of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acted {
    /// There was nothing to run.
    Nothing,
    Ran(Ran),
    /// The agent carried it out itself, with this observation for the policy.
    Told(Observation),
    /// The sandbox is gone, by the policy's own fault.
    Exhausted,
}

impl LiveEpisode<'_> {
    /// Samples an answer to the prompt, for this row, within the room of context and episode. `conversation`: the
    /// prompt as messages.
    pub async fn sample(
        &self,
        row: usize,
        prompt: TokenIds<'_>,
        seed: u64,
        conversation: Conversation<'_>,
    ) -> Result<Answered, Abort> {
        let most = (u32::MAX, Duration::ZERO);
        self.sample_at_most(most, row, prompt, seed, conversation).await
    }

    /// Samples an answer of at most `most` tokens. `unrecorded`: the policy's own time since its last turn.
    pub async fn sample_at_most(
        &self,
        (most, unrecorded): (u32, Duration),
        row: usize,
        prompt: TokenIds<'_>,
        seed: u64,
        conversation: Conversation<'_>,
    ) -> Result<Answered, Abort> {
        let sampling = &self.plan.sampling;
        // An evaluation is not trained on.
        let trained_on = matches!(self.plan.key.scope, EpisodeScope::Iteration { .. });
        let replay = self.replay.filter(|_| trained_on);
        let room = self.limits.room(prompt.len(), self.trajectory.grown());
        let recorded = Duration::from_millis(self.trajectory.sample_millis + self.trajectory.exec_millis);
        let spent = recorded + unrecorded;
        let ask = Ask {
            max_tokens: sampling
                .max_tokens_per_call
                .min(most)
                .min(u32::try_from(room).unwrap_or(u32::MAX)),
            prompt,
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k,
            penalties: sampling.penalties,
            seed,
            stop_token_ids: self.template.stop_ids(),
            time_left: self.limits.episode_timeout.saturating_sub(spent),
            experts: replay.map(|mixture| (mixture.clone(), self.trajectory.rows.get(row).map_or(0, experts_to))),
            conversation: Some(conversation).filter(|_| !trained_on),
        };
        let sampling = self.engines.sample(&ask, &self.plan.weights, &self.home);
        Ok(sampling.instrument(step!("sample")).await?)
    }

    /// An empty turn of this attempt.
    pub fn blank_turn(&self, number: u32) -> TurnRecord {
        TurnRecord {
            schema: SCHEMA,
            writer: self.writer.clone(),
            episode: self.plan.key.name(),
            turn: number,
            lease: self.sandbox.id().to_owned(),
            omitted: None,
            opening: Vec::new(),
            row: 0,
            prompt_length: 0,
            sampled_length: 0,
            observation_length: 0,
            prompt: Vec::new(),
            seed: 0,
            sampled: Vec::new(),
            logprobs: Vec::new(),
            weights: String::new(),
            finish: String::new(),
            experts: None,
            text: String::new(),
            request: None,
            chat: None,
            action: TurnAction::truncated(),
            exec: None,
            observation: Vec::new(),
            observation_text: String::new(),
            memory: Value::Null,
            end: None,
            sample_millis: 0,
            exec_millis: 0,
            waited_millis: 0,
            at: now(),
        }
    }

    /// Makes an answer durable before its action is carried out: a driver restarted in between repeats this action,
    /// which the sandbox knows, instead of running another one on top of it.
    pub async fn intend(&self, turn: &TurnRecord) -> Result<(), Abort> {
        let path = paths::intent(self.dir, turn.turn, self.sandbox.id());
        Ok(once::create(self.store, self.writer, &path, turn).await?)
    }

    /// The turn that an earlier driver was about to carry out in this sandbox. Only the first turn of a driver can have
    /// one.
    pub async fn intended(&self, number: u32) -> Result<Option<TurnRecord>, Abort> {
        if number == 0 || number != self.first_turn {
            return Ok(None);
        }
        let path = paths::intent(self.dir, number, self.sandbox.id());
        let turn = self.store.read_if_there::<TurnRecord>(&path).await?;
        Ok(turn.map(|turn| TurnRecord {
            writer: self.writer.clone(),
            ..turn
        }))
    }

    /// Makes a turn durable and part of the trajectory.
    pub async fn record(&mut self, mut turn: TurnRecord) -> Result<(), Abort> {
        turn.sampled_length = turn.sampled.len();
        turn.observation_length = turn.observation.len();
        self.trajectory.push(&turn)?;
        once::create(self.store, self.writer, &paths::turn(self.dir, turn.turn), &turn).await?;
        Ok(self.judging.begin(&self.trajectory.turns)?)
    }

    /// Writes a turn's experts to a file, durable before the record that names it. The file is named by its content: an
    /// earlier driver that died before the record may have got another answer.
    pub async fn keep_experts(&self, turn: u32, experts: Experts) -> Result<ExpertsSpan, Abort> {
        let Experts { from, to, bytes } = experts;
        let sha256 = sha256_hex(&bytes);
        let file = paths::experts(self.dir, turn, &sha256);
        self.store.create_bytes(&file, bytes).await?;
        Ok(ExpertsSpan { from, to, file, sha256 })
    }

    /// The policy's own time so far, without waits for the infrastructure.
    pub fn spent(&self, turn: &TurnRecord) -> Duration {
        let before = self.trajectory.sample_millis + self.trajectory.exec_millis;
        Duration::from_millis(before + turn.sample_millis + turn.exec_millis)
    }
}

/// Milliseconds, as records hold them.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Seconds since 1970, as records hold them.
pub(super) fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}
