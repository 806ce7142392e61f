//! What can go wrong in training, in words that say what to do.

use std::path::Path;

use grpo_native::CollectiveError;
use grpo_policy::ModelError;

#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    #[error("libtorch: {0}")]
    Torch(#[from] tch::TchError),
    /// The batch is refused; parameters are as before.
    #[error("batch {path} is refused: {message}")]
    Batch { path: String, message: String },
    #[error("{doing} {path}: {source}; nothing published before is touched{}", grpo_records::store::advice(.source))]
    Disk {
        doing: &'static str,
        path: String,
        source: std::io::Error,
    },
    #[error("{path} is damaged ({message}); it is not used")]
    Damaged { path: String, message: String },
    #[error("{name} is {found:?}; the trainer needs torchrun's environment")]
    Environment { name: &'static str, found: String },
    #[error("{0}")]
    Start(String),
}

impl TrainError {
    pub fn disk(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.display().to_string();
        move |source| Self::Disk { doing, path, source }
    }

    /// Whether training can go on with another batch.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Batch { .. })
    }
}
