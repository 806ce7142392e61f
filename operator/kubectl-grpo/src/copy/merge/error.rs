//! Errors of a merge, each with the next step.

use grpo_model::ModelError;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    #[error("{doing} {path}: {source}")]
    Disk {
        doing: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{path} is no safetensors file that can be read: {what}")]
    Malformed { path: PathBuf, what: String },
    #[error(transparent)]
    Adapter(#[from] ModelError),
    #[error("{base} has no file *.safetensors; give --base the folder of the model that the run began with")]
    NoWeights { base: PathBuf },
    #[error("{tensor}: {what}; is --base the model that the run began with?")]
    OtherModel { tensor: String, what: String },
    #[error("{target} is there already; move it away, or use it: it was merged by an earlier call")]
    There { target: PathBuf },
}

/// Makes an error of an operation on a file or folder.
pub fn disk<'a>(doing: &'static str, path: &'a Path) -> impl Fn(io::Error) -> MergeError + 'a {
    move |source| MergeError::Disk {
        doing,
        path: path.to_owned(),
        source,
    }
}
