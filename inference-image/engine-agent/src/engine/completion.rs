//! Completions in the format of vLLM and of other engines with OpenAI's API: builds the request, reads the answer, and
//! finds the weights version from which each row was sampled.

use grpo_engine_protocol::{
    ChoiceLogprobs, CompletionChoice, CompletionRequest, CompletionResponse, ErrorBody, FinishReason, Usage,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::adapters::version_of_label;
use super::experts::Asked;
use super::wire::{Answered, GIVEN_UP, engine_seed, given_up, misbehaved};

/// The request in vLLM's format. Unlike OpenAI's, its completions take and return token ids.
pub fn completion(request: &CompletionRequest, prompts: &[Vec<u32>], model: &str) -> Value {
    let mut asked = json!({
        "model": model,
        "prompt": if prompts.len() == 1 { json!(prompts[0]) } else { json!(prompts) },
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": if request.top_k <= 0 { -1 } else { request.top_k },
        "n": request.n,
        "seed": request.seed.map(engine_seed),
        "stop_token_ids": request.stop_token_ids,
        "ignore_eos": request.ignore_eos,
        "logprobs": request.logprobs,
        "return_token_ids": true,
        "return_weight_versions": true,
    });
    for (name, value) in request.penalties().named() {
        asked[name] = json!(value);
    }
    asked
}

/// An answer in vLLM's format.
#[derive(Debug, Deserialize)]
pub struct Completion {
    pub id: String,
    #[serde(default)]
    pub created: u64,
    pub model: String,
    pub choices: Vec<Choice>,
    #[serde(default)]
    pub usage: Option<UsageSaid>,
}

#[derive(Debug, Default, Deserialize)]
pub struct UsageSaid {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
pub struct Choice {
    index: u32,
    #[serde(default)]
    text: String,
    #[serde(default)]
    pub token_ids: Option<Vec<u32>>,
    finish_reason: Option<String>,
    #[serde(default)]
    stop_reason: Option<Value>,
    #[serde(default)]
    pub logprobs: Option<LogprobsSaid>,
    #[serde(default)]
    pub weight_versions: Option<Vec<Span>>,
    #[serde(default)]
    routed_experts: Option<String>,
}

#[derive(Debug, Deserialize)]
pub struct LogprobsSaid {
    pub token_logprobs: Vec<Option<f32>>,
}

/// Tokens that one version sampled.
#[derive(Clone, Debug, Deserialize)]
pub struct Span {
    pub version: String,
}

/// Evidence of the version from which a row was sampled.
#[derive(Clone, Copy, Debug)]
pub enum Proof<'a> {
    /// The requested name: no other weights answer to it.
    Named(&'a str),
    /// The row's own labels.
    Labels,
}

/// The version from which a row was sampled. A row from two versions is an error.
pub fn sampled_from(spans: &[Span]) -> Result<String, ErrorBody> {
    let mut versions = spans.iter().map(|span| version_of_label(&span.version));
    let first = versions.next().ok_or_else(|| {
        misbehaved(
            "the engine does not say which weights a row was sampled from; is it of the release the operator expects?",
        )
    })?;
    match versions.find(|other| *other != first) {
        Some(other) => Err(ErrorBody::wrong_weights(Some(other), first)),
        None => Ok(first.to_owned()),
    }
}

/// The answer in our protocol, if it contains everything that was requested.
pub fn answered(
    answer: Completion,
    request: &CompletionRequest,
    prompts: &[Vec<u32>],
    from: Proof<'_>,
) -> Result<Answered, ErrorBody> {
    let mut choices = Vec::new();
    for choice in answer.choices {
        let weights_version = match from {
            Proof::Named(version) => version.to_owned(),
            Proof::Labels => sampled_from(choice.weight_versions.as_deref().unwrap_or_default())?,
        };
        choices.push(row(choice, request, prompts, weights_version)?);
    }
    let weights_version = choices.first().map(|choice| choice.weights_version.clone());
    let weights_version = weights_version.ok_or_else(|| misbehaved("the engine's answer has no rows"))?;
    let usage = answer.usage.unwrap_or_default();
    let completion_tokens = usage.completion_tokens.unwrap_or_default();
    let response = CompletionResponse {
        id: answer.id,
        object: "text_completion".to_owned(),
        created: answer.created,
        model: request.model.clone(),
        weights_version,
        choices,
        usage: Usage {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens,
            total_tokens: usage.prompt_tokens + completion_tokens,
        },
    };
    serde_json::to_vec(&response)
        .map(Answered::json)
        .map_err(|error| misbehaved(error.to_string()))
}

fn row(
    choice: Choice,
    request: &CompletionRequest,
    prompts: &[Vec<u32>],
    weights_version: String,
) -> Result<CompletionChoice, ErrorBody> {
    // First: a row that was given up lacks other parts.
    let finish_reason = finish_reason(choice.finish_reason.as_deref().unwrap_or_default())?;
    let ids = choice
        .token_ids
        .ok_or_else(|| misbehaved("the engine returned no token ids: it does not know return_token_ids"))?;
    let logprobs = match (request.logprobs, choice.logprobs) {
        (None, _) => None,
        (Some(_), Some(said)) => Some(
            said.token_logprobs
                .into_iter()
                .collect::<Option<Vec<f32>>>()
                .ok_or_else(|| misbehaved("a sampled token has no logprob"))?,
        ),
        (Some(_), None) => return Err(misbehaved("logprobs were asked for, and the engine returned none")),
    };
    if let Some(logprobs) = logprobs.as_ref().filter(|logprobs| logprobs.len() != ids.len()) {
        return Err(misbehaved(format!(
            "the engine returned {} token ids with {} logprobs",
            ids.len(),
            logprobs.len()
        )));
    }
    let prompt = prompts.get(choice.index as usize / request.n.max(1) as usize);
    let prompt = prompt.ok_or_else(|| misbehaved(format!("the engine returned row {}, too many", choice.index)))?;
    let asked = Asked::of(request, prompt.len(), ids.len());
    let routed_experts = asked
        .map(|asked| asked.of_vllm(choice.routed_experts.as_deref()))
        .transpose()?;
    Ok(CompletionChoice {
        index: choice.index,
        text: choice.text,
        token_ids: if request.return_token_ids { ids } else { Vec::new() },
        finish_reason,
        stop_reason: choice
            .stop_reason
            .as_ref()
            .and_then(Value::as_u64)
            .and_then(|id| u32::try_from(id).ok()),
        logprobs: logprobs.map(|token_logprobs| ChoiceLogprobs { token_logprobs }),
        routed_experts,
        weights_version,
    })
}

/// Why the model's row ended. A row that the engine gave up is not the model's, however many tokens it has.
pub fn finish_reason(said: &str) -> Result<FinishReason, ErrorBody> {
    match said {
        "stop" => Ok(FinishReason::Stop),
        "length" => Ok(FinishReason::Length),
        GIVEN_UP => Err(given_up()),
        other => Err(misbehaved(format!(
            "the engine ended a row for a reason that is not known here: {other:?}"
        ))),
    }
}
