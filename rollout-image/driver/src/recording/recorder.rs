//! Answers the requests of one episode: finds the place of each, samples, and records the turn before it replies.

use super::api::Api;
use super::canon::Keys;
use super::forest::{self, Behind, Forest, Place};
use super::rendering;
use super::request::{Answer, ChatMessage, Request, Role, ToolCall, Usage};
use super::sessions::{Asked, Reply, Wanted};
use crate::calls;
use crate::engine::text::{Conversation, message_of};
use crate::engine::{Answered, Sampled};
use crate::episode::abort::Abort;
use crate::episode::live::{LiveEpisode, millis};
use crate::fault::DriverError;
use crate::seeds;
use grpo_chat_template::{ChatTemplate, PromptShape, TemplateError};
use grpo_crds::agent::CallFormat;
use grpo_engine_protocol::{FinishReason, TokenIds};
use grpo_records::{CalledTool, ChatPrompt, ChatTurn, EpisodeEnd, Message, MessageParts, TurnAction, TurnRecord};
use std::sync::Arc;
use std::time::Duration;

/// The most rows of one episode. A harness that changes its history at every turn would have a row for each turn.
pub const MOST_ROWS: usize = 32;
/// The most replays of one answer. A client that throws an answer away asks until it is told to end.
const MOST_REPLAYS: u32 = 16;
/// The finish of an answer that a limit cut off, in records.
const CUT: &str = "length";

/// The forest of one episode, and the format of its answers.
pub struct Recorder {
    format: CallFormat,
    /// As in [`PromptShape`].
    thinking: bool,
    forest: Forest,
    /// The number of replays of each turn's answer.
    replays: Vec<u32>,
}

/// The ids that a request adds, and their row.
struct Prompt {
    row: u32,
    /// The tokens before the ids, if any: their row and their number.
    shared: Option<(u32, usize)>,
    ids: Vec<u32>,
    /// The index of the first message in the ids.
    new: usize,
}

impl Recorder {
    /// The recorder of an episode with these recorded turns.
    pub fn of(format: CallFormat, thinking: bool, turns: &[TurnRecord]) -> Result<Self, Abort> {
        let mut forest = Forest::default();
        for turn in turns {
            forest.push(turn).map_err(unreadable)?;
        }
        Ok(Self {
            format,
            thinking,
            forest,
            replays: vec![0; turns.len()],
        })
    }

    /// The number of replays of recorded answers.
    pub fn replays(&self) -> u32 {
        self.replays.iter().sum()
    }

    /// Answers a request, unless it ends the episode. `idle`: how long the agent worked since its last answer.
    pub async fn answer(
        &mut self,
        episode: &mut LiveEpisode<'_>,
        asked: Asked,
        idle: Duration,
    ) -> Result<Option<EpisodeEnd>, Abort> {
        let Asked { wanted, request, reply } = asked;
        let (api, keys) = match wanted {
            Wanted::Answer(api, keys) => (api, keys),
            Wanted::Count => {
                let counted = self.whole(episode.template, &request).await;
                let _ = reply.send(counted.map_or_else(Reply::Unusable, |ids| Reply::Count(ids.len())));
                return Ok(None);
            }
        };
        let mut place = self.forest.place(&request, &keys);
        while let Place::Behind(behind) = &place {
            if !behind.bare || self.is_hidden(episode, &request, behind).await {
                break;
            }
            place = self.forest.place_without(&request, &keys, behind);
        }
        if let Place::Known(turn) = place {
            let given = &mut self.replays[turn as usize];
            *given += 1;
            if *given > MOST_REPLAYS {
                let _ = reply.send(Reply::Over);
                return Ok(None);
            }
            let turn = &episode.trajectory.turns[turn as usize];
            let _ = reply.send(Reply::Answer(Box::new(self.answer_of(turn, &request))));
            return Ok(None);
        }
        let number = episode.trajectory.next_turn();
        if number >= episode.limits.turns {
            return Ok(Some(EpisodeEnd::TurnLimit));
        }
        let prompt = match self.prompt(episode, &request, &place).await {
            Ok(prompt) => prompt,
            Err(why) => {
                let _ = reply.send(Reply::Unusable(why));
                return Ok(None);
            }
        };
        if prompt.row as usize >= MOST_ROWS {
            return Ok(Some(EpisodeEnd::RowLimit));
        }
        let shared = prompt.shared.map_or(&[][..], |(row, tokens)| {
            &episode.trajectory.rows[row as usize].tokens[..tokens]
        });
        let given = TokenIds(shared, &prompt.ids);
        let prompt_length = given.len();
        // The tokens of the episode after its first prompt, with the ids of this one.
        let grown = if number == 0 {
            0
        } else {
            episode.trajectory.grown() + prompt.ids.len()
        };
        if let Some(full) = episode.limits.full(prompt_length, grown) {
            return Ok(Some(full));
        }
        let room = u32::try_from(episode.limits.room(prompt_length, grown)).unwrap_or(u32::MAX);
        let opens = prompt.row as usize == episode.trajectory.rows.len();
        let plan = episode.plan;
        let key = &plan.key;
        let seed = seeds::of_turn(plan.seed, &key.scope, &key.instance, key.group, key.sample, number);
        let most = request.max_tokens.unwrap_or(u32::MAX).clamp(1, room);
        let shape = self.shape(&request);
        let messages = || Some(request.messages.iter().map(message_of).collect::<Vec<_>>());
        let conversation = Conversation {
            template: episode.template,
            shape: &shape,
            messages: &messages,
        };
        let row = prompt.row as usize;
        let most = (most, idle);
        let sampled = match episode.sample_at_most(most, row, given, seed, conversation).await? {
            // The first turn of a row holds all ids of its prompt.
            Answered::Sampled(sampled) => (sampled, opens.then(|| given.to_vec())),
            Answered::Ended { end, took } => {
                episode.trajectory.sample_millis += millis(took);
                return Ok(Some(end));
            }
        };
        let (sampled, whole) = sampled;
        let added = whole.unwrap_or(prompt.ids);
        let blank = TurnRecord {
            opening: shown(&request.messages[prompt.new..], added.len()),
            row: prompt.row,
            prompt_length,
            prompt: added,
            seed,
            exec_millis: millis(idle),
            ..episode.blank_turn(number)
        };
        let asked = (api, &*request, &keys, &place);
        let turn = self.turn(episode, blank, sampled, asked, grown).await?;
        let end = turn.end;
        self.forest.push(&turn).map_err(unreadable)?;
        self.replays.push(0);
        episode.record(turn).await?;
        if end.is_none()
            && let Some(turn) = episode.trajectory.turns.last()
        {
            // If the client is gone, the recorded answer waits for it.
            let _ = reply.send(Reply::Answer(Box::new(self.answer_of(turn, &request))));
        }
        Ok(end)
    }

    /// The turn of a request and its answer.
    async fn turn(
        &self,
        episode: &LiveEpisode<'_>,
        blank: TurnRecord,
        sampled: Sampled,
        (api, request, keys, place): (Api, &Request, &Keys, &Place),
        grown: usize,
    ) -> Result<TurnRecord, Abort> {
        let answer = sampled.answer;
        let experts = match answer.experts {
            Some(experts) => Some(episode.keep_experts(blank.turn, experts).await?),
            None => None,
        };
        let text = episode.template.text(&answer.ids)?;
        let used = blank.prompt_length + answer.ids.len();
        let cut = answer.finish != FinishReason::Stop;
        let parsed = calls::parse(self.format, &text, &request.tools);
        let (action, end) = match (&parsed.malformed, cut) {
            // A side request, such as Crush's for a title of 40 tokens. Its client expects a cut answer; a call that
            // was cut off would be repaired and executed.
            (None, true) if parsed.calls.is_empty() && is_clients_limit(episode, request, &blank, grown) => {
                (TurnAction::answer(), None)
            }
            (_, true) => {
                let full = episode.limits.full(used, grown + answer.ids.len());
                (TurnAction::truncated(), Some(full.unwrap_or(EpisodeEnd::AnswerCut)))
            }
            (Some(why), _) => (TurnAction::malformed_call(why), Some(EpisodeEnd::MalformedCall)),
            (None, _) if parsed.calls.is_empty() => (TurnAction::answer(), None),
            (None, _) => {
                let calls = parsed.calls.iter().enumerate().map(|(at, call)| CalledTool {
                    id: format!("call_{}_{at}", blank.turn),
                    name: call.name.clone(),
                    arguments: call.arguments.clone(),
                });
                (TurnAction::calls(&calls.collect::<Vec<_>>()), None)
            }
        };
        let content = action.as_calls().map(|_| parsed.content.clone());
        let chat = ChatTurn {
            text_only: answer.text_only,
            ..self.chat(request, place, content)
        };
        let said = ChatMessage {
            reasoning: parsed.reasoning,
            tool_calls: calls_of(&action),
            ..ChatMessage::new(Role::Assistant, parsed.content)
        };
        Ok(TurnRecord {
            sampled: answer.ids,
            logprobs: answer.logprobs,
            weights: sampled.weights,
            finish: if cut { CUT } else { "stop" }.to_owned(),
            experts,
            text,
            request: Some(forest::record(word(api), request, keys, place, &said)),
            chat: Some(chat),
            action,
            end,
            sample_millis: millis(sampled.took),
            waited_millis: millis(sampled.waited),
            ..blank
        })
    }

    /// The parts of a turn's messages, for the record. `content`: of an answer with calls.
    fn chat(&self, request: &Request, place: &Place, content: Option<String>) -> ChatTurn {
        let (after, opens, new) = match place {
            Place::Behind(behind) => (Some(behind.turn), behind.branch.is_some(), behind.new),
            Place::Known(_) | Place::Apart(_) => (None, true, 0),
        };
        let opening: Vec<MessageParts> = request.messages[new..].iter().map(parts).collect();
        let only_texts = opening.iter().all(|parts| *parts == MessageParts::default());
        ChatTurn {
            prompt: opens.then(|| ChatPrompt {
                tools: request.tools.clone(),
                thinking: self.thinking,
                after,
                without_reasoning: false,
            }),
            opening: if only_texts { Vec::new() } else { opening },
            content,
            ..ChatTurn::default()
        }
    }

    /// The answer of a turn, as the client gets it at first and in replays.
    fn answer_of(&self, turn: &TurnRecord, request: &Request) -> Answer {
        let parsed = calls::parse(self.format, &turn.text, &request.tools);
        Answer {
            id: turn.turn.to_string(),
            created: turn.at,
            content: parsed.content,
            reasoning: parsed.reasoning,
            calls: calls_of(&turn.action),
            cut: turn.finish == CUT,
            usage: Usage {
                prompt_tokens: turn.prompt_length,
                completion_tokens: turn.sampled_length,
            },
        }
    }

    /// Whether the template also leaves out the reasoning that the agent left out.
    async fn is_hidden(&self, episode: &LiveEpisode<'_>, request: &Arc<Request>, behind: &Behind) -> bool {
        let Some(turn) = episode.trajectory.turns.get(behind.turn as usize) else {
            return false;
        };
        let mut restored = Request::clone(request);
        if let Some(answer) = restored.messages.get_mut(behind.new.saturating_sub(1)) {
            answer.reasoning = calls::parse(self.format, &turn.text, &request.tools).reasoning;
        }
        let sent = self.whole(episode.template, request).await;
        sent.is_ok() && sent == self.whole(episode.template, &Arc::new(restored)).await
    }

    /// The ids of a whole request.
    async fn whole(&self, template: &Arc<ChatTemplate>, request: &Arc<Request>) -> Result<Vec<u32>, String> {
        let (template, request, shape) = (template.clone(), request.clone(), self.shape(request));
        rendered(move || rendering::prompt(&template, &shape, &request.messages)).await
    }

    fn shape(&self, request: &Request) -> PromptShape {
        PromptShape {
            tools: request.tools.clone(),
            thinking: self.thinking,
        }
    }

    /// The prompt of a request at its place.
    async fn prompt(&self, episode: &LiveEpisode<'_>, request: &Arc<Request>, place: &Place) -> Result<Prompt, String> {
        let next = self.forest.rows() as u32;
        let Place::Behind(behind) = place else {
            return Ok(Prompt {
                row: next,
                shared: None,
                ids: self.whole(episode.template, request).await?,
                new: 0,
            });
        };
        let before = &episode.trajectory.rows[behind.row as usize].tokens[..behind.tokens];
        let stops = episode.template.stop_ids();
        let stop = before.last().copied().filter(|id| stops.contains(id));
        let (template, shape, new) = (episode.template.clone(), self.shape(request), behind.new);
        let request = request.clone();
        let ids = rendered(move || rendering::glue(&template, &shape, stop, &request.messages[new..])).await?;
        Ok(Prompt {
            row: behind.branch.map_or(behind.row, |_| next),
            shared: Some((behind.row, behind.tokens)),
            ids,
            new,
        })
    }
}

/// Renders on a separate thread. The client is told of any failure, including a panic of the template.
async fn rendered(
    render: impl FnOnce() -> Result<Vec<u32>, TemplateError> + Send + 'static,
) -> Result<Vec<u32>, String> {
    match tokio::task::spawn_blocking(render).await {
        Ok(ids) => ids.map_err(|error| error.to_string()),
        Err(_) => Err("the request cannot be rendered".to_owned()),
    }
}

/// Whether the limit that the client gave, and no limit of the run, ends its answer.
fn is_clients_limit(episode: &LiveEpisode<'_>, request: &Request, blank: &TurnRecord, grown: usize) -> bool {
    let room = episode.limits.room(blank.prompt_length, grown);
    let allowed = room.min(episode.plan.sampling.max_tokens_per_call as usize);
    request.max_tokens.is_some_and(|most| (most as usize) < allowed)
}

/// The name of an API in records.
fn word(api: Api) -> &'static str {
    match api {
        Api::ChatCompletions => "ChatCompletions",
        Api::Responses => "Responses",
        Api::Messages => "Messages",
        Api::GenerateContent => "GenerateContent",
    }
}

fn calls_of(action: &TurnAction) -> Vec<ToolCall> {
    let calls = action.as_calls().unwrap_or_default().into_iter();
    let calls = calls.map(|call| ToolCall {
        id: call.id,
        name: call.name,
        arguments: call.arguments,
    });
    calls.collect()
}

/// Messages as they are recorded; their ids belong to all of them together.
fn shown(messages: &[ChatMessage], tokens: usize) -> Vec<Message> {
    let last = messages.len().saturating_sub(1);
    let messages = messages.iter().enumerate().map(|(at, message)| Message {
        role: message.role.word().to_owned(),
        content: message.content.clone(),
        tokens: if at == last { tokens } else { 0 },
        note: None,
    });
    messages.collect()
}

/// The parts of a message that [`shown`] leaves out.
fn parts(message: &ChatMessage) -> MessageParts {
    let calls = message.tool_calls.iter().map(|call| CalledTool {
        id: call.id.clone(),
        name: call.name.clone(),
        arguments: call.arguments.clone(),
    });
    MessageParts {
        reasoning: message.reasoning.clone(),
        tool_calls: calls.collect(),
        tool_call_id: message.tool_call_id.clone(),
    }
}

fn unreadable(error: forest::NoRequest) -> Abort {
    DriverError::Other(error.to_string()).into()
}
