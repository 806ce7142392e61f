//! Why an attempt stops before its verdict, and the reason for each error.

use crate::engine::EngineError;
use crate::fault::{DriverError, TerminalFault};
use crate::sandbox::SandboxError;
use crate::trajectory::TrajectoryError;
use grpo_chat_template::TemplateError;
use grpo_contracts::reason::Reason;
use grpo_records::VoidReason;

/// Why an attempt stopped before its verdict.
#[derive(Debug)]
pub enum Abort {
    Void {
        reason: VoidReason,
        message: String,
    },
    /// The attempt cannot continue, or is not needed any more.
    Abandoned,
    Driver(DriverError),
}

impl From<DriverError> for Abort {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}

impl From<TerminalFault> for Abort {
    fn from(fault: TerminalFault) -> Self {
        Self::Driver(fault.into())
    }
}

impl From<grpo_records::StoreError> for Abort {
    fn from(error: grpo_records::StoreError) -> Self {
        Self::Driver(error.into())
    }
}

impl From<TemplateError> for Abort {
    fn from(error: TemplateError) -> Self {
        Self::Driver(TerminalFault::new(Reason::TemplateUnusable, error.to_string()).into())
    }
}

impl From<TrajectoryError> for Abort {
    fn from(fault: TrajectoryError) -> Self {
        Self::Driver(DriverError::Other(fault.to_string()))
    }
}

impl From<EngineError> for Abort {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Terminal(fault) => Self::Driver(fault.into()),
            EngineError::Unavailable { .. } | EngineError::Refused { .. } => Self::Void {
                reason: VoidReason::EngineUnavailable,
                message: error.to_string(),
            },
        }
    }
}

impl From<SandboxError> for Abort {
    fn from(error: SandboxError) -> Self {
        Self::Void {
            reason: error.void_reason(),
            message: error.to_string(),
        }
    }
}
