//! `POST /v1/completions` and `GET /v1/models`, in the shape of OpenAI and vLLM.
//!
//! The request type has only fields that are honoured, and unknown fields are refused. If an engine silently ignored a
//! penalty or a mask, the recorded logprobs would belong to another distribution.

use crate::RoutedExperts;
use crate::penalties::{Penalties, of_request};
use serde::{Deserialize, Serialize, Serializer};

/// A request to sample `n` continuations of each prompt.
///
/// Rows are numbered prompt by prompt: row `j` is sample `j % n` of prompt `j / n`. Row j draws from a generator keyed
/// by (seed, j, position), so an answer never depends on the engine's other work.
///
/// A client that keeps the prompt elsewhere sends it as [`TokenIds`], without a copy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompletionRequest<P = Prompt> {
    /// Echoed. An engine serves one model; engines with adapters take the adapter's name here.
    #[serde(default)]
    pub model: String,
    pub prompt: P,
    /// Maximum number of tokens to sample per row, the stop token included.
    #[serde(default = "sixteen")]
    pub max_tokens: u32,
    /// 0 is greedy; the logprobs are then those of the unscaled distribution.
    #[serde(default = "one")]
    pub temperature: f64,
    /// Keep the smallest set of tokens whose total probability reaches this; 1 keeps all.
    #[serde(default = "one")]
    pub top_p: f64,
    /// Keep the k likeliest tokens; 0 or -1 keeps all.
    #[serde(default)]
    pub top_k: i64,
    /// As in [`crate::Penalties`]; absent changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frequency_penalty: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f64>,
    #[serde(default = "one_row")]
    pub n: u32,
    /// Without a seed the engine draws one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop_token_ids: Vec<u32>,
    /// Continue past the model's own end tokens; `stop_token_ids` still stop.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ignore_eos: bool,
    /// 0 or 1: return the logprob of each sampled token. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<u32>,
    #[serde(default)]
    pub return_token_ids: bool,
    /// A client of vLLM may ask for versions. An answer always names its own.
    #[serde(default, skip_serializing)]
    pub return_weight_versions: bool,
    /// Return the experts of every token from this position of the prompt on. Absent: none. An engine that does not
    /// report experts refuses the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routed_experts_from: Option<usize>,
}

impl CompletionRequest {
    /// A request for one continuation of `prompt` with ids and logprobs, at temperature 1.
    pub fn of_tokens(model: impl Into<String>, prompt: Vec<u32>, max_tokens: u32, seed: u64) -> Self {
        Self {
            model: model.into(),
            prompt: Prompt::Tokens(prompt),
            max_tokens,
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: None,
            presence_penalty: None,
            frequency_penalty: None,
            repetition_penalty: None,
            n: 1,
            seed: Some(seed),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            logprobs: Some(0),
            return_token_ids: true,
            return_weight_versions: false,
            routed_experts_from: None,
        }
    }
}

impl<P> CompletionRequest<P> {
    /// The sampling settings beyond temperature, `top_p` and `top_k`.
    pub fn penalties(&self) -> Penalties {
        of_request(
            self.min_p,
            self.presence_penalty,
            self.frequency_penalty,
            self.repetition_penalty,
        )
    }

    /// Sets the penalties. A penalty that changes nothing is not sent.
    pub fn with_penalties(self, penalties: Penalties) -> Self {
        let [min_p, presence_penalty, frequency_penalty, repetition_penalty] = penalties.given();
        Self {
            min_p,
            presence_penalty,
            frequency_penalty,
            repetition_penalty,
            ..self
        }
    }
}

impl<'a> CompletionRequest<TokenIds<'a>> {
    /// A request for this prompt, with the settings of another request.
    pub fn asking(prompt: TokenIds<'a>, settings: CompletionRequest) -> Self {
        Self {
            prompt,
            model: settings.model,
            max_tokens: settings.max_tokens,
            temperature: settings.temperature,
            top_p: settings.top_p,
            top_k: settings.top_k,
            min_p: settings.min_p,
            presence_penalty: settings.presence_penalty,
            frequency_penalty: settings.frequency_penalty,
            repetition_penalty: settings.repetition_penalty,
            n: settings.n,
            seed: settings.seed,
            stop_token_ids: settings.stop_token_ids,
            ignore_eos: settings.ignore_eos,
            logprobs: settings.logprobs,
            return_token_ids: settings.return_token_ids,
            return_weight_versions: settings.return_weight_versions,
            routed_experts_from: settings.routed_experts_from,
        }
    }

    /// The request as JSON.
    pub fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        let mut json = Vec::with_capacity(512 + JSON_OF_AN_ID * self.prompt.len());
        serde_json::to_writer(&mut json, self)?;
        Ok(json)
    }
}

/// Bytes of a token id in JSON, with its comma, for a vocabulary with ids of six digits.
const JSON_OF_AN_ID: usize = 7;

fn sixteen() -> u32 {
    16
}

fn one() -> f64 {
    1.0
}

fn one_row() -> u32 {
    1
}

/// One prompt or several, as token ids. Text is parsed only so that it can be refused by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Prompt {
    Tokens(Vec<u32>),
    Batch(Vec<Vec<u32>>),
    Text(String),
    Texts(Vec<String>),
}

/// One prompt in two slices: the row so far, and the ids appended to it. Serialized as one list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenIds<'a>(pub &'a [u32], pub &'a [u32]);

impl TokenIds<'_> {
    pub fn len(&self) -> usize {
        self.0.len() + self.1.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn last(&self) -> Option<u32> {
        self.1.last().or(self.0.last()).copied()
    }

    pub fn to_vec(&self) -> Vec<u32> {
        [self.0, self.1].concat()
    }
}

impl Serialize for TokenIds<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().chain(self.1))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompletionResponse {
    pub id: String,
    pub object: String,
    /// Seconds since the Unix epoch.
    pub created: u64,
    pub model: String,
    /// The version every row was sampled from.
    pub weights_version: String,
    pub choices: Vec<CompletionChoice>,
    pub usage: Usage,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompletionChoice {
    pub index: u32,
    /// Empty if the engine has no tokenizer.
    #[serde(default)]
    pub text: String,
    /// The sampled ids, the stop token included. Empty unless `return_token_ids` was asked for.
    #[serde(default)]
    pub token_ids: Vec<u32>,
    pub finish_reason: FinishReason,
    /// The stop token that ended the row.
    #[serde(default)]
    pub stop_reason: Option<u32>,
    #[serde(default)]
    pub logprobs: Option<ChoiceLogprobs>,
    /// The experts of all tokens but the last, from `routed_experts_from` on. Present if the request set that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routed_experts: Option<RoutedExperts>,
    pub weights_version: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// A stop token or the model's end token was sampled.
    Stop,
    /// `max_tokens` were sampled.
    Length,
    /// The engine gave up the row.
    Abort,
}

/// Natural logarithms under the processed distribution (temperature, top-k, top-p), one per sampled token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChoiceLogprobs {
    pub token_logprobs: Vec<f32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub total_tokens: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelList {
    pub object: String,
    pub data: Vec<ModelCard>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelCard {
    pub id: String,
    pub object: String,
    pub created: u64,
    pub owned_by: String,
    /// Maximum length of prompt and continuation together, in tokens.
    pub max_model_len: u32,
    #[serde(default)]
    pub weights_version: Option<String>,
}

#[cfg(test)]
mod tests;
