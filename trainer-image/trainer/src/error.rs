//! Errors of the trainer, with messages that say what to do.

use std::path::Path;

use grpo_contracts::exit::{HUNG_CODE, Hang, PEER_LOST_CODE};
use grpo_model::ModelError;
use grpo_native::CollectiveError;
use grpo_object_storage::is_refusal;
use grpo_records::StoreError;

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
    #[error("libtorch: {}", first_line(.0))]
    Torch(#[from] tch::TchError),
    /// The training thread panicked, as an operation of `tch` does when libtorch throws an exception.
    #[error("the training thread panicked: {0}")]
    Panicked(String),
    /// The batch is refused; parameters are as before.
    #[error("batch {path} is refused: {message}")]
    Batch { path: String, message: String },
    /// The batch may be usable: the store did not answer. Parameters are as before.
    #[error("batch {path} cannot be read now: {message}; the step was not taken, order it again")]
    Unread { path: String, message: String },
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
    Store(#[from] StoreError),
    /// The store's server does not answer.
    #[error("{0}")]
    Unopened(String),
    /// The time to wait for the store is over ([`crate::outage`]).
    #[error("the store did not answer in {tries} tries within {seconds} s, so the attempt ends: {source}")]
    StoreOutage {
        tries: u32,
        seconds: u64,
        source: Box<TrainError>,
    },
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

/// What to do if a GPU's memory is full.
const MORE_ROOM: &str = "the GPU's memory is full: set trainer.maxTokensPerGpu, or a lower one, keep state in the \
                         pod's memory (trainer.offload), give the trainer more nodes (trainer.nodes), or divide rows \
                         that are longer than a pack (trainer.sequenceParallel)";

/// How libtorch, CUDA, NCCL and cuBLAS say that a GPU has no memory left.
const OUT_OF_MEMORY: [&str; 4] = [
    "CUDA out of memory",
    "CUDA error: out of memory",
    "'out of memory'",
    "CUBLAS_STATUS_ALLOC_FAILED",
];

fn is_out_of_memory(said: &str) -> bool {
    OUT_OF_MEMORY.iter().any(|words| said.contains(words))
}

/// The first line of an exception's text; C++'s stack follows it. A panic's text has its line breaks escaped.
fn first_line(said: &impl std::fmt::Display) -> String {
    let said = said.to_string();
    let line = said.lines().next().unwrap_or_default();
    line.split("\\n").next().unwrap_or_default().to_owned()
}

impl TrainError {
    /// The error of a panic with this text.
    pub fn of_panic(said: &str) -> Self {
        let line = first_line(&said);
        // The text before and after it is Rust's, about a failed `unwrap` inside of `tch`.
        let thrown = line.split_once("Torch(\"").map(|(_, thrown)| thrown);
        let thrown = thrown.map(|thrown| thrown.trim_end_matches("\")"));
        Self::Panicked(thrown.unwrap_or(&line).to_owned())
    }

    /// The message, with advice if a GPU's memory is full.
    pub fn in_words(&self) -> String {
        let message = self.to_string();
        // A launcher repeats the last line of a rank, advice included.
        match is_out_of_memory(&message) && !message.contains(MORE_ROOM) {
            true => format!("{message}; {MORE_ROOM}"),
            false => message,
        }
    }

    pub fn disk(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.display().to_string();
        move |source| Self::Disk { doing, path, source }
    }

    /// The exit code of a rank that ends with this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Hung(_) => HUNG_CODE as u8,
            // NCCL allocates its buffers in a collective: this rank is the cause then, and lost no peer.
            Self::Collective(error) if is_out_of_memory(&error.message) => 1,
            Self::Collective(_) => PEER_LOST_CODE as u8,
            Self::Rank { code, .. } => *code,
            Self::Terminated => TERMINATED_CODE,
            _ => 1,
        }
    }

    /// A failed read of a file of the batch at `path`. A missing file refuses the batch; every other error is the
    /// store's, and says nothing about the batch.
    pub(crate) fn of_batch(path: &str, error: &StoreError) -> Self {
        let (path, message) = (path.to_owned(), error.to_string());
        match error {
            StoreError::Access { .. } => Self::Unread { path, message },
            _ => Self::Batch { path, message },
        }
    }

    /// Whether training can continue with another batch.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Batch { .. })
    }

    /// Whether training can continue with the same batch, once the store answers.
    pub fn is_unread(&self) -> bool {
        matches!(self, Self::Unread { .. })
    }

    /// Whether the store did not answer, and may answer later.
    pub fn is_outage(&self) -> bool {
        match self {
            Self::Unread { .. } | Self::Unopened(_) => true,
            Self::Store(StoreError::Access { source, .. }) => !is_refusal(source) && !stays(source),
            Self::Store(StoreError::Open { source, .. }) => !stays(&**source),
            _ => false,
        }
    }
}

/// Whether an error of a volume stays until a person acts: a missing permission or folder, a full volume.
fn stays(error: &(dyn std::error::Error + 'static)) -> bool {
    use std::io::ErrorKind::{
        InvalidFilename, InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied, QuotaExceeded,
        ReadOnlyFilesystem, StorageFull,
    };
    let is_final = |cause: &std::io::Error| {
        matches!(
            cause.kind(),
            InvalidFilename
                | InvalidInput
                | IsADirectory
                | NotADirectory
                | NotFound
                | PermissionDenied
                | QuotaExceeded
                | ReadOnlyFilesystem
                | StorageFull
        )
    };
    let mut causes = std::iter::successors(Some(error), |cause| cause.source());
    causes.any(|cause| cause.downcast_ref().is_some_and(is_final))
}

#[cfg(test)]
mod tests;
