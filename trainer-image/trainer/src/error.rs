//! Errors of the trainer, with messages that say what to do.

use std::path::Path;

use grpo_contracts::exit::{HUNG_CODE, Hang, PEER_LOST_CODE};
use grpo_model::ModelError;
use grpo_native::CollectiveError;

/// Exit code of a process that SIGTERM ended, as in a shell.
pub const TERMINATED_CODE: u8 = 143;

#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    #[error(transparent)]
    Attention(#[from] grpo_native::attention::AttentionError),
    #[error(transparent)]
    Copy(#[from] grpo_native::device::CopyError),
    #[error(transparent)]
    Optimizer(#[from] grpo_native::optimizer::OptimizerError),
    #[error("libtorch: {0}")]
    Torch(#[from] tch::TchError),
    /// The batch is refused; parameters are as before.
    #[error("batch {path} is refused: {message}")]
    Batch { path: String, message: String },
    /// Some of the batch's optimizer steps were already taken: the step is not done, and this process cannot continue
    /// from its state.
    #[error(
        "step {step} diverged after {updates} of its optimizer steps: {message}; lower algorithm.learningRate, epochs or miniBatches"
    )]
    Diverged { step: u32, updates: u32, message: String },
    #[error("{doing} {path}: {source}; nothing published before is touched{}", grpo_records::store::advice(.source))]
    Disk {
        doing: &'static str,
        path: String,
        source: std::io::Error,
    },
    #[error("{0}; nothing published before is touched")]
    Store(#[from] grpo_records::StoreError),
    #[error("{path} is damaged ({message}); it is not used")]
    Damaged { path: String, message: String },
    #[error(
        "ranks {ranks:?} cannot read {path}, which rank 0 has chosen, so no rank starts from it; their logs say why: do all pods mount the same volume?"
    )]
    RanksDisagree { path: String, ranks: Vec<u32> },
    /// All files that this attempt reported as stored stay; it may add nothing.
    #[error("{doing}: attempt {attempt} was followed by another, and writes nothing any more")]
    Fenced { doing: &'static str, attempt: u32 },
    #[error("{}", .0.message)]
    Hung(Hang),
    #[error("{name} is {found:?}; the trainer needs torchrun's environment")]
    Environment { name: &'static str, found: String },
    /// `field`: a field of `spec.trainer`.
    #[error("trainer.{field} is {value}: {message}")]
    Division {
        field: &'static str,
        value: u32,
        message: String,
    },
    /// Bytes of one rank; the message has the sum.
    #[error("the run does not fit into memory: {message}")]
    Memory { needed: u64, room: u64, message: String },
    #[error("trainer.gpusPerNode is {gpus}, but GPU {index}: {message}")]
    Gpu { gpus: u32, index: u32, message: String },
    /// In a pod of several ranks, the rank whose end made all others end; `code` as in a shell.
    #[error("rank {rank} ended first ({how}); its last line: {said}")]
    Rank {
        rank: u32,
        code: u8,
        how: String,
        said: String,
    },
    #[error("told to end")]
    Terminated,
    #[error("{0}")]
    Start(String),
}

impl TrainError {
    pub fn disk(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.display().to_string();
        move |source| Self::Disk { doing, path, source }
    }

    /// The exit code of a rank that ends with this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Hung(_) => HUNG_CODE as u8,
            Self::Collective(_) => PEER_LOST_CODE as u8,
            Self::Rank { code, .. } => *code,
            Self::Terminated => TERMINATED_CODE,
            _ => 1,
        }
    }

    /// Whether training can continue with another batch.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Batch { .. })
    }
}
