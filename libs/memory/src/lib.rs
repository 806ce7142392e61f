//! What a rank's tensors take at a step's fullest moment, part by part, before anything is allocated.
//!
//! One model for two processes: the operator asks it with a geometry guessed from the model's name, before a pod
//! exists; the trainer asks it with the exact geometry of `config.json`. It needs no libtorch.

mod engine;
mod estimate;
mod facts;
mod geometry;
mod parallel_dims;

pub use engine::EngineShare;
pub use estimate::{Estimate, in_words};
pub use facts::{Facts, HEAD_LOGITS, Load, Schedule};
pub use geometry::{AdapterGeometry, Geometry, Mlp};
pub use parallel_dims::ParallelDims;
