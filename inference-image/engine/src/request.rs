//! From a completion request to a job: every bound is checked here, and every refusal says which field and why.

use crate::job::{Job, Reply};
use crate::model::Bounds;
use crate::sampling::Sampling;
use grpo_engine_protocol::{CompletionRequest, ErrorBody, ErrorCode, Prompt};
use std::hash::{BuildHasher, Hasher, RandomState};
use tokio::sync::oneshot;

/// Most rows one request may ask for: prompts times samples.
const MAX_ROWS_PER_REQUEST: usize = 1024;

/// Checks a request and makes it a job.
pub fn job(request: CompletionRequest, wanted: Option<String>, bounds: Bounds) -> Result<(Job, Reply), ErrorBody> {
    let penalties = request.penalties();
    let prompts = match request.prompt {
        Prompt::Tokens(prompt) => vec![prompt],
        Prompt::Batch(prompts) => prompts,
        Prompt::Text(_) | Prompt::Texts(_) => {
            return Err(ErrorBody::new(
                ErrorCode::TextPromptUnsupported,
                "prompt is text: send token ids, as [ids] or [[ids], …], or a conversation to /v1/chat/completions",
            ));
        }
    };
    if request.routed_experts_from.is_some() {
        return Err(ErrorBody::new(
            ErrorCode::ExpertsNotReported,
            "routed_experts_from is given, and this engine decodes dense models only: there are no experts",
        ));
    }
    let rows = prompts.len().saturating_mul(request.n as usize);
    require(rows > 0, || {
        "prompt must hold at least one list of ids, and n must be at least 1".to_owned()
    })?;
    require(rows <= MAX_ROWS_PER_REQUEST, || {
        format!("prompts times n is {rows}, more than {MAX_ROWS_PER_REQUEST}: send several requests")
    })?;
    require(request.max_tokens > 0, || "max_tokens must be at least 1".to_owned())?;
    require(request.temperature.is_finite() && request.temperature >= 0.0, || {
        format!("temperature is {}, must be 0 (greedy) or above", request.temperature)
    })?;
    require(request.top_p > 0.0 && request.top_p <= 1.0, || {
        format!("top_p is {}, must be above 0 and at most 1", request.top_p)
    })?;
    require(request.top_k >= -1, || {
        format!("top_k is {}, must be at least 1, or 0 or -1 for all", request.top_k)
    })?;
    require(penalties.fault().is_none(), || penalties.fault().unwrap_or_default())?;
    require(request.logprobs.is_none_or(|logprobs| logprobs <= 1), || {
        "logprobs must be 0 or 1: only the sampled token's logprob is returned".to_owned()
    })?;
    for (index, prompt) in prompts.iter().enumerate() {
        check_prompt(index, prompt, request.max_tokens as usize, bounds)?;
    }
    let (reply, answer) = oneshot::channel();
    let job = Job {
        prompts,
        samples: request.n,
        max_tokens: request.max_tokens as usize,
        sampling: Sampling {
            temperature: request.temperature,
            top_p: request.top_p,
            top_k: usize::try_from(request.top_k).unwrap_or(0),
            penalties,
            seed: request
                .seed
                .unwrap_or_else(|| RandomState::new().build_hasher().finish()),
        },
        stop_tokens: request.stop_token_ids,
        ignore_eos: request.ignore_eos,
        wanted,
        reply,
    };
    Ok((job, answer))
}

fn check_prompt(index: usize, prompt: &[u32], max_tokens: usize, bounds: Bounds) -> Result<(), ErrorBody> {
    require(!prompt.is_empty(), || format!("prompt {index} is empty"))?;
    if let Some(id) = prompt.iter().find(|id| **id as usize >= bounds.vocabulary) {
        return Err(invalid(format!(
            "prompt {index} has id {id}; the vocabulary has {}",
            bounds.vocabulary
        )));
    }
    if prompt.len().saturating_add(max_tokens) > bounds.max_context {
        return Err(ErrorBody::new(
            ErrorCode::ContextTooLong,
            format!(
                "prompt {index} has {} tokens and max_tokens is {max_tokens}; together at most {} fit",
                prompt.len(),
                bounds.max_context
            ),
        ));
    }
    Ok(())
}

fn require(holds: bool, message: impl FnOnce() -> String) -> Result<(), ErrorBody> {
    if holds { Ok(()) } else { Err(invalid(message())) }
}

fn invalid(message: String) -> ErrorBody {
    ErrorBody::new(ErrorCode::InvalidRequest, message)
}

#[cfg(test)]
mod tests;
