//! The turn loop of every agent that takes turns: sample, parse, act, observe, record.
//!
//! A [`LoopAgent`] writes prompts, parses answers, carries out actions and writes observations. The loop owns ids,
//! limits and records, which are the same for all agents.

use super::Agent;
use super::history::{HistoryRule, NewTurn, SeenHistory, in_place_of};
use super::limits::AgentLimits;
use super::observation::Observation;
use crate::engine::Answered;
use crate::engine::text::Conversation;
use crate::episode::abort::Abort;
use crate::episode::live::{Acted, LiveEpisode, Ran, millis};
use crate::fault::TerminalFault;
use crate::seeds;
use crate::tasks::Task;
use crate::traces::step;
use futures::future::BoxFuture;
use grpo_chat_template::{ChatMessage, ChatTemplate, PromptShape, TemplateError};
use grpo_contracts::reason::Reason;
use grpo_engine_protocol::{FinishReason, TextMessage, TokenIds};
use grpo_records::{ChatPrompt, ChatTurn, EpisodeEnd, Message, Omitted, TurnAction, TurnRecord, VoidReason};
use serde_json::{Map, Value};
use tracing::Instrument;

/// An agent that takes turns: the policy answers, its action is carried out, it observes the result.
pub trait LoopAgent: Send + Sync {
    /// Renders every kind of observation. The policy decides which kinds occur, so none may fail later.
    fn rehearse(&self) -> Result<(), minijinja::Error>;

    /// Refuses a task that this agent cannot work on.
    fn check(&self, _task: &Task) -> Result<(), TerminalFault> {
        Ok(())
    }

    /// The tools of its prompts, as JSON text; may be empty.
    fn tools(&self) -> &str {
        ""
    }

    /// The part of the opening that shows the sandbox. An opening before the episode does without it.
    fn look<'a>(&'a self, _episode: &'a LiveEpisode<'_>) -> BoxFuture<'a, Result<String, Abort>> {
        Box::pin(async { Ok(String::new()) })
    }

    /// The messages before the first answer. `seen`: the result of [`LoopAgent::look`].
    fn opening(&self, task: &Map<String, Value>, seen: &str) -> Result<Vec<ChatMessage>, minijinja::Error>;

    /// The action in the answer of a turn. The loop never passes a truncated answer.
    fn parse(&self, turn: u32, answer: &str) -> TurnAction;

    /// The text of an answer without reasoning and calls, for an agent whose answers have calls.
    fn content(&self, _answer: &str) -> Option<String> {
        None
    }

    /// Carries out the action of a turn. An agent that knows the observation already returns [`Acted::Told`].
    fn act<'a>(&'a self, episode: &'a LiveEpisode<'_>, turn: &'a mut TurnRecord)
    -> BoxFuture<'a, Result<Acted, Abort>>;

    /// The observation after an action. `ran`: the command that it ran, if any.
    fn observe(&self, action: &TurnAction, ran: Option<&Ran>, turns_left: u32)
    -> Result<Observation, minijinja::Error>;
}

/// The fault of an agent's template that cannot be compiled or rendered.
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
                let span = step!("turn", turn = episode.trajectory.next_turn());
                self.turn(episode).instrument(span).await?;
            }
        })
    }
}

impl<A: LoopAgent> TurnLoop<A> {
    /// The parts of every prompt besides messages.
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

    /// Samples an answer, durable if it has an action. Returns `None` if the policy's time is over.
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
        let shape = self.shape();
        let shown = || match number {
            0 => Some(opening.iter().map(text_of).collect::<Vec<_>>()),
            _ => self.history.messages(&episode.trajectory.whole_turns().ok()?, omitted),
        };
        let conversation = Conversation {
            template: episode.template,
            shape: &shape,
            messages: &shown,
        };
        let sampled = match episode.sample(row, given, seed, conversation).await? {
            Answered::Sampled(sampled) => sampled,
            Answered::Ended { end, took } => {
                episode.trajectory.sample_millis += millis(took);
                episode.trajectory.end = Some(end);
                return Ok(None);
            }
        };
        let answer = sampled.answer;
        let experts = match answer.experts {
            Some(experts) => Some(episode.keep_experts(number, experts).await?),
            None => None,
        };
        let opens = row == episode.trajectory.rows.len();
        let chat = ChatTurn {
            prompt: opens.then(|| ChatPrompt {
                tools: self.agent.tools().to_owned(),
                thinking: self.thinking,
                after: None,
                without_reasoning: self.history.strip,
            }),
            text_only: answer.text_only,
            ..ChatTurn::default()
        };
        let mut turn = TurnRecord {
            chat: Some(chat),
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
        if let Some(chat) = &mut turn.chat
            && turn.action.as_calls().is_some()
        {
            chat.content = self.agent.content(&turn.text);
        }
        if turn.action.is_action() {
            episode.intend(&turn).await?;
        }
        Ok(Some(turn))
    }

    /// The ids before a later answer, and the row that they continue or begin.
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
        let told = omitted.filter(|_| omitted != before).map(in_place_of);
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

    /// The number of tokens before the next answer, if this turn ends with `observation` ids of an observation.
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

    /// Carries out the action, and fills in the observation, or why this was the last turn.
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

    /// Fills in the observation, or why there is no turn after this one.
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
            if let Some(chat) = &mut turn.chat {
                chat.observation = observed.recorded();
            }
        }
        turn.observation_text = text;
        Ok(())
    }
}

/// The ids before an answer, and their row.
#[derive(Default)]
struct Prompt {
    row: usize,
    /// The messages that were rendered for it.
    opening: Vec<Message>,
    /// The ids that the row does not have yet.
    ids: Vec<u32>,
    omitted: Option<Omitted>,
}

/// The most tokens of a history that leave room for a whole answer.
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

/// A message of the first prompt, for a server that speaks only text.
fn text_of(message: &Message) -> TextMessage {
    TextMessage::new(&message.role, &message.content)
}

fn finish_word(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Abort => "abort",
    }
}
