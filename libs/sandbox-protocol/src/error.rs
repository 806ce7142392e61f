//! Error responses: a code to act on, a sentence to read, and the origin of the fault.

use serde::{Deserialize, Serialize};

/// The cause of an error. Decides between a verdict and a Void.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum FaultOrigin {
    /// Nodes, network, gateway, API server: never a reward.
    Infrastructure,
    /// Caused by a process in the sandbox: never a Void.
    Workload,
    /// A wrong request.
    Client,
}

/// Codes of errors, each with its HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ErrorCode {
    /// 400: the request is malformed.
    BadRequest,
    /// 401: sandboxd refuses the signature: another key, or clocks that differ.
    BadSignature,
    /// 401: no service-account token, or an invalid one; the message says what to send.
    Unauthenticated,
    /// 403: the service account may not do this.
    Forbidden,
    /// 403: no probe has shown that `network: None` is enforced.
    EgressUnproven,
    /// 404.
    NoSuchLease,
    /// 404.
    NoSuchFile,
    /// 404: no command or session has this id, or it is no longer kept.
    NoSuchExec,
    /// 409: the sandbox is bound to another lease or epoch.
    WrongLease,
    /// 410: the sandbox of this lease is gone; `cause` says why.
    SandboxLost,
    /// 413: a body, a file or a response exceeds its limit.
    TooLarge,
    /// 424: the image cannot be pulled.
    ImageUnavailable,
    /// 500: a bug in the service.
    Internal,
    /// 502: sandboxd did not answer, although its pod exists; repeat the request with the same id.
    SandboxUnreachable,
    /// 503: a grader's sandbox cannot reach the pool's package index; the message names the next step.
    PackageIndexUnreachable,
    /// 503: no sandbox was free within `waitSeconds`.
    QueueDeadline,
    /// 503: the service starts or stops; repeat the request.
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

/// The cause of a sandbox's end under a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum SandboxCause {
    /// Killed for its own memory limit.
    OutOfMemory,
    /// Killed without a recorded reason: out of memory, and the runtime lost the event.
    Killed,
    /// Evicted for its own use: above its limit or request, or most of its node's files or processes.
    EvictedOwnLimit,
    /// Evicted for filling its own disk.
    DiskFull,
    /// A process in it ended PID 1, or kept it from answering.
    Exited,
    /// The pod was deleted.
    Deleted,
    /// Its node is gone.
    NodeLost,
    /// Preempted by a pod of higher priority.
    Preempted,
    /// The node was drained, or evicted the pod for its own reasons.
    Disrupted,
    /// The lease was over.
    Expired,
    /// No cause is recorded.
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

/// The body of every error.
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
    /// With `QueueDeadline`: the number of waiting requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<usize>,
    /// With `QueueDeadline`: the caller's deadline, unix milliseconds.
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
