//! Error answers: a code to act on, a sentence to read, and whose fault it was.

use serde::{Deserialize, Serialize};

/// Where the fault behind an error lies. Decides between a verdict and a Void.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum FaultOrigin {
    /// Nodes, network, gateway, API server: never a reward.
    Infrastructure,
    /// What ran in the sandbox brought it about: never a Void.
    Workload,
    /// The caller asked for something wrong.
    Client,
}

/// Codes of error answers, and the HTTP status each comes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ErrorCode {
    /// 400: the request cannot be understood.
    BadRequest,
    /// 401: sandboxd does not believe the signature: another key, or clocks that differ.
    BadSignature,
    /// 401: no service-account token, or one that is not valid here; the message says what to send.
    Unauthenticated,
    /// 403: the service account may not do this.
    Forbidden,
    /// 403: `network: None` is not shown to be enforced.
    EgressUnproven,
    /// 404.
    NoSuchLease,
    /// 404.
    NoSuchFile,
    /// 404: no command or session has this id, or it is not kept any more.
    NoSuchExec,
    /// 409: bound to another lease or epoch.
    WrongLease,
    /// 410: the sandbox of this lease is gone; `cause` says why.
    SandboxLost,
    /// 413: a body, a file or an answer over its limit.
    TooLarge,
    /// 424: the image cannot be pulled.
    ImageUnavailable,
    /// 500: a fault in the service itself.
    Internal,
    /// 502: sandboxd did not answer, though its pod is there; ask again with the same id.
    SandboxUnreachable,
    /// 503: a grader's sandbox could not reach the pool's package index; the message says what to look at.
    PackageIndexUnreachable,
    /// 503: nothing was free within the time the caller would wait.
    QueueDeadline,
    /// 503: starting or stopping; ask again.
    Unavailable,
}

impl ErrorCode {
    /// The HTTP status that goes with the code.
    pub fn status(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::BadSignature | Self::Unauthenticated => 401,
            Self::EgressUnproven | Self::Forbidden => 403,
            Self::NoSuchLease | Self::NoSuchFile | Self::NoSuchExec => 404,
            Self::WrongLease => 409,
            Self::SandboxLost => 410,
            Self::TooLarge => 413,
            Self::ImageUnavailable => 424,
            Self::Internal => 500,
            Self::SandboxUnreachable => 502,
            Self::PackageIndexUnreachable | Self::QueueDeadline | Self::Unavailable => 503,
        }
    }
}

/// Why a sandbox ended under its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum SandboxCause {
    /// Killed for its own memory limit.
    OutOfMemory,
    /// Killed, and the cluster recorded no reason: out of memory whose event the runtime lost.
    Killed,
    /// Evicted for what it used: more than its limit or its request, or the most files or processes of its node.
    EvictedOwnLimit,
    /// Evicted for filling its own disk.
    DiskFull,
    /// What ran in it ended PID 1, or kept it from answering.
    Exited,
    /// Somebody deleted the pod.
    Deleted,
    /// Its node is gone.
    NodeLost,
    /// Preempted by a pod of higher priority.
    Preempted,
    /// Drained, or evicted for the node's sake.
    Disrupted,
    /// Its lease had run out.
    Expired,
    /// Nothing recorded says why.
    Unknown,
}

impl SandboxCause {
    /// Whose fault the cause is.
    pub fn fault(self) -> FaultOrigin {
        match self {
            Self::OutOfMemory | Self::Killed | Self::EvictedOwnLimit | Self::DiskFull | Self::Exited => {
                FaultOrigin::Workload
            }
            Self::Deleted | Self::NodeLost | Self::Preempted | Self::Disrupted | Self::Expired | Self::Unknown => {
                FaultOrigin::Infrastructure
            }
        }
    }
}

/// The body of every error answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[error("{code:?}: {message}")]
pub struct ErrorBody {
    pub code: ErrorCode,
    pub message: String,
    pub fault: FaultOrigin,
    /// With `SandboxLost`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<SandboxCause>,
    /// With `QueueDeadline`: place in the queue, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
    /// With `QueueDeadline`: how many were waiting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<usize>,
    /// With `QueueDeadline`: until when the caller would wait, unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<i64>,
}

impl ErrorBody {
    pub fn new(code: ErrorCode, fault: FaultOrigin, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            fault,
            cause: None,
            position: None,
            waiting: None,
            deadline: None,
        }
    }

    /// The answer for a lease whose sandbox is gone.
    pub fn lost(lease: &str, cause: SandboxCause) -> Self {
        let message = format!("the sandbox of lease {lease} is gone ({cause:?}); lease another one");
        Self {
            cause: Some(cause),
            ..Self::new(ErrorCode::SandboxLost, cause.fault(), message)
        }
    }
}
