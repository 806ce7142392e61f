//! Errors of a copy, each with the next step.

use super::merge::MergeError;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("writing {path}: {source}; make room or give another folder, and the same call continues")]
    Disk { path: PathBuf, source: std::io::Error },
    #[error("copying {path}: {source}; the same call continues where it was")]
    Broken {
        path: String,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error(
        "{path} came with {found} instead of {wanted}, and was deleted; call again, and if it comes so again the file is damaged in the store"
    )]
    Damaged {
        path: String,
        found: String,
        wanted: String,
    },
    #[error("GrpoRun {run} has no weights {version} in its store; it has: {there}")]
    NoVersion {
        run: String,
        version: String,
        there: String,
    },
    #[error("weights {version} are {is}; give {advice}")]
    Format {
        version: String,
        is: &'static str,
        advice: &'static str,
    },
    #[error("the manifest of weights {version} names {name:?}, which is no name of a file; nothing of it was copied")]
    FileName { version: String, name: String },
    #[error("{path} of the store cannot be read: {source}")]
    Record { path: String, source: serde_json::Error },
    #[error(transparent)]
    Merge(#[from] MergeError),
}
