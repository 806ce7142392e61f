//! The turn loop of every agent that takes turns: sample, parse, act, observe, record.
//!
//! A [`LoopAgent`] says what the policy is asked, what its answers mean, how an action is carried out and what the
//! policy observes of it. The loop owns ids, limits and records, which are the same for all of them.

use super::Agent;
use super::history::{HistoryRule, NewTurn, SeenHistory, marker};
use super::limits::AgentLimits;
use super::observation::Observation;
use crate::engine::Answered;
use crate::episode::abort::Abort;
use crate::episode::live::{Acted, LiveEpisode, Ran, millis};
use crate::fault::TerminalFault;
use crate::seeds;
use crate::tasks::Task;
use futures::future::BoxFuture;
use grpo_chat_template::{ChatMessage, ChatTemplate, PromptShape, Role, TemplateError};
use grpo_contracts::reason::Reason;
use grpo_engine_protocol::{FinishReason, TokenIds};
use grpo_records::{EpisodeEnd, Message, Omitted, TurnAction, TurnRecord, VoidReason};
use serde_json::{Map, Value};

/// An agent that takes turns: the policy answers, its action is carried out, it observes what came of that.
pub trait LoopAgent: Send + Sync {
    /// Renders every kind of observation. The policy decides which of them happen, so none may be an error later.
    fn rehearse(&self) -> Result<(), minijinja::Error>;

    /// Refuses a task that this agent cannot work on.
    fn check(&self, _task: &Task) -> Result<(), TerminalFault> {
        Ok(())
    }

    /// The tools of its prompts, as JSON text; empty for none.
    fn tools(&self) -> &str {
        ""
    }

    /// What the opening shows of a sandbox. Before an episode it is not known, and the opening does without.
    fn look<'a>(&'a self, _episode: &'a LiveEpisode<'_>) -> BoxFuture<'a, Result<String, Abort>> {
        Box::pin(async { Ok(String::new()) })
    }

    /// The messages before the first answer. `seen`: what [`LoopAgent::look`] has found.
    fn opening(&self, task: &Map<String, Value>, seen: &str) -> Result<Vec<ChatMessage>, minijinja::Error>;

    /// What the answer of a turn means. The loop never asks about one that was cut off.
    fn parse(&self, turn: u32, answer: &str) -> TurnAction;

    /// Carries out the action of a turn. An agent that knows what the policy is told answers that itself.
    fn act<'a>(&'a self, episode: &'a LiveEpisode<'_>, turn: &'a mut TurnRecord)
    -> BoxFuture<'a, Result<Acted, Abort>>;

    /// What is said after an action. `ran`: the command that it ran, where there was one.
    fn observe(&self, action: &TurnAction, ran: Option<&Ran>, turns_left: u32)
    -> Result<Observation, minijinja::Error>;
}

/// A template of the agent that cannot be compiled or rendered.
pub fn unusable(error: minijinja::Error) -> TerminalFault {
    TerminalFault::new(Reason::PromptUnusable, format!("a template of spec.agent: {error:#}"))
}

/// The loop around an agent.
pub struct TurnLoop<A> {
    pub agent: A,
    /// Whether prompts leave the model's reasoning on, as in [`PromptShape`].
    pub thinking: bool,
    pub history: HistoryRule,
}

impl<A: LoopAgent> Agent for TurnLoop<A> {
    fn first_prompt(&self, template: &ChatTemplate, task: &Task) -> Result<Option<usize>, TerminalFault> {
        let ids = template
            .prompt(&self.shape(), &self.opening(task, "")?)
            .map_err(|error| {
                TerminalFault::new(
                    Reason::TemplateUnusable,
                    format!("the prompt of {}: {error}", task.instance),
                )
            })?;
        Ok(Some(ids.len()))
    }

    fn rehearse(&self, template: &ChatTemplate, limits: &AgentLimits, tasks: &[Task]) -> Result<(), TerminalFault> {
        self.agent.rehearse().map_err(|error| {
            let message =
                format!("a template of spec.agent fails for an observation that the policy may cause: {error:#}");
            TerminalFault::new(Reason::PromptUnusable, message)
        })?;
        let shape = self.shape();
        self.history.rehearse(template, &shape).map_err(|error| {
            let message = format!("the model's chat template does not serve spec.agent.context: it {error}");
            TerminalFault::new(Reason::TemplateUnusable, message)
        })?;
        if !shape.tools.is_empty() {
            let results = ["1", "2"].map(|id| ChatMessage::tool(id, "-"));
            template.glue(&shape, None, &results).map_err(|error| {
                let message = format!("the model's chat template takes no result of a tool: {error}");
                TerminalFault::new(Reason::TemplateUnusable, message)
            })?;
        }
        for task in tasks {
            self.agent.check(task)?;
            if let Some(tokens) = self.first_prompt(template, task)?
                && tokens >= limits.context_tokens
            {
                return Err(TerminalFault::new(
                    Reason::PromptTooLong,
                    format!("the prompt of {} {}", task.instance, too_long(tokens, limits)),
                ));
            }
        }
        Ok(())
    }

    fn run<'a>(&'a self, episode: &'a mut LiveEpisode<'_>) -> BoxFuture<'a, Result<EpisodeEnd, Abort>> {
        Box::pin(async move {
            loop {
                if let Some(end) = episode.trajectory.end {
                    return Ok(end);
                }
                self.turn(episode).await?;
            }
        })
    }
}

impl<A: LoopAgent> TurnLoop<A> {
    /// What every prompt has besides messages.
    fn shape(&self) -> PromptShape {
        PromptShape {
            tools: self.agent.tools().to_owned(),
            thinking: self.thinking,
        }
    }

    fn opening(&self, task: &Task, seen: &str) -> Result<Vec<ChatMessage>, TerminalFault> {
        self.agent.opening(&task.variables(), seen).map_err(|error| {
            TerminalFault::new(
                Reason::PromptUnusable,
                format!("rendering the prompt of {}: {error:#}", task.instance),
            )
        })
    }

    /// One turn: sample, act, observe, record.
    async fn turn(&self, episode: &mut LiveEpisode<'_>) -> Result<(), Abort> {
        let number = episode.trajectory.next_turn();
        let known = episode.intended(number).await?;
        let sampled = match known {
            Some(turn) => Some(turn),
            None => self.sampled(episode, number).await?,
        };
        let Some(mut turn) = sampled else { return Ok(()) };
        self.respond(episode, &mut turn).await?;
        episode.record(turn).await
    }

    /// An answer, durable where it has an action. Nothing when the policy's time is over.
    async fn sampled(&self, episode: &mut LiveEpisode<'_>, number: u32) -> Result<Option<TurnRecord>, Abort> {
        let Prompt {
            row,
            opening,
            ids: prompt,
            omitted,
        } = match number {
            0 => {
                let seen = self.agent.look(episode).await?;
                let opening = self.opening(&episode.plan.task, &seen)?;
                let ids = episode.template.prompt(&self.shape(), &opening)?;
                Prompt {
                    opening: messages(&opening, ids.len()),
                    ids,
                    ..Prompt::default()
                }
            }
            _ => self.later_prompt(episode)?,
        };
        let before = episode.trajectory.rows.get(row);
        let given = TokenIds(before.map_or(&[][..], |row| &row.tokens), &prompt);
        let prompt_length = given.len();
        if prompt_length >= episode.limits.context_tokens {
            return Err(Abort::Void {
                reason: VoidReason::TaskBroken,
                message: format!("the prompt {}", too_long(prompt_length, episode.limits)),
            });
        }
        let plan = episode.plan;
        let key = &plan.key;
        let seed = seeds::of_turn(plan.seed, &key.scope, &key.instance, key.group, key.sample, number);
        let sampled = match episode.sample(row, given, seed).await? {
            Answered::Sampled(sampled) => sampled,
            // The answer is lost, and what was done before it counts.
            Answered::OutOfTime { took } => {
                episode.trajectory.sample_millis += millis(took);
                episode.trajectory.end = Some(EpisodeEnd::EpisodeTimeout);
                return Ok(None);
            }
        };
        let answer = sampled.answer;
        let experts = match answer.experts {
            Some(experts) => Some(episode.keep_experts(number, experts).await?),
            None => None,
        };
        let mut turn = TurnRecord {
            omitted,
            opening,
            row: row as u32,
            prompt_length,
            prompt,
            seed,
            text: episode.template.text(&answer.ids)?,
            sampled: answer.ids,
            logprobs: answer.logprobs,
            weights: sampled.weights,
            finish: finish_word(answer.finish).to_owned(),
            experts,
            sample_millis: millis(sampled.took),
            waited_millis: millis(sampled.waited),
            ..episode.blank_turn(number)
        };
        if answer.finish == FinishReason::Stop {
            turn.action = self.agent.parse(number, &turn.text);
        }
        if turn.action.is_action() {
            episode.intend(&turn).await?;
        }
        Ok(Some(turn))
    }

    /// The ids before an answer that is not the first, and the row that they continue or begin.
    fn later_prompt(&self, episode: &LiveEpisode<'_>) -> Result<Prompt, Abort> {
        let trajectory = &*episode.trajectory;
        let last = trajectory.rows.len().saturating_sub(1);
        let room = history_room(episode);
        let SeenHistory { anew, omitted } = self.history.seen(episode.template, &self.shape(), trajectory, room)?;
        let Some(ids) = anew else {
            return Ok(Prompt {
                row: last,
                ..Prompt::default()
            });
        };
        let before = trajectory.turns.last().and_then(|turn| turn.omitted);
        let told = omitted.filter(|_| omitted != before).map(|gap| Message {
            role: Role::User.word().to_owned(),
            content: marker((gap.to - gap.from) as usize),
            tokens: 0,
            note: None,
        });
        let known = &trajectory.rows[last].tokens;
        let (row, ids) = match ids.strip_prefix(&known[..]) {
            Some(more) => (last, more.to_vec()),
            None => (last + 1, ids),
        };
        Ok(Prompt {
            row,
            opening: told.into_iter().collect(),
            ids,
            omitted,
        })
    }

    /// How many tokens stand before the next answer, if this turn ends with so many ids of an observation.
    fn next_length(
        &self,
        episode: &LiveEpisode<'_>,
        turn: &TurnRecord,
        observation: usize,
    ) -> Result<usize, TemplateError> {
        if self.history.only_grows() {
            return Ok(turn.prompt_length + turn.sampled.len() + observation);
        }
        let new = NewTurn {
            prompt_length: turn.prompt_length,
            sampled: &turn.sampled,
            observation,
            omitted: turn.omitted,
        };
        let room = history_room(episode);
        self.history
            .length_after(episode.template, &self.shape(), episode.trajectory, new, room)
    }

    /// Carries the action out, and fills in what is observed or why this was the last turn.
    async fn respond(&self, episode: &LiveEpisode<'_>, turn: &mut TurnRecord) -> Result<(), Abort> {
        let limits = episode.limits;
        let turns_left = limits.turns.saturating_sub(turn.turn + 1);
        let used = turn.prompt_length + turn.sampled.len();
        let grown = episode.trajectory.grown() + turn.sampled.len();
        let full = limits.full(used, grown);
        if turn.finish == "length" && full.is_some() {
            turn.end = full;
            return Ok(());
        }
        let ran = match self.agent.act(episode, turn).await? {
            Acted::Nothing => None,
            Acted::Ran(ran) => Some(ran),
            Acted::Told(observed) => return self.tell(episode, turn, observed),
            Acted::Exhausted => {
                turn.end = Some(EpisodeEnd::SandboxExhausted);
                return Ok(());
            }
        };
        let observed = self.agent.observe(&turn.action, ran.as_ref(), turns_left);
        turn.exec = ran.map(|ran| ran.exec);
        self.tell(episode, turn, observed.map_err(unusable)?)
    }

    /// Fills in what the policy is told, or why there is no turn after this one.
    fn tell(&self, episode: &LiveEpisode<'_>, turn: &mut TurnRecord, observed: Observation) -> Result<(), Abort> {
        let limits = episode.limits;
        let turns_left = limits.turns.saturating_sub(turn.turn + 1);
        let grown = episode.trajectory.grown() + turn.sampled.len();
        let text = observed.text();
        if observed.submitted {
            turn.end = Some(EpisodeEnd::Submitted);
            turn.observation_text = text;
            return Ok(());
        }
        let stops = episode.template.stop_ids();
        let stop = turn.sampled.last().copied().filter(|id| stops.contains(id));
        let observation = episode.template.glue(&self.shape(), stop, &observed.messages)?;
        turn.end = if turns_left == 0 {
            Some(EpisodeEnd::TurnLimit)
        } else if episode.spent(turn) >= limits.episode_timeout {
            Some(EpisodeEnd::EpisodeTimeout)
        } else {
            let length = self.next_length(episode, turn, observation.len())?;
            limits.full(length, grown + observation.len())
        };
        if turn.end.is_none() {
            turn.observation = observation;
        }
        turn.observation_text = text;
        Ok(())
    }
}

/// The ids before an answer, and where they belong.
#[derive(Default)]
struct Prompt {
    row: usize,
    /// The messages that were rendered for it.
    opening: Vec<Message>,
    /// Those that the row has not already.
    ids: Vec<u32>,
    omitted: Option<Omitted>,
}

/// The tokens that a history may have, so that a whole answer fits behind it.
fn history_room(episode: &LiveEpisode<'_>) -> usize {
    let answer = episode.plan.sampling.max_tokens_per_call as usize;
    episode.limits.context_tokens.saturating_sub(answer)
}

fn too_long(tokens: usize, limits: &AgentLimits) -> String {
    format!(
        "has {tokens} tokens, the context {}; raise agent.limits.contextTokens, or leave such tasks out with \
         agent.limits.promptTokens",
        limits.context_tokens
    )
}

/// The prompt's messages as they are recorded; its ids belong to all of them together.
fn messages(opening: &[ChatMessage], tokens: usize) -> Vec<Message> {
    let last = opening.len().saturating_sub(1);
    let messages = opening.iter().enumerate().map(|(at, message)| Message {
        role: message.role.word().to_owned(),
        content: message.content.clone(),
        tokens: if at == last { tokens } else { 0 },
        note: None,
    });
    messages.collect()
}

fn finish_word(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Abort => "abort",
    }
}
