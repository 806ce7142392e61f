//! The body of every refusal: a code for programs, a message for people, and the origin of the error.

use serde::{Deserialize, Serialize};

/// The origin of an error. It decides whether an episode is void or unresolved, so it is never guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ErrorOrigin {
    /// The cluster, the network or one of our processes: retry, and never count it against the policy.
    Infrastructure,
    /// Caused by the policy or the model, such as weights that produce no finite number.
    Workload,
    /// The request itself: a retry without a change is pointless.
    Client,
}

/// Error codes, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ErrorCode {
    /// A field is missing, unknown or out of bounds.
    InvalidRequest,
    /// A prompt was text; engines without a tokenizer take token ids only.
    TextPromptUnsupported,
    /// Prompt and `max_tokens` together exceed the context.
    ContextTooLong,
    /// Experts were asked for, and the engine reports none.
    ExpertsNotReported,
    /// The server behind the agent refuses a sampling setting, which [`ErrorBody::setting`] names.
    SettingRefused,
    /// Token ids were asked for, and the server behind the agent speaks only text ([`crate::text`]).
    TextOnly,
    /// The body is larger than the limit.
    BodyTooLarge,
    /// The queue is full; retry later.
    QueueFull,
    /// The replica serves another version than the one asked for.
    WrongWeights,
    /// A later attempt of the run's driver gives the orders.
    DriverSuperseded,
    /// The engine does not answer.
    EngineUnavailable,
    /// The engine's response cannot be understood.
    EngineMisbehaved,
    /// The engine could not load a weights directory; it continues to serve the earlier version.
    LoadFailed,
    /// The weights produce logits that are not finite.
    NonFiniteLogits,
    /// The account may call other paths, and not this one.
    Forbidden,
    /// No such path.
    NotFound,
    /// A code this build does not know.
    #[serde(other)]
    Unknown,
}

/// `{code, message, fault}`, and for some codes more: the two versions of [`ErrorCode::WrongWeights`], the setting of
/// [`ErrorCode::SettingRefused`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "camelCase")]
#[error("{code:?}: {message}")]
pub struct ErrorBody {
    pub code: ErrorCode,
    pub message: String,
    pub fault: ErrorOrigin,
    /// The version that serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving: Option<String>,
    /// The version that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<String>,
    /// The sampling setting that the server refuses, by its name in requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setting: Option<String>,
    /// How long the server behind the agent asks its clients to wait; also in the header `Retry-After`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u64>,
}

impl ErrorBody {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            fault: code.origin(),
            serving: None,
            wanted: None,
            setting: None,
            retry_after_seconds: None,
        }
    }

    /// The refusal of a request for a version that the replica does not serve, or not yet or no longer.
    pub fn wrong_weights(serving: Option<&str>, wanted: &str) -> Self {
        let now = serving.unwrap_or("nothing yet");
        Self {
            serving: serving.map(str::to_owned),
            wanted: Some(wanted.to_owned()),
            ..Self::new(
                ErrorCode::WrongWeights,
                format!(
                    "asked for weights {wanted}, this replica serves {now}; order the version or use another replica"
                ),
            )
        }
    }

    /// The HTTP status of the code.
    pub fn status(&self) -> u16 {
        match self.code {
            ErrorCode::InvalidRequest
            | ErrorCode::TextPromptUnsupported
            | ErrorCode::ContextTooLong
            | ErrorCode::ExpertsNotReported
            | ErrorCode::SettingRefused
            | ErrorCode::TextOnly => 400,
            ErrorCode::Forbidden => 403,
            ErrorCode::NotFound => 404,
            ErrorCode::WrongWeights | ErrorCode::DriverSuperseded => 409,
            ErrorCode::BodyTooLarge => 413,
            ErrorCode::LoadFailed => 422,
            ErrorCode::QueueFull => 429,
            ErrorCode::NonFiniteLogits | ErrorCode::Unknown => 500,
            ErrorCode::EngineMisbehaved => 502,
            ErrorCode::EngineUnavailable => 503,
        }
    }
}

impl ErrorCode {
    fn origin(self) -> ErrorOrigin {
        match self {
            Self::InvalidRequest
            | Self::TextPromptUnsupported
            | Self::ContextTooLong
            | Self::ExpertsNotReported
            | Self::SettingRefused
            | Self::TextOnly
            | Self::BodyTooLarge
            | Self::Forbidden
            | Self::NotFound => ErrorOrigin::Client,
            Self::NonFiniteLogits => ErrorOrigin::Workload,
            Self::QueueFull
            | Self::WrongWeights
            | Self::DriverSuperseded
            | Self::EngineUnavailable
            | Self::EngineMisbehaved
            | Self::LoadFailed
            | Self::Unknown => ErrorOrigin::Infrastructure,
        }
    }
}

#[cfg(test)]
mod tests;
