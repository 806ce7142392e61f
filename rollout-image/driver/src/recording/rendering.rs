//! Renders the messages of a request, also if the chat template refuses their system messages.
//!
//! Templates such as Qwen3.5's take one system message, at the beginning. Codex sends two (its instructions and a
//! developer's message); Claude Code and plug-ins of opencode also send later ones. A refusal would end these agents,
//! Codex at its first request. So messages that a template refuses are rendered again with one system message. Only the
//! ids differ: a request is matched by the messages that its client sent.

use super::request::{ChatMessage, Role};
use grpo_chat_template::{ChatTemplate, PromptShape, TemplateError};

/// The ids of a whole request.
pub fn prompt(
    template: &ChatTemplate,
    shape: &PromptShape,
    messages: &[ChatMessage],
) -> Result<Vec<u32>, TemplateError> {
    rendered(messages, true, |messages| template.prompt(shape, messages))
}

/// The ids of the messages after an answer, as in [`ChatTemplate::glue`].
pub fn glue(
    template: &ChatTemplate,
    shape: &PromptShape,
    sampled_stop: Option<u32>,
    new: &[ChatMessage],
) -> Result<Vec<u32>, TemplateError> {
    rendered(new, false, |new| template.glue(shape, sampled_stop, new))
}

fn rendered(
    messages: &[ChatMessage],
    opens: bool,
    render: impl Fn(&[ChatMessage]) -> Result<Vec<u32>, TemplateError>,
) -> Result<Vec<u32>, TemplateError> {
    let refusal = match render(messages) {
        Ok(ids) => return Ok(ids),
        Err(refusal) => refusal,
    };
    match with_one_system(messages, opens) {
        // The first refusal is about what the client sent.
        Some(changed) => render(&changed).map_err(|_| refusal),
        None => Err(refusal),
    }
}

/// The system messages at the beginning as one, later ones as the user's; `None` if that changes nothing. `opens`:
/// these messages begin a conversation.
fn with_one_system(messages: &[ChatMessage], opens: bool) -> Option<Vec<ChatMessage>> {
    let is_system = |message: &&ChatMessage| message.role == Role::System;
    let first = match opens {
        true => messages.iter().take_while(is_system).count(),
        false => 0,
    };
    let (systems, later) = messages.split_at(first);
    if first < 2 && !later.iter().any(|message| message.role == Role::System) {
        return None;
    }
    let texts: Vec<&str> = systems.iter().map(|message| message.content.as_str()).collect();
    let system = (first > 0).then(|| ChatMessage::new(Role::System, texts.join("\n\n")));
    let later = later.iter().map(|message| match message.role {
        Role::System => ChatMessage::new(Role::User, message.content.clone()),
        _ => message.clone(),
    });
    Some(system.into_iter().chain(later).collect())
}

#[cfg(test)]
mod tests;
