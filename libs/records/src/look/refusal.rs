//! Why a query for records fails: a code for programs, a message for people.

use crate::store::StoreError;
use serde::{Deserialize, Serialize};

/// Why a query fails; the body of the error over HTTP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "camelCase")]
#[error("{message}")]
pub struct Refusal {
    pub code: RefusalCode,
    pub message: String,
    pub fault: RefusalCause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefusalCode {
    /// The path is not a valid path in a store.
    BadPath,
    /// The path does not exist.
    NotThere,
    /// The file exceeds the size that is read whole.
    TooLarge,
    /// It exists but cannot be read.
    Unreadable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefusalCause {
    Client,
    Infrastructure,
}

impl Refusal {
    pub(super) fn new(code: RefusalCode, message: String) -> Self {
        let fault = match code {
            RefusalCode::Unreadable => RefusalCause::Infrastructure,
            _ => RefusalCause::Client,
        };
        Self { code, message, fault }
    }

    pub(super) fn bad_path(path: &str) -> Self {
        let shown: String = path.chars().take(200).collect();
        let message = format!(
            "{shown:?} is no part of a run; one looks like rollouts/iter-000003 or evaluations/heldout/l1-v4, and an episode's folder lies in it"
        );
        Self::new(RefusalCode::BadPath, message)
    }

    pub(super) fn not_there(path: &str) -> Self {
        Self::new(RefusalCode::NotThere, format!("{path} is not in the run's store"))
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::new(RefusalCode::Unreadable, error.to_string())
    }
}
