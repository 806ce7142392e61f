//! One turn: sample, act, observe, record.

use super::{Abort, EpisodePlan, Episodes, millis, now};
use crate::agent::Observation;
use crate::engine::{Ask, Sampled};
use crate::sandbox::{Sandbox, SandboxError};
use crate::seeds;
use crate::trajectory::Trajectory;
use grpo_engine_protocol::FinishReason;
use grpo_records::store::sha256_hex;
use grpo_records::{EpisodeEnd, EpisodeScope, ExecSummary, SCHEMA, TurnAction, TurnRecord, VoidReason, paths};
use grpo_sandbox_protocol::{ExecRequest, ExecResult, FaultOrigin as Whose};
use std::time::{Duration, Instant};

impl Episodes {
    /// One turn: sample, act, observe, record.
    pub(super) async fn turn(
        &self,
        plan: &EpisodePlan,
        dir: &str,
        sandbox: &Sandbox,
        trajectory: &mut Trajectory,
    ) -> Result<(), Abort> {
        let number = trajectory.turns;
        let prompt = if number == 0 {
            self.template.prompt(&self.opening(plan)?)?
        } else {
            Vec::new()
        };
        let given: Vec<u32> = [&trajectory.tokens[..], &prompt[..]].concat();
        let agent = &self.settings.agent;
        if given.len() >= agent.context_tokens {
            return Err(Abort::Void {
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
            &plan.key.scope,
            &plan.key.instance,
            plan.key.group,
            plan.key.sample,
            number,
        );
        let prompt_length = given.len();
        let sampled = self.sample(plan, given, seed, trajectory.experts_to()).await?;
        let answer = sampled.answer;
        let experts = match answer.experts {
            Some(experts) => Some(self.keep_experts(dir, number, experts).await?),
            None => None,
        };
        let mut record = TurnRecord {
            schema: SCHEMA,
            writer: self.writer.clone(),
            episode: plan.key.name(),
            turn: number,
            lease: sandbox.id().to_owned(),
            prompt_length,
            prompt,
            seed,
            text: self.template.text(&answer.ids)?,
            sampled: answer.ids,
            logprobs: answer.logprobs,
            weights: sampled.weights,
            finish: finish_word(answer.finish).to_owned(),
            experts,
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
        if answer.finish == FinishReason::Stop {
            record.action = self.agent.parse(&record.text);
        }
        self.respond(plan, sandbox, trajectory, &mut record).await?;
        trajectory.push(&record)?;
        self.store.create(&paths::turn(dir, number), &record).await?;
        Ok(())
    }

    /// `known`: up to where it is recorded which experts the episode's tokens went through.
    async fn sample(&self, plan: &EpisodePlan, prompt: Vec<u32>, seed: u64, known: usize) -> Result<Sampled, Abort> {
        let sampling = &plan.sampling;
        // Nobody trains on an evaluation.
        let trained_on = matches!(plan.key.scope, EpisodeScope::Iteration { .. });
        let replay = self.settings.replay.as_ref().filter(|_| trained_on);
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
            experts: replay.map(|mixture| (mixture.clone(), known)),
        };
        Ok(self.engines.sample(&ask, &self.wanted).await?)
    }

    /// Runs what was asked for, and fills in what comes back or why this was the last turn.
    pub(super) async fn respond(
        &self,
        plan: &EpisodePlan,
        sandbox: &Sandbox,
        trajectory: &Trajectory,
        record: &mut TurnRecord,
    ) -> Result<(), Abort> {
        let agent = &self.settings.agent;
        let turns_left = agent.turns.saturating_sub(record.turn + 1);
        let used = record.prompt_length + record.sampled.len();
        if record.finish == "length" && used >= agent.context_tokens {
            record.end = Some(EpisodeEnd::ContextFull);
            return Ok(());
        }
        let ran = match self.agent.command(&record.action).map(str::to_owned) {
            Some(command) => match self.run(plan, sandbox, trajectory, record, &command).await? {
                None => {
                    record.end = Some(EpisodeEnd::SandboxExhausted);
                    return Ok(());
                }
                ran => ran,
            },
            None => None,
        };
        let outcome = ran.as_ref().map(|(output, exec)| (output.as_str(), exec));
        let Observation { text, submitted } = self.agent.observe(&record.action, outcome, turns_left)?;
        record.exec = ran.map(|(_, exec)| exec);
        if submitted {
            record.end = Some(EpisodeEnd::Submitted);
            record.observation_text = text;
            return Ok(());
        }
        let stop = record
            .sampled
            .last()
            .copied()
            .filter(|id| self.template.stop_ids().contains(id));
        let observation = self.template.observation(stop, &text)?;
        record.end = if turns_left == 0 {
            Some(EpisodeEnd::TurnLimit)
        } else if self.spent(trajectory, record) >= agent.episode_timeout {
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
    pub(super) fn spent(&self, trajectory: &Trajectory, record: &TurnRecord) -> Duration {
        let before = trajectory.sample_millis + trajectory.exec_millis;
        Duration::from_millis(before + record.sample_millis + record.exec_millis)
    }

    /// Runs a command of the policy; nothing if its sandbox did not survive it, by its own fault.
    pub(super) async fn run(
        &self,
        plan: &EpisodePlan,
        sandbox: &Sandbox,
        trajectory: &Trajectory,
        record: &mut TurnRecord,
        command: &str,
    ) -> Result<Option<(String, ExecSummary)>, Abort> {
        let agent = &self.settings.agent;
        let left = agent.episode_timeout.saturating_sub(self.spent(trajectory, record));
        let timeout = agent.command_timeout.min(left + Duration::from_secs(1));
        let request = ExecRequest {
            // Another command of the same turn is another command: what an earlier driver left unrecorded is not
            // mistaken for it.
            id: format!("t{}-{}", record.turn, &sha256_hex(command.as_bytes())[..12]),
            argv: vec!["/bin/bash".into(), "-c".into(), command.to_owned()],
            cwd: Some(plan.task.environment.directory.clone()),
            env: plan.task.environment.variables.clone().into_iter().collect(),
            user: None,
            activate: None,
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
