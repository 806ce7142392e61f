//! HTTP to engines: the one place that reads answers, bounds them and words their errors.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use grpo_auth::TokenFile;
use grpo_engine_protocol::{CompletionRequest, ErrorBody, ErrorCode, Prompt, WEIGHTS_HEADER};
use reqwest::{Client, RequestBuilder, Url};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::dialect::Dialect;
use super::refusal::{ServerRefusal, wait_asked};
use super::{EngineFault, Page};

/// Deadline for a state: a slower answer counts as none.
pub const STATE_DEADLINE: Duration = Duration::from_secs(5);

/// Deadline for hashing all weights, dropping a cache, or a first prompt, for which an engine may compile.
pub const CHECK_DEADLINE: Duration = Duration::from_secs(300);

/// An engine's whole answer.
#[derive(Debug)]
pub struct Answered {
    pub status: StatusCode,
    pub content_type: Option<HeaderValue>,
    /// The wait that the engine asks for, with an error.
    pub retry_after: Option<HeaderValue>,
    pub body: Bytes,
}

impl Answered {
    pub fn json(body: Vec<u8>) -> Self {
        Self {
            status: StatusCode::OK,
            content_type: Some(HeaderValue::from_static("application/json")),
            retry_after: None,
            body: body.into(),
        }
    }
}

impl IntoResponse for Answered {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = self.status;
        if let Some(content_type) = self.content_type {
            response.headers_mut().insert(header::CONTENT_TYPE, content_type);
        }
        if let Some(retry_after) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, retry_after);
        }
        response
    }
}

/// An engine's server: its address and its client.
#[derive(Clone, Debug)]
pub struct Server {
    pub client: Client,
    /// This pod's own token, for another agent of the cluster.
    pub token: Option<TokenFile>,
    pub url: Url,
    /// Deadline of one completion, from first byte to last.
    pub completion_deadline: Duration,
    /// Largest accepted answer.
    pub answer_bytes: usize,
    /// The form of requests in OpenAI's format that it takes.
    pub dialect: Arc<Dialect>,
}

impl Server {
    pub fn at(&self, path: &str) -> Url {
        at(&self.url, path)
    }

    fn authorized(&self, call: RequestBuilder) -> RequestBuilder {
        TokenFile::authorize(self.token.as_ref(), call)
    }

    /// Asks a short question with an answer in JSON.
    pub async fn ask<T: DeserializeOwned>(&self, path: &str) -> Result<T, EngineFault> {
        let url = self.at(path);
        ask(
            self.authorized(self.client.get(url.clone()).timeout(STATE_DEADLINE)),
            &url,
        )
        .await
    }

    /// Sends an order; the answer must be a success, and its body is ignored.
    pub async fn tell(&self, path: &str, body: &Value, deadline: Duration) -> Result<(), EngineFault> {
        let url = self.at(path);
        let call = self.client.post(url.clone()).timeout(deadline).json(body);
        successful(self.fetch(call, &url).await?, &url).map(|_| ())
    }

    /// Sends a call and returns its answer, even if the status is an error.
    pub async fn fetch(&self, call: RequestBuilder, url: &Url) -> Result<Answered, EngineFault> {
        let unreachable = |error: reqwest::Error| EngineFault::Unreachable {
            url: url.to_string(),
            cause: causes(&error),
        };
        let answer = self.authorized(call).send().await.map_err(unreachable)?;
        let status = answer.status();
        let content_type = answer.headers().get(header::CONTENT_TYPE).cloned();
        let retry_after = answer.headers().get(header::RETRY_AFTER).cloned();
        let mut body = Vec::new();
        let mut stream = answer.bytes_stream();
        while let Some(piece) = stream.next().await {
            body.extend_from_slice(&piece.map_err(unreachable)?);
            if body.len() > self.answer_bytes {
                return Err(EngineFault::Misunderstood {
                    url: url.to_string(),
                    cause: format!("it exceeds {} bytes; ask for fewer rows", self.answer_bytes),
                });
            }
        }
        Ok(Answered {
            status,
            content_type,
            retry_after,
            body: body.into(),
        })
    }

    pub async fn page(&self, page: Page) -> Result<Answered, EngineFault> {
        let url = self.at(page.path());
        self.fetch(self.client.get(url.clone()).timeout(STATE_DEADLINE), &url)
            .await
    }

    /// Forwards a sampling request unchanged to an engine that speaks our protocol.
    pub async fn pass_on(&self, path: &str, body: Bytes, wanted: Option<&str>) -> Result<Answered, ErrorBody> {
        let url = self.at(path);
        let mut call = self
            .client
            .post(url.clone())
            .timeout(self.completion_deadline)
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(wanted) = wanted {
            call = call.header(WEIGHTS_HEADER, wanted);
        }
        self.fetch(call.body(body), &url).await.map_err(EngineFault::refusal)
    }

    /// Sends a request for a completion, in any protocol, and reads its answer.
    pub async fn sample<T: DeserializeOwned>(&self, path: &str, body: &Value, version: &str) -> Result<T, ErrorBody> {
        let answer = self.put_question(path, body).await?;
        match answer.status {
            // The named adapter is not loaded (any more).
            StatusCode::NOT_FOUND => Err(ErrorBody::wrong_weights(None, version)),
            status if status.is_success() => self.read(path, &answer),
            _ => Err(not_sampled(&answer)),
        }
    }

    /// The answer to a sampling request, or a refusal.
    pub async fn put_question(&self, path: &str, body: &Value) -> Result<Answered, ErrorBody> {
        let url = self.at(path);
        let call = self
            .client
            .post(url.clone())
            .timeout(self.completion_deadline)
            .json(body);
        self.fetch(call, &url).await.map_err(EngineFault::refusal)
    }

    /// Parses an answer.
    pub fn read<T: DeserializeOwned>(&self, path: &str, answer: &Answered) -> Result<T, ErrorBody> {
        serde_json::from_slice(&answer.body).map_err(|error| {
            misbehaved(format!(
                "the engine at {} answered what this agent does not understand: {error}",
                self.at(path)
            ))
        })
    }
}

/// Translates an engine's refusal to sample into our protocol.
pub fn not_sampled(answer: &Answered) -> ErrorBody {
    let said = said(answer);
    let error = match answer.status {
        status if is_bad_request(status) => {
            let refusal = ServerRefusal::of(&answer.body);
            match refusal.setting() {
                _ if refusal.is_too_long() => ErrorBody::new(ErrorCode::ContextTooLong, said),
                Some(setting) => ErrorBody {
                    setting: Some(setting.to_owned()),
                    ..ErrorBody::new(ErrorCode::SettingRefused, said)
                },
                None => ErrorBody::new(ErrorCode::InvalidRequest, said),
            }
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ErrorBody::new(
            ErrorCode::EngineUnavailable,
            format!("the engine does not let this agent in: {said}; look at the pool's apiKeySecretRef"),
        ),
        StatusCode::TOO_MANY_REQUESTS => ErrorBody::new(ErrorCode::QueueFull, said),
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => {
            ErrorBody::new(ErrorCode::EngineUnavailable, said)
        }
        _ => misbehaved(said),
    };
    let header = answer.retry_after.as_ref().and_then(|value| value.to_str().ok());
    ErrorBody {
        retry_after_seconds: header.and_then(|header| wait_asked(header, SystemTime::now())),
        ..error
    }
}

/// Whether the request itself is refused.
pub fn is_bad_request(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY)
}

/// The text of an engine's refusal.
pub fn said(answer: &Answered) -> String {
    words(answer.status, &answer.body)
}

fn words(status: StatusCode, body: &[u8]) -> String {
    ServerRefusal::of(body)
        .message
        .unwrap_or_else(|| format!("HTTP {status}"))
}

pub fn misbehaved(message: impl Into<String>) -> ErrorBody {
    ErrorBody::new(ErrorCode::EngineMisbehaved, message)
}

/// How vLLM and SGLang end an answer that they gave up, as when their process ends. Its status is 200.
pub const GIVEN_UP: &str = "abort";

/// The refusal in place of such an answer.
pub fn given_up() -> ErrorBody {
    ErrorBody::new(
        ErrorCode::EngineUnavailable,
        "the engine gave the request up before its answer was complete, as an engine does when it stops; send it again, \
         or use another replica",
    )
}

/// Parses a sampling request for engines other than ours: token ids only.
pub fn read_request(body: &[u8]) -> Result<(CompletionRequest, Vec<Vec<u32>>), ErrorBody> {
    let request: CompletionRequest =
        serde_json::from_slice(body).map_err(|error| ErrorBody::new(ErrorCode::InvalidRequest, error.to_string()))?;
    let prompts = match &request.prompt {
        Prompt::Tokens(tokens) => vec![tokens.clone()],
        Prompt::Batch(prompts) => prompts.clone(),
        Prompt::Text(_) | Prompt::Texts(_) => {
            return Err(ErrorBody::new(
                ErrorCode::TextPromptUnsupported,
                "prompt: text is not taken, give token ids",
            ));
        }
    };
    if prompts.iter().any(Vec::is_empty) || prompts.is_empty() {
        return Err(ErrorBody::new(
            ErrorCode::InvalidRequest,
            "prompt: there are no token ids in it",
        ));
    }
    Ok((request, prompts))
}

/// Engines take seeds as signed 64-bit numbers.
pub fn engine_seed(seed: u64) -> i64 {
    i64::try_from(seed & (u64::MAX >> 1)).unwrap_or_default()
}

/// A path below a server's address, with its query.
pub fn at(server: &Url, path: &str) -> Url {
    let (path, query) = match path.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (path, None),
    };
    let mut url = server.clone();
    url.set_path(&format!("{}{path}", server.path().trim_end_matches('/')));
    url.set_query(query);
    url
}

/// An engine's success, or its refusal in its own words.
pub fn successful(answer: Answered, url: &Url) -> Result<Answered, EngineFault> {
    if answer.status.is_success() {
        return Ok(answer);
    }
    Err(EngineFault::Refused {
        url: url.to_string(),
        message: said(&answer),
    })
}

pub async fn ask<T: DeserializeOwned>(call: RequestBuilder, url: &Url) -> Result<T, EngineFault> {
    let unreachable = |error: reqwest::Error| EngineFault::Unreachable {
        url: url.to_string(),
        cause: causes(&error),
    };
    let answer = call.send().await.map_err(unreachable)?;
    let status = answer.status();
    let body = answer.bytes().await.map_err(unreachable)?;
    if !status.is_success() {
        return Err(EngineFault::Refused {
            url: url.to_string(),
            message: words(status, &body),
        });
    }
    serde_json::from_slice(&body).map_err(|error| EngineFault::Misunderstood {
        url: url.to_string(),
        cause: error.to_string(),
    })
}

/// An error with its causes: reqwest's own text stops at "error sending request".
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests;
