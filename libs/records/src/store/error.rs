//! Errors of a store.

use crate::record::SCHEMA;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("opening the store in {dir}: {source}; is the volume mounted and writable?")]
    Open {
        dir: PathBuf,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the store path {path:?} is not a plain relative path such as namespace/name")]
    Root { path: String },
    #[error("{doing} {path} in the store: {source}{}", advice(.source))]
    Access {
        doing: &'static str,
        path: String,
        source: object_store::Error,
    },
    #[error("{path} is not in the store")]
    Missing { path: String },
    #[error("{path} in the store cannot be read as the record it should be: {source}")]
    Unreadable { path: String, source: serde_json::Error },
    #[error("writing {path}: the record cannot be put into JSON: {source}")]
    Unwritable { path: String, source: serde_json::Error },
    #[error(
        "{path} in the store has schema {found}, this build reads schema {SCHEMA}; use an image of the version that wrote it, or give the run another store.path"
    )]
    Schema { path: String, found: u32 },
    #[error(
        "the server of {location} does not keep what a run's store needs: {what}; use another server or version of it, or a volume"
    )]
    Guarantee { location: String, what: &'static str },
    #[error("starting the threads that talk to the object store: {source}")]
    Threads { source: std::io::Error },
    #[error("copying {path} from the store to this machine: {source}; is its temporary folder full?")]
    Copy { path: String, source: std::io::Error },
}

pub(super) fn access(doing: &'static str, path: &str, source: object_store::Error) -> StoreError {
    StoreError::Access {
        doing,
        path: path.to_owned(),
        source,
    }
}

pub(super) fn missing_or(doing: &'static str, path: &str, error: object_store::Error) -> StoreError {
    match error {
        object_store::Error::NotFound { .. } => StoreError::Missing { path: path.to_owned() },
        other => access(doing, path, other),
    }
}

/// Advice for an error because of lack of space: the end of a message; empty for any other error.
pub fn advice(error: &(dyn std::error::Error + 'static)) -> &'static str {
    let mut causes = std::iter::successors(Some(error), |cause| cause.source());
    let no_room = |cause: &std::io::Error| {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(cause.kind(), StorageFull | QuotaExceeded)
    };
    match causes.any(|cause| cause.downcast_ref().is_some_and(no_room)) {
        true => {
            "; the store's volume is full: enlarge its volume claim or make room on it, nothing that was finished is lost"
        }
        false => "",
    }
}
