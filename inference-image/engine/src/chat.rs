//! `POST /v1/chat/completions`: a conversation as text, answered as text.
//!
//! The model's own chat template renders the messages; what it makes of them is sampled as any prompt is. A model
//! without a tokenizer serves token ids only, and says so here.

use crate::model::Bounds;
use grpo_chat_template::{ChatMessage, ChatTemplate, PromptShape, Role};
use grpo_engine_protocol::{
    ChatAnswer, ChatChoice, ChatRequest, ChatResponse, ChatRole, CompletionRequest, CompletionResponse, ErrorBody,
    ErrorCode, FinishReason, Prompt,
};
use std::path::Path;
use std::sync::Arc;

/// The model's template, or the error of reading it.
pub type Template = Result<Arc<ChatTemplate>, String>;

/// Reads the template of a model's folder.
pub fn template(model: &Path) -> Template {
    ChatTemplate::load(model)
        .map(Arc::new)
        .map_err(|error| error.to_string())
}

/// The template, or the refusal of a conversation.
pub fn usable(template: &Template) -> Result<Arc<ChatTemplate>, ErrorBody> {
    template.clone().map_err(|why| {
        ErrorBody::new(
            ErrorCode::TextPromptUnsupported,
            format!("this model takes no messages: {why}; ask /v1/completions with token ids"),
        )
    })
}

/// The conversation as a request for completions: at most as many tokens as the context has left.
pub async fn asked(
    template: Arc<ChatTemplate>,
    request: ChatRequest,
    bounds: Bounds,
) -> Result<CompletionRequest, ErrorBody> {
    let messages = request.messages.into_iter().map(|message| {
        let role = match message.role {
            ChatRole::System => Role::System,
            ChatRole::User => Role::User,
            ChatRole::Assistant => Role::Assistant,
        };
        ChatMessage::new(role, message.content)
    });
    let messages: Vec<ChatMessage> = messages.collect();
    let stop_token_ids = template.stop_ids();
    let prompt = off_the_loop(move || template.prompt(&PromptShape::default(), &messages)).await?;
    let left = bounds.max_context.saturating_sub(prompt.len());
    Ok(CompletionRequest {
        prompt: Prompt::Tokens(prompt),
        // Where nothing is left, completions say so.
        max_tokens: request.max_tokens.min(u32::try_from(left).unwrap_or(u32::MAX).max(1)),
        temperature: request.temperature,
        top_p: request.top_p,
        top_k: request.top_k.unwrap_or(0),
        n: 1,
        seed: request.seed,
        stop_token_ids,
        ignore_eos: false,
        logprobs: None,
        return_token_ids: true,
        routed_experts_from: None,
        model: request.model,
    })
}

/// What was sampled, as text.
pub async fn answer(template: Arc<ChatTemplate>, sampled: CompletionResponse) -> Result<ChatResponse, ErrorBody> {
    let Some(choice) = sampled.choices.into_iter().next() else {
        return Err(ErrorBody::new(ErrorCode::EngineMisbehaved, "nothing was sampled"));
    };
    let content = off_the_loop(move || template.text(&choice.token_ids)).await?;
    let finished = match choice.finish_reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Abort => "abort",
    };
    Ok(ChatResponse {
        model: sampled.model,
        choices: vec![ChatChoice {
            index: 0,
            message: ChatAnswer { content: Some(content) },
            finish_reason: Some(finished.to_owned()),
        }],
        usage: Some(sampled.usage),
    })
}

/// Rendering and tokenising take a while for long texts, and every other request would wait.
async fn off_the_loop<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, grpo_chat_template::TemplateError> + Send + 'static,
) -> Result<T, ErrorBody> {
    let refused = |why: String| ErrorBody::new(ErrorCode::InvalidRequest, format!("messages: {why}"));
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| refused(error.to_string()))?
        .map_err(|error| refused(error.to_string()))
}
