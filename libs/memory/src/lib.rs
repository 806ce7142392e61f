//! What a rank's tensors take at a step's fullest moment, part by part, before anything is allocated; and how long a
//! GPU computes a step.
//!
//! One model for two processes: the operator asks it with a geometry guessed from the model's name, before a pod
//! exists; the trainer asks it with the exact geometry of `config.json`. It needs no libtorch.

mod engine;
mod estimate;
mod facts;
mod geometry;
mod gpu;
mod parallel_dims;
mod step_time;

pub use engine::EngineShare;
pub use estimate::{Estimate, in_words};
pub use facts::{Facts, GPU_HEAD_LOGITS, GPU_TOKENS, HEAD_LOGITS, Load, Schedule, TOKENS};
pub use geometry::{AdapterGeometry, Geometry, Mlp};
pub use gpu::Gpu;
pub use parallel_dims::ParallelDims;
pub use step_time::{StepTime, StepWork};
