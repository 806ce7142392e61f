//! What can go wrong with a sandbox: who can have caused it, and the void that an attempt ends with.

use grpo_records::VoidReason;
use grpo_sandbox_protocol::{FaultOrigin as Whose, SandboxCause};
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The sandbox is gone, and it is known whose fault that is.
    #[error("the sandbox of lease {lease} is gone: {cause:?}")]
    Lost { lease: String, cause: SandboxCause },
    #[error("the image {image} cannot be pulled: {message}")]
    ImageUnavailable { image: String, message: String },
    #[error("{doing}: no answer from the gateway that could be used within {within:?}; last: {last}")]
    Unavailable {
        doing: String,
        within: Duration,
        last: String,
        /// The gateway answered, and the sandbox's pod is there, but nothing in it answers.
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
    /// True when what ran in the sandbox brought it about.
    pub fn is_workloads_fault(&self) -> bool {
        match self {
            Self::Lost { cause, .. } => cause.fault() == Whose::Workload,
            Self::Refused { fault, .. } => *fault == Whose::Workload,
            _ => false,
        }
    }

    /// The name of a void that ends with it.
    pub fn void_reason(&self) -> VoidReason {
        match self {
            Self::Lost { .. } | Self::NoSuchLease { .. } => VoidReason::SandboxLost,
            Self::ImageUnavailable { .. } => VoidReason::ImageUnavailable,
            Self::Unavailable { .. } | Self::NoSuchFile { .. } | Self::Refused { .. } => VoidReason::SandboxUnavailable,
        }
    }

    /// Who can have caused it, as far as it is known here.
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

/// Who can have caused an error while a command of the policy, or its patch, was in the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// What ran in the sandbox, or what the policy asked for.
    Workload,
    /// Nothing outside the sandbox explains it: what ran there may have caused it.
    Unknown,
    Infrastructure,
}
