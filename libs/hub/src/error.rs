//! Errors of a hub, with the next step.

use std::{io, path::PathBuf};

use crate::repository::Repository;

/// Each message names the repository or file, the cause, and the next step.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    #[error("the hub's settings: {0}")]
    Settings(String),
    #[error("{repository} is gated: accept its terms on the hub, and name a token of that account in tokenSecretRef")]
    Gated { repository: Repository },
    /// The hub gives the same answer for a private repository and for a missing one.
    #[error(
        "{repository} does not exist or is private: check its name, or name a token that may read it in tokenSecretRef"
    )]
    NoRepository { repository: Repository },
    #[error(
        "the hub refused the token with which {repository} was asked for: {message}; renew it in tokenSecretRef or HF_TOKEN"
    )]
    TokenRefused { repository: Repository, message: String },
    #[error("{repository} has no branch, tag or commit {revision}")]
    NoRevision { repository: Repository, revision: String },
    #[error("{repository} has no file {path} at commit {commit}")]
    NoFile {
        repository: Repository,
        commit: String,
        path: String,
    },
    #[error("{request} was answered with {status}: {body}")]
    Status { request: String, status: u16, body: String },
    #[error("{request}: {cause}")]
    Transport { request: String, cause: String },
    #[error("{request} was answered with something that is not the hub's protocol: {what}; is HF_ENDPOINT a hub?")]
    Malformed { request: String, what: String },
    /// Distinct from a cut connection: wrong bytes stay wrong if a mirror is corrupted.
    #[error("{path} has digest {found} and should have {wanted}; the hub, its mirror or a proxy changed the bytes")]
    Corrupt {
        path: String,
        wanted: String,
        found: String,
    },
    #[error("{doing} {}: {source}", path.display())]
    Disk {
        doing: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error(
        "the cache {} has {free} bytes free and {needed} are needed; enlarge its volume, or remove models that no run needs",
        cache.display()
    )]
    Room { cache: PathBuf, needed: u64, free: u64 },
    #[error("{repository}: {what}")]
    Selection { repository: Repository, what: String },
    /// An error of a source that is not a hub.
    #[error("{source}")]
    Source {
        source: Box<dyn std::error::Error + Send + Sync>,
        is_transient: bool,
    },
}

impl HubError {
    /// Whether waiting can help: the hub or the network has a problem, not the request or the disk.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Status { status, .. } => crate::retry::is_transient(*status),
            Self::Transport { .. } => true,
            Self::Source { is_transient, .. } => *is_transient,
            _ => false,
        }
    }

    pub(crate) fn disk(doing: &'static str, path: &std::path::Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Disk { doing, path, source }
    }
}
