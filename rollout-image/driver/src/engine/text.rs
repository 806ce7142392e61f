//! A server that speaks only text: it gets the conversation behind a prompt's ids, and its answer becomes ids.
//!
//! The chat template writes the answer, its calls included, as an answer of the model. So rows, limits, parsers and
//! records are those of any engine. The ids are not the server's, and their logprobs are 0: the turn is marked, and
//! nothing is trained on it. Only episodes of evaluations are asked for in this way.

use super::answer::Sample;
use super::{Ask, Engines, Refused, brief};
use crate::fault::TerminalFault;
use grpo_chat_template::{ChatMessage, ChatTemplate, PromptShape, Role, TemplateError, ToolCall};
use grpo_contracts::reason::Reason;
use grpo_engine_protocol::{
    ErrorBody, ErrorCode, FinishReason, TEXT_PATH, TextCall, TextMessage, TextRequest, TextResponse, WEIGHTS_HEADER,
};
use grpo_records::EpisodeEnd;
use serde_json::{Map, Value};
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

/// The conversation that the ids of a prompt are rendered from.
#[derive(Clone, Copy)]
pub struct Conversation<'a> {
    pub template: &'a ChatTemplate,
    pub shape: &'a PromptShape,
    /// Made only for a server that speaks text; `None` if the records cannot show the messages.
    pub messages: &'a (dyn Fn() -> Option<Vec<TextMessage>> + Send + Sync),
}

impl fmt::Debug for Conversation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conversation")
            .field("shape", self.shape)
            .finish_non_exhaustive()
    }
}

impl Engines {
    /// Asks a replica for an answer in text.
    pub(super) async fn converse(
        &self,
        replica: SocketAddr,
        ask: &Ask<'_>,
        conversation: Conversation<'_>,
        version: &str,
    ) -> Result<Sample, Refused> {
        let unreadable = || Refused::Void("its turns do not show the messages so far".to_owned());
        let messages = (conversation.messages)().ok_or_else(unreadable)?;
        let is_begun = messages.iter().any(|message| message.role == Role::Assistant.word());
        let request = TextRequest {
            messages: messages.into_iter().map(answerable).collect(),
            tools: conversation.shape.tools.clone(),
            max_tokens: ask.max_tokens,
            temperature: ask.temperature,
            top_p: ask.top_p,
            top_k: ask.top_k,
            penalties: ask.penalties,
            seed: ask.seed,
        };
        let call = self.authorized(self.http.post(format!("http://{replica}{TEXT_PATH}")));
        let sent = call.header(WEIGHTS_HEADER, version).json(&request).send().await;
        let answer = sent.map_err(|error| self.rest(replica, brief(error)))?;
        if !answer.status().is_success() {
            return Err(match self.error_of(replica, answer).await {
                Ok(error) => self.text_refusal(replica, error, is_begun),
                Err(refused) => refused,
            });
        }
        let answer: TextResponse = answer.json().await.map_err(|e| self.rest(replica, brief(e)))?;
        let sample = sample_of(answer, conversation).map_err(|unusable| match unusable {
            Unusable::Again(why) => self.rest(replica, why),
            Unusable::Never(why) => terminal(format!("the server behind engine {replica} returned a call, and {why}")),
        })?;
        self.conversed.store(true, Ordering::Relaxed);
        Ok(sample)
    }

    /// A server that has answered takes the run's settings, so it refuses this conversation. `is_begun`: an answer of
    /// the policy is in it. Then it has become too long, or its content is refused, and that ends the episode with its
    /// work so far: otherwise a policy that cannot solve a task could make its attempt void. A refusal that names a
    /// setting of the run ends the run at any time.
    fn text_refusal(&self, replica: SocketAddr, error: ErrorBody, is_begun: bool) -> Refused {
        use ErrorCode::{BodyTooLarge, ContextTooLong, InvalidRequest};
        let conversed = self.conversed.load(Ordering::Relaxed);
        match error.code {
            ContextTooLong | BodyTooLarge if is_begun => Refused::Ended(EpisodeEnd::ContextFull),
            InvalidRequest if is_begun => Refused::Ended(EpisodeEnd::AnswerCut),
            ContextTooLong | BodyTooLarge | InvalidRequest if conversed => Refused::Void(error.message),
            InvalidRequest => terminal(format!(
                "the server behind engine {replica} refuses the first conversation of this run: {}; compare rollout.sampling and the tools of the agent with what it takes",
                error.message
            )),
            _ => self.refusal(replica, error),
        }
    }
}

/// An answer that is of no use.
enum Unusable {
    /// Another one may be.
    Again(String),
    /// So would be all others.
    Never(String),
}

fn terminal(message: String) -> Refused {
    Refused::Terminal(TerminalFault::new(Reason::EngineRefuses, message))
}

/// A message of a prompt, as servers take it.
pub fn message_of(message: &ChatMessage) -> TextMessage {
    let calls = message.tool_calls.iter();
    let calls: Vec<TextCall> = calls
        .map(|call| TextCall::new(&call.id, &call.name, &call.arguments))
        .collect();
    TextMessage {
        reasoning_content: message.reasoning.clone().filter(|text| !text.is_empty()),
        tool_calls: (!calls.is_empty()).then_some(calls),
        tool_call_id: message.tool_call_id.clone(),
        ..TextMessage::new(message.role.word(), &message.content)
    }
}

/// Servers take a tool's message only as the result of a call. A built-in loop also answers so where it found no call.
fn answerable(message: TextMessage) -> TextMessage {
    match message.role == Role::Tool.word() && message.tool_call_id.is_none() {
        true => TextMessage {
            role: Role::User.word().to_owned(),
            ..message
        },
        false => message,
    }
}

/// The answer as if the model had sampled it.
fn sample_of(mut answer: TextResponse, conversation: Conversation<'_>) -> Result<Sample, Unusable> {
    let Some(choice) = answer.choices.pop().filter(|_| answer.choices.is_empty()) else {
        return Err(Unusable::Again("not exactly one choice".to_owned()));
    };
    let finish = match choice.finish_reason.as_deref() {
        // `eos`: Together's word for an end token.
        Some("stop" | "eos" | "tool_calls" | "function_call") => FinishReason::Stop,
        // A filter cuts an answer for what the policy wrote: the attempt keeps its verdict.
        Some("length" | "content_filter") => FinishReason::Length,
        other => {
            let why = format!("it ended an answer with finish_reason {other:?}");
            return Err(Unusable::Again(why));
        }
    };
    let Conversation { template, shape, .. } = conversation;
    let said = said(choice.message);
    let rendered = template.answer(shape, &said).or_else(|error| match said.reasoning {
        // The prompt has switched reasoning off, and the server reasons.
        Some(_) => template.answer(
            shape,
            &ChatMessage {
                reasoning: None,
                ..said.clone()
            },
        ),
        None => Err(error),
    });
    let unshown = |error: TemplateError| Unusable::Again(format!("its answer cannot be shown: {error}"));
    let mut ids = rendered.map_err(unshown)?;
    let text = template.text(&ids).map_err(unshown)?;
    // A template may escape other names, which a server may invent.
    let is_plain = |name: &str| {
        name.chars()
            .all(|letter| letter.is_ascii_alphanumeric() || "_-".contains(letter))
    };
    let mut plain = said.tool_calls.iter().filter(|call| is_plain(&call.name));
    if !plain.all(|call| text.contains(&call.name)) {
        return Err(Unusable::Never(
            "the chat template of spec.model does not show calls: take a model whose template does".to_owned(),
        ));
    }
    let ends = |ids: &[u32]| ids.last().is_some_and(|id| template.stop_ids().contains(id));
    if finish == FinishReason::Length && ids.len() > 1 && ends(&ids) {
        ids.pop();
    }
    Ok(Sample {
        logprobs: vec![0.0; ids.len()],
        ids,
        finish,
        experts: None,
        text_only: true,
    })
}

/// An answer as a message of the template. Calls whose arguments are no object become text that no parser takes for a
/// call, as malformed calls of the model are.
fn said(message: TextMessage) -> ChatMessage {
    let mut content = message.content.unwrap_or_default();
    let mut calls = Vec::new();
    for call in message.tool_calls.unwrap_or_default() {
        let TextCall { id, function, .. } = call;
        let arguments = match function.arguments.trim().is_empty() {
            true => "{}".to_owned(),
            false => function.arguments,
        };
        calls.push(ToolCall {
            id,
            name: function.name,
            arguments,
        });
    }
    let is_object = |call: &ToolCall| serde_json::from_str::<Map<String, Value>>(&call.arguments).is_ok();
    if !calls.iter().all(is_object) {
        for ToolCall { name, arguments, .. } in calls.drain(..) {
            let name = Value::from(name);
            content += &format!("\n<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>");
        }
    }
    let reasoning = message.reasoning_content.or(message.reasoning);
    ChatMessage {
        reasoning: reasoning.filter(|text| !text.trim().is_empty()),
        tool_calls: calls,
        ..ChatMessage::new(Role::Assistant, content)
    }
}

#[cfg(test)]
mod tests;
