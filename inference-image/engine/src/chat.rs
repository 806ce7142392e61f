//! Conversations in text: the model's own chat template turns a conversation into a request in token ids, and its
//! tokenizer turns the answer into text.
//!
//! Template and tokenizer are those of the model with which the engine booted. A model without them is still served,
//! but conversations are refused.

use crate::job::AnswerRow;
use crate::model::Bounds;
use grpo_chat_template::{ChatMessage, ChatTemplate, PromptShape, Role, TemplateError};
use grpo_engine_protocol::{
    ChatAnswer, ChatChoice, ChatRequest, ChatResponse, ChatRole, CompletionRequest, ErrorBody, ErrorCode, FinishReason,
    Prompt, Usage,
};
use std::path::Path;

/// The model's chat template, or why it has none.
pub struct Chat(Result<ChatTemplate, String>);

impl Chat {
    /// Reads tokenizer and chat template in the model's folder.
    pub fn load(model: &Path) -> Self {
        Self(ChatTemplate::load(model).map_err(|error| {
            tracing::info!("conversations in text are not served: {error}");
            error.to_string()
        }))
    }

    /// The request in token ids. By default its answer may fill the rest of the context.
    pub fn asked(&self, request: ChatRequest, bounds: Bounds) -> Result<CompletionRequest, ErrorBody> {
        let template = self.template()?;
        if request.messages.is_empty() {
            return Err(invalid("messages must hold at least one message".to_owned()));
        }
        let messages: Vec<ChatMessage> = request
            .messages
            .into_iter()
            .map(|message| ChatMessage::new(role(message.role), message.content))
            .collect();
        let prompt = template.prompt(&PromptShape::default(), &messages).map_err(refused)?;
        // A prompt that fills the context is refused with the other bounds.
        let left = bounds.max_context.saturating_sub(prompt.len()).max(1);
        let left = u32::try_from(left).unwrap_or(u32::MAX);
        Ok(CompletionRequest {
            model: request.model,
            prompt: Prompt::Tokens(prompt),
            max_tokens: request.max_tokens.map_or(left, |limit| limit.min(left)),
            temperature: request.temperature,
            top_p: request.top_p,
            top_k: request.top_k.unwrap_or(0),
            min_p: request.min_p,
            presence_penalty: request.presence_penalty,
            frequency_penalty: request.frequency_penalty,
            repetition_penalty: request.repetition_penalty,
            n: 1,
            seed: request.seed,
            stop_token_ids: template.stop_ids(),
            ignore_eos: false,
            logprobs: None,
            return_token_ids: false,
            return_weight_versions: false,
            routed_experts_from: None,
        })
    }

    /// The answer in text, without the token that ended it.
    pub fn answered(&self, model: String, rows: Vec<AnswerRow>, usage: Usage) -> Result<ChatResponse, ErrorBody> {
        let template = self.template()?;
        let choices = (0..).zip(rows).map(|(index, mut row)| {
            if row.stop_token.is_some() {
                row.tokens.pop();
            }
            let text = template.text(&row.tokens);
            let text = text.map_err(|error| ErrorBody::new(ErrorCode::EngineMisbehaved, error.to_string()))?;
            Ok(ChatChoice {
                index,
                message: ChatAnswer::text(text),
                finish_reason: Some(word(row.finish).to_owned()),
            })
        });
        Ok(ChatResponse {
            model,
            choices: choices.collect::<Result<_, ErrorBody>>()?,
            usage: Some(usage),
        })
    }

    fn template(&self) -> Result<&ChatTemplate, ErrorBody> {
        self.0.as_ref().map_err(|why| {
            let message = format!(
                "this engine cannot read conversations in text: {why}; serve a model with tokenizer.json, \
                 tokenizer_config.json and a chat template, or send token ids to /v1/completions"
            );
            ErrorBody::new(ErrorCode::TextPromptUnsupported, message)
        })
    }
}

fn role(role: ChatRole) -> Role {
    match role {
        ChatRole::System => Role::System,
        ChatRole::User => Role::User,
        ChatRole::Assistant => Role::Assistant,
    }
}

fn word(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Abort => "abort",
    }
}

/// The template's refusal of these messages.
fn refused(error: TemplateError) -> ErrorBody {
    invalid(format!("messages: {error}"))
}

fn invalid(message: String) -> ErrorBody {
    ErrorBody::new(ErrorCode::InvalidRequest, message)
}
