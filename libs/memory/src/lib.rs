//! Estimates of a rank's peak memory in a step, by part, before anything is allocated: of its device, and for a GPU of
//! its pod too. And of the time of a step on a GPU.
//!
//! Two processes use it: the operator with a geometry guessed from the model's name, before a pod exists; the trainer
//! with the exact geometry of `config.json`. It does not need libtorch.

mod engine;
mod estimate;
mod facts;
mod geometry;
mod gpu;
mod parallel_dims;
mod step_time;

pub use engine::EngineShare;
pub use estimate::{Estimate, in_words};
pub use facts::host::HostEstimate;
pub use facts::{Facts, GPU_HEAD_LOGITS, GPU_TOKENS, HEAD_LOGITS, Load, Schedule, TOKENS};
pub use geometry::{AdapterGeometry, Geometry, Mlp};
pub use gpu::Gpu;
pub use parallel_dims::ParallelDims;
pub use step_time::{StepTime, StepWork};
