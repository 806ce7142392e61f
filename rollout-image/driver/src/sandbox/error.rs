//! Errors of sandboxes: their possible cause, and the void reason of the attempt.

use grpo_records::VoidReason;
use grpo_sandbox_protocol::{FaultOrigin as Whose, SandboxCause};
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The sandbox is gone, for a cause that the gateway names (it may be `Unknown`).
    #[error("the sandbox of lease {lease} is gone: {cause:?}")]
    Lost { lease: String, cause: SandboxCause },
    #[error("the image {image} cannot be pulled: {message}")]
    ImageUnavailable { image: String, message: String },
    #[error("{doing}: no answer from the gateway that could be used within {within:?}; last: {last}")]
    Unavailable {
        doing: String,
        within: Duration,
        last: String,
        /// The gateway answered and the sandbox's pod exists, but nothing in it answers.
        silent: bool,
    },
    #[error("lease {lease} does not exist (any more)")]
    NoSuchLease { lease: String },
    #[error("{path} does not exist in the sandbox of lease {lease}")]
    NoSuchFile { lease: String, path: String },
    #[error("{doing}: the gateway refuses: {message}")]
    Refused {
        doing: String,
        message: String,
        fault: Whose,
    },
}

impl SandboxError {
    /// Whether the workload in the sandbox caused the error.
    pub fn is_workloads_fault(&self) -> bool {
        match self {
            Self::Lost { cause, .. } => cause.fault() == Whose::Workload,
            Self::Refused { fault, .. } => *fault == Whose::Workload,
            _ => false,
        }
    }

    /// The reason of a void that ends with this error.
    pub fn void_reason(&self) -> VoidReason {
        match self {
            Self::Lost { .. } | Self::NoSuchLease { .. } => VoidReason::SandboxLost,
            Self::ImageUnavailable { .. } => VoidReason::ImageUnavailable,
            Self::Unavailable { .. } | Self::NoSuchFile { .. } | Self::Refused { .. } => VoidReason::SandboxUnavailable,
        }
    }

    /// The possible cause, as far as it is known here.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Lost { cause, .. } if cause.fault() == Whose::Workload => Blame::Workload,
            Self::Lost {
                cause: SandboxCause::Unknown,
                ..
            }
            | Self::Unavailable { silent: true, .. } => Blame::Unknown,
            Self::Refused { fault, .. } if *fault != Whose::Infrastructure => Blame::Workload,
            Self::NoSuchFile { .. } => Blame::Workload,
            Self::Lost { .. }
            | Self::ImageUnavailable { .. }
            | Self::Unavailable { .. }
            | Self::NoSuchLease { .. }
            | Self::Refused { .. } => Blame::Infrastructure,
        }
    }
}

/// The possible cause of an error while a command of the policy, or its patch, was in the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The workload in the sandbox, or the policy's request.
    Workload,
    /// Nothing outside the sandbox explains it: the workload may have caused it.
    Unknown,
    Infrastructure,
}
