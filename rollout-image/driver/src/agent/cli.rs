//! Command-line agents: run unchanged in the sandbox, from the image at `/opt/agent`.
//!
//! The agent is one command with a fixed id, so a restarted driver finds it again. Its model is a port of the sandbox
//! that leads to the recording endpoint ([`crate::recording`]), and nothing in its environment grants anything. The
//! episode ends when the process ends, when the endpoint meets a limit, or when its time is up. Then the process and
//! everything that it started are killed, and the patch is graded as always. An agent that fails is a result, not a
//! fault of the infrastructure, with two exceptions: an attempt whose agent ended while its model could not be reached
//! (no driver, gateway or engine) is abandoned, and one whose agent ended before the first answer of its model is void.
//! The policy had no part in it.

pub mod presets;

use self::presets::{CommandLine, Words};
use super::Agent;
use super::limits::AgentLimits;
use super::turns::unusable;
use crate::episode::abort::Abort;
use crate::episode::live::LiveEpisode;
use crate::fault::TerminalFault;
use crate::recording::recorder::Recorder;
use crate::recording::sessions::{Session, Wanted};
use crate::sandbox::{RelayOutages, SandboxError};
use crate::tasks::Task;
use futures::future::BoxFuture;
use grpo_chat_template::ChatTemplate;
use grpo_contracts::reason::Reason;
use grpo_crds::agent::CliAgent;
use grpo_records::{AgentProcess, EpisodeEnd, VoidReason};
use grpo_sandbox_protocol::{ExecRequest, ExecResult, FaultOrigin as Whose, Killed, RelayRequest};
use minijinja::{Environment, UndefinedBehavior, context};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;
use tokio::time::Instant;

/// The port in the sandbox that the agent takes for its model's server.
const PORT: u16 = 48271;
/// The model's name for agents, and the key that they insist on.
const MODEL: &str = "policy";
const KEY: &str = "none";
/// The id of the agent's command.
const COMMAND: &str = "agent";
/// Added to the episode's own time, for waiting; the driver ends the agent before.
const ALLOWANCE: Duration = Duration::from_secs(1800);
/// The longest time of a command, in seconds.
const LONGEST: u64 = 86400;
/// The longest output of the agent that is kept, in bytes.
pub const LOG_BYTES: u64 = 64 << 10;
/// The characters of its end that a message shows.
const LOG_SHOWN: usize = 500;
/// Clients wait so long for an answer. After a longer wait for an engine, the end of the agent may be the engine's
/// fault.
const PATIENT_FOR: Duration = Duration::from_secs(30);
/// How long a killed agent may take to end.
const GONE_WITHIN: Duration = Duration::from_secs(60);
/// The addresses that an agent reaches without a proxy, and the variables that say so.
const LOOPBACK: &str = "127.0.0.1,localhost";
const NO_PROXY: [&str; 2] = ["no_proxy", "NO_PROXY"];
/// The default task template.
const TASK: &str = "{{ task.problem_statement }}";

/// A command-line agent.
pub struct CliLoop {
    cli: CliAgent,
    environment: Environment<'static>,
    limits: AgentLimits,
    /// As in [`grpo_chat_template::PromptShape`].
    thinking: bool,
}

impl CliLoop {
    /// Compiles the templates; an error names the wrong one.
    pub fn new(cli: &CliAgent, limits: &AgentLimits, thinking: bool) -> Result<Self, minijinja::Error> {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.add_global("limits", minijinja::Value::from_serialize(limits.shown()));
        environment.add_global("model", MODEL);
        environment.add_global("baseUrl", base_url());
        environment.add_template_owned("task", cli.task.clone().unwrap_or_else(|| TASK.to_owned()))?;
        if let Some(system) = &cli.system {
            environment.add_template_owned("system", system.clone())?;
        }
        for (at, word) in cli.command.iter().flatten().enumerate() {
            environment.add_template_owned(format!("command[{at}]"), word.clone())?;
        }
        Ok(Self {
            cli: cli.clone(),
            environment,
            limits: limits.clone(),
            thinking,
        })
    }

    /// The command for one task. `answer_tokens`: the run's limit of one answer.
    fn command_line(&self, task: &Task, answer_tokens: u32) -> Result<CommandLine, minijinja::Error> {
        let task = task.variables();
        let render = |name: &str| self.environment.get_template(name)?.render(context! { task });
        let prompt = render("task")?;
        let system = self.cli.system.as_ref().map(|_| render("system")).transpose()?;
        if let Some(preset) = self.cli.preset {
            let words = Words {
                system: system.as_deref(),
                prompt: &prompt,
            };
            return Ok(presets::command_line(
                preset,
                &self.cli,
                words,
                &self.limits,
                answer_tokens,
            ));
        }
        let words = context! { task, prompt, system => system.unwrap_or_default() };
        let command = self.cli.command.iter().flatten().enumerate();
        let argv = command.map(|(at, _)| self.environment.get_template(&format!("command[{at}]"))?.render(&words));
        Ok(CommandLine {
            argv: argv.collect::<Result<_, _>>()?,
            env: Vec::new(),
            stdin: prompt.into_bytes(),
        })
    }

    /// The request is the same for every driver of an attempt: the sandbox answers a repeated one with the result of
    /// the first.
    fn request(&self, episode: &LiveEpisode<'_>) -> Result<ExecRequest, TerminalFault> {
        let task = &episode.plan.task;
        let line = self
            .command_line(task, episode.plan.sampling.max_tokens_per_call)
            .map_err(unusable)?;
        let mut env = episode.commands.environment(&task.environment);
        env.extend(line.env);
        env.extend([
            ("OPENAI_BASE_URL".to_owned(), base_url()),
            ("OPENAI_API_BASE".to_owned(), base_url()),
            ("ANTHROPIC_BASE_URL".to_owned(), format!("http://127.0.0.1:{PORT}")),
            ("GOOGLE_GEMINI_BASE_URL".to_owned(), format!("http://127.0.0.1:{PORT}")),
            ("OPENAI_API_KEY".to_owned(), KEY.to_owned()),
            ("ANTHROPIC_API_KEY".to_owned(), KEY.to_owned()),
            ("GEMINI_API_KEY".to_owned(), KEY.to_owned()),
            ("OPENAI_MODEL".to_owned(), MODEL.to_owned()),
        ]);
        let given = self.cli.env.iter();
        env.extend(given.map(|variable| (variable.name.clone(), variable.value.clone())));
        bypass_proxies(&mut env);
        let timeout = (self.limits.episode_timeout + ALLOWANCE).as_secs();
        Ok(ExecRequest {
            id: COMMAND.to_owned(),
            argv: line.argv,
            cwd: Some(task.environment.directory.clone()),
            env,
            user: None,
            activate: task.environment.activation.clone(),
            stdin: Some(String::from_utf8_lossy(&line.stdin).into_owned()),
            timeout_seconds: timeout.clamp(1, LONGEST),
            max_output_bytes: Some(LOG_BYTES),
        })
    }

    async fn follow(&self, episode: &mut LiveEpisode<'_>) -> Result<EpisodeEnd, Abort> {
        let sandbox = episode.sandbox;
        let recorder = Recorder::of(self.cli.call_format, self.thinking, &episode.trajectory.turns)?;
        let resumed = episode.trajectory.next_turn() > 0;
        let mut session = episode.sessions.open(sandbox.id(), MODEL);
        let relay = RelayRequest {
            port: PORT,
            to: format!("{}{}", episode.driver.trim_end_matches('/'), session.path()),
        };
        let request = self.request(episode)?;
        if let Err(error) = sandbox.relay(&relay).await {
            return exhausted(error);
        }
        session.led();
        let mut agent = Running {
            process: Box::pin(sandbox.exec(&request)),
            ended: None,
        };
        let outages = RelayOutages::default();
        let served = tokio::select! {
            served = agent.serve(recorder, &mut session, episode, &outages) => served,
            never = sandbox.keep_relay(&relay, &outages) => match never {},
        };
        // After an error the session is only dropped: the next driver continues the episode.
        let Served {
            end,
            asked,
            cut_off,
            replays,
        } = served?;
        session.over();
        if agent.ended.is_none() {
            if let Err(error) = sandbox.kill(COMMAND).await {
                tracing::warn!(lease = %sandbox.id(), %error, "ending an agent");
            }
            agent.ended = tokio::time::timeout(GONE_WITHIN, agent.process.as_mut()).await.ok();
        }
        // It may have used up its attempts at a request while nothing answered. Its last answer does not tell: for some
        // agents every answer is text, and others end after a call.
        let unseen = end.is_none() && (cut_off || resumed && !asked);
        let result = match agent.ended {
            Some(Ok(result)) if unseen => {
                tracing::info!(
                    lease = %sandbox.id(), exit = ?result.exit_code, log = %result.output,
                    "an agent ended while its model could not be reached; the attempt is abandoned"
                );
                return Err(Abort::Abandoned);
            }
            Some(Ok(result)) => result,
            Some(Err(error)) => return not_run(error, episode, end, unseen),
            // Whether the agent has ended is unknown; taking the patch shows whether the sandbox still exists.
            None => return Ok(end.unwrap_or(EpisodeEnd::EpisodeTimeout)),
        };
        let timed_out = result.killed == Some(Killed::Timeout);
        episode.trajectory.process = Some(recorded(result, replays));
        Ok(end.unwrap_or(match timed_out {
            true => EpisodeEnd::EpisodeTimeout,
            false => EpisodeEnd::Submitted,
        }))
    }
}

impl Agent for CliLoop {
    fn first_prompt(&self, _: &ChatTemplate, _: &Task) -> Result<Option<usize>, TerminalFault> {
        Ok(None)
    }

    fn rehearse(&self, _: &ChatTemplate, _: &AgentLimits, tasks: &[Task]) -> Result<(), TerminalFault> {
        for task in tasks {
            self.command_line(task, 1).map_err(|error| {
                let message = format!("rendering the command of {}: {error:#}", task.instance);
                TerminalFault::new(Reason::PromptUnusable, message)
            })?;
        }
        Ok(())
    }

    fn run<'a>(&'a self, episode: &'a mut LiveEpisode<'_>) -> BoxFuture<'a, Result<EpisodeEnd, Abort>> {
        Box::pin(async move {
            match episode.trajectory.end {
                Some(end) => {
                    // An earlier driver recorded the last answer; the agent may still run.
                    episode.sandbox.kill(COMMAND).await.or_else(tolerated)?;
                    Ok(end)
                }
                None => {
                    let ended = self.follow(episode).await;
                    match ended {
                        Ok(end) if is_unanswered(episode) => Err(unanswered(end, episode.trajectory.process.as_ref())),
                        ended => ended,
                    }
                }
            }
        })
    }
}

/// How the requests of an agent ended.
struct Served {
    /// The episode's end, unless the process ended by itself.
    end: Option<EpisodeEnd>,
    /// It asked this driver for an answer.
    asked: bool,
    /// It ended by itself, and since its last answer its model had been out of reach.
    cut_off: bool,
    replays: u32,
}

/// A running agent.
struct Running<P> {
    process: Pin<Box<P>>,
    /// Its result, once it has ended.
    ended: Option<Result<ExecResult, SandboxError>>,
}

impl<P: Future<Output = Result<ExecResult, SandboxError>>> Running<P> {
    /// Answers requests until the episode or the process ends. An answer that is being sampled is sampled to its end.
    async fn serve(
        &mut self,
        mut recorder: Recorder,
        session: &mut Session,
        episode: &mut LiveEpisode<'_>,
        outages: &RelayOutages,
    ) -> Result<Served, Abort> {
        let mut own = OwnTime::begin(outages);
        let mut answered = false;
        let served = |end, asked, cut_off, recorder: &Recorder| Served {
            end,
            asked,
            cut_off,
            replays: recorder.replays(),
        };
        loop {
            let turns = episode.trajectory.next_turn();
            let spent = Duration::from_millis(episode.trajectory.sample_millis + episode.trajectory.exec_millis);
            let left = episode.limits.episode_timeout.saturating_sub(spent);
            let asked = tokio::select! {
                biased;
                ended = self.process.as_mut() => {
                    self.ended = Some(ended);
                    return Ok(served(None, answered, own.was_interrupted(), &recorder));
                }
                () = own.reaches(left) => {
                    return Ok(served(Some(EpisodeEnd::EpisodeTimeout), answered, false, &recorder));
                }
                asked = session.next() => asked,
            };
            let is_answer = matches!(asked.wanted, Wanted::Answer(..));
            let end = {
                let work = recorder.answer(episode, asked, own.elapsed());
                tokio::pin!(work);
                loop {
                    tokio::select! {
                        end = &mut work => break end?,
                        ended = self.process.as_mut(), if self.ended.is_none() => self.ended = Some(ended),
                    }
                }
            };
            answered |= is_answer;
            let new = (episode.trajectory.turns.last()).filter(|_| episode.trajectory.next_turn() > turns);
            if end.is_some() || self.ended.is_some() {
                let waited = new.map_or(0, |turn| turn.waited_millis);
                let cut_off = own.was_interrupted() || Duration::from_millis(waited) >= PATIENT_FOR;
                return Ok(served(end, answered, cut_off, &recorder));
            }
            // A replayed answer has no turn: the agent's time runs on.
            if new.is_some() {
                own = OwnTime::begin(outages);
            }
        }
    }
}

/// The time of an agent since its last answer, without the outages of its relay.
struct OwnTime<'a> {
    outages: &'a RelayOutages,
    since: Instant,
    /// The outages before.
    before: Duration,
}

impl<'a> OwnTime<'a> {
    fn begin(outages: &'a RelayOutages) -> Self {
        Self {
            outages,
            since: Instant::now(),
            before: outages.lost(),
        }
    }

    fn lost(&self) -> Duration {
        self.outages.lost().saturating_sub(self.before)
    }

    fn was_interrupted(&self) -> bool {
        self.lost() > Duration::ZERO
    }

    fn elapsed(&self) -> Duration {
        self.since.elapsed().saturating_sub(self.lost())
    }

    /// Waits until so much time has passed.
    async fn reaches(&self, limit: Duration) {
        let mut rest = limit.saturating_sub(self.elapsed());
        loop {
            tokio::time::sleep(rest).await;
            let own = self.elapsed();
            if own >= limit {
                return;
            }
            // It stands still during an outage.
            rest = (limit - own).max(Duration::from_secs(1));
        }
    }
}

fn base_url() -> String {
    format!("http://127.0.0.1:{PORT}/v1")
}

/// The endpoint is on loopback. With a proxy of the run, the task or its image, agents would not find it.
fn bypass_proxies(env: &mut BTreeMap<String, String>) {
    let [lower, upper] = NO_PROXY.map(|name| env.get(name).filter(|hosts| !hosts.is_empty()).cloned());
    // Programs differ in which of the two they read: each keeps its own hosts.
    let given = [lower.clone().or_else(|| upper.clone()), upper.or(lower)];
    let hosts = given.map(|given| match given {
        None => LOOPBACK.to_owned(),
        // All hosts, for most programs only if it is the whole value.
        Some(all) if all.trim() == "*" => all,
        Some(given) => format!("{given},{LOOPBACK}"),
    });
    env.extend(NO_PROXY.map(str::to_owned).into_iter().zip(hosts));
}

/// The end of an episode whose sandbox the policy exhausted; any other error aborts the attempt.
fn exhausted(error: SandboxError) -> Result<EpisodeEnd, Abort> {
    match error.is_workloads_fault() {
        true => Ok(EpisodeEnd::SandboxExhausted),
        false => Err(error.into()),
    }
}

/// The end of an episode whose agent's command has no result. `unseen`: it ended while nothing answered it.
fn not_run(
    error: SandboxError,
    episode: &LiveEpisode<'_>,
    end: Option<EpisodeEnd>,
    unseen: bool,
) -> Result<EpisodeEnd, Abort> {
    match error {
        SandboxError::Refused { message, fault, .. } if fault != Whose::Infrastructure => {
            match is_unanswered(episode) {
                true => Err(Abort::Void {
                    reason: VoidReason::TaskBroken,
                    message: format!("the agent's command cannot be run: {message}"),
                }),
                false if unseen => Err(Abort::Abandoned),
                false => Ok(end.unwrap_or(EpisodeEnd::Submitted)),
            }
        }
        error => exhausted(error),
    }
}

/// Whether the policy had no part in the attempt. An answer that ended with the episode's time has no turn, but it was
/// sampled.
fn is_unanswered(episode: &LiveEpisode<'_>) -> bool {
    episode.trajectory.turns.is_empty() && episode.trajectory.sample_millis == 0
}

/// The void of an agent that its model never answered: its image, its settings or the task is wrong, and a reward of 0
/// would be learnt from.
fn unanswered(end: EpisodeEnd, process: Option<&AgentProcess>) -> Abort {
    let code = process.and_then(|process| process.exit_code);
    let how = match (end, code) {
        (EpisodeEnd::ContextFull | EpisodeEnd::TokenLimit, _) => {
            "its first prompt is too long: raise agent.limits, or leave the task out (tasks.train.select.exclude)"
                .to_owned()
        }
        (EpisodeEnd::Submitted, Some(code)) => {
            format!("it ended with exit code {code}: check the agent's image, command and settings")
        }
        (end, _) => format!("the episode ended ({end:?}): check the agent's image, command and settings"),
    };
    let log = process.map_or("", |process| process.log.trim_end());
    let from = log.char_indices().nth_back(LOG_SHOWN - 1).map_or(0, |(at, _)| at);
    Abort::Void {
        reason: VoidReason::TaskBroken,
        message: format!(
            "the agent's model had answered nothing: {how}; traj.json has its log, which ends with: {}",
            &log[from..]
        ),
    }
}

/// A command that has ended need not be killed.
fn tolerated(error: SandboxError) -> Result<(), Abort> {
    match error {
        SandboxError::Refused { fault, .. } if fault != Whose::Infrastructure => Ok(()),
        error if error.is_workloads_fault() => Ok(()),
        error => Err(error.into()),
    }
}

fn recorded(result: ExecResult, replays: u32) -> AgentProcess {
    AgentProcess {
        exit_code: result.exit_code,
        signal: result.signal,
        killed: result.killed.map(|killed| format!("{killed:?}")),
        log: result.output,
        omitted_bytes: result.omitted_bytes,
        duration_millis: result.duration_millis,
        replays,
    }
}

#[cfg(test)]
mod tests;
