//! Errors that end a driver: a terminal fault ends the run, any other error only this attempt.

use grpo_contracts::driver_epoch::Superseded;
use grpo_contracts::reason::Reason;
use grpo_records::{JournalError, StoreError};

/// Ends the run: retrying cannot help. It is written to the journal, to `status.progress.fault` and to the termination
/// message, and the driver exits with 42.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct TerminalFault {
    pub reason: Reason,
    /// Names the object, its problem and the remedy.
    pub message: String,
}

impl TerminalFault {
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}

/// Only `Terminal` ends the run. Any other error ends this attempt: the next attempt reads the journal and continues.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    #[error(transparent)]
    Terminal(#[from] TerminalFault),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("{doing}: {source}")]
    Io { doing: String, source: std::io::Error },
    #[error(
        "{path} is already there with other bytes: another driver works on this run, so this one (epoch {epoch}) stops"
    )]
    OtherDriver { path: String, epoch: u32 },
    #[error("a driver of epoch {newer} works on this run, so this one (epoch {epoch}) stops")]
    Superseded { epoch: u32, newer: u32 },
    #[error("{0}")]
    Other(String),
}

impl From<Superseded> for DriverError {
    fn from(Superseded { attempt, newer }: Superseded) -> Self {
        Self::Superseded { epoch: attempt, newer }
    }
}

impl DriverError {
    pub fn io(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}
