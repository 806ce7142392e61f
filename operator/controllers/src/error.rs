//! Errors of a reconcile: the action, the object, and what to do about it.

use std::time::Duration;

use grpo_contracts::reason::Reason;
use grpo_operator_core::ownership::NameTaken;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to read {what}: {source}")]
    Read { what: String, source: Box<kube::Error> },
    #[error(
        "failed to apply {what}: {source}. If it is forbidden, install the operator's chart again; if it is invalid, correct the field it names"
    )]
    Apply { what: String, source: Box<kube::Error> },
    #[error(
        "failed to create {what}: {source}. If it is forbidden, look at the namespace's quota and Pod Security level"
    )]
    Create { what: String, source: Box<kube::Error> },
    #[error("failed to delete {what}: {source}")]
    Delete { what: String, source: Box<kube::Error> },
    #[error("failed to write the status of {what}: {source}")]
    Status { what: String, source: Box<kube::Error> },
    #[error(transparent)]
    NameTaken(#[from] NameTaken),
    #[error("failed to write {what} as JSON: {source}")]
    Json { what: String, source: serde_json::Error },
    #[error("{what} has no name, namespace or uid")]
    Nameless { what: String },
    #[error("the operator has a fault of its own: {what}. Report it with this object; other objects are not concerned")]
    Panicked { what: String },
    #[error("reconciling took more than {} s", after.as_secs())]
    TooSlow { after: Duration },
    /// The object's status says so already, beside the state that was reached.
    #[error(transparent)]
    Shown(Box<Error>),
}

/// Whether an object is missing, or the API server does not serve its kind. For such a kind the answer is no JSON, so
/// its reason is not `NotFound`.
pub fn is_missing(status: &kube::core::Status) -> bool {
    status.is_not_found() || status.code == 404
}

impl Error {
    /// The reason of the condition and event that show it, and the label of the metric that counts it.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Read { .. } => Reason::ReadFailed,
            Self::Apply { .. } => Reason::ApplyFailed,
            Self::Create { .. } => Reason::CreateFailed,
            Self::Delete { .. } => Reason::DeleteFailed,
            Self::Status { .. } => Reason::StatusFailed,
            Self::NameTaken(_) => Reason::NameTaken,
            Self::Json { .. } => Reason::NotJson,
            Self::Nameless { .. } => Reason::Nameless,
            Self::Panicked { .. } => Reason::OperatorFault,
            Self::TooSlow { .. } => Reason::TooSlow,
            Self::Shown(error) => error.reason(),
        }
    }

    /// The same error, if the refused apply could only be a creation: the object is never changed.
    pub fn of_creation(self) -> Self {
        match self {
            Self::Apply { what, source } => Self::Create { what, source },
            other => other,
        }
    }

    /// The API server's message if it refused a pod, or a claim on devices, because a ResourceQuota is used up.
    pub fn quota_refusal(&self) -> Option<&str> {
        let Self::Create { source, .. } = self else { return None };
        match &**source {
            kube::Error::Api(status) if status.is_forbidden() && status.message.contains("exceeded quota") => {
                Some(&status.message)
            }
            _ => None,
        }
    }

    /// Whether a condition shows this error to users: a request that the API server refused or an object that cannot be
    /// parsed, but not an unreachable API server.
    pub fn is_for_people(&self) -> bool {
        match self {
            Self::Apply { source, .. } | Self::Create { source, .. } | Self::Delete { source, .. } => {
                matches!(**source, kube::Error::Api(_))
            }
            Self::Read { source, .. } => matches!(**source, kube::Error::SerdeError(_)),
            Self::NameTaken(_) | Self::Json { .. } | Self::Panicked { .. } => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
