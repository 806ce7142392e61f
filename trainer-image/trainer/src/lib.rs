//! The trainer owns parameters, optimizer state, advantages and loss, checkpoints and published weights. It knows
//! nothing of agents.
//!
//! [`sharded`] holds each rank's part of parameters and AdamW state, [`gradients`] streams units through the model,
//! [`optimizer`] steps. [`packing`] merges rows with common prefixes, [`micro_batch`] makes tensors of them; [`mesh`]
//! divides the work over ranks, [`memory`] estimates its memory, [`flops`] its operations. [`grpo`] turns a stored
//! batch into a step: [`mini_batch`] cuts it into optimizer steps, [`losses`] computes their loss; [`finetune`] trains
//! a warm start from [`initial`] weights. [`state`] writes checkpoints and weights versions and finds those to continue
//! from; [`outage`] waits for a store that does not answer; [`canary`] computes what engines check a load with;
//! [`export`] writes weights for other programs. [`serve`] is the process of a run's pods: rank 0 answers the driver,
//! every rank follows rank 0's orders; [`launch`] starts the ranks of a pod that has several, [`watchdog`] ends a rank
//! that waits for a rank that hangs, and [`panics`] one that panics.

pub mod canary;
mod collect;
pub mod compute;
pub mod error;
pub mod export;
pub mod finetune;
pub mod flops;
mod gathering;
pub mod gradients;
pub mod grpo;
pub mod initial;
pub mod launch;
pub mod locked_memory;
pub mod loss_fn;
pub mod losses;
pub mod memory;
pub mod mesh;
pub mod micro_batch;
pub mod mini_batch;
mod observe;
pub mod optimizer;
pub mod outage;
pub mod packing;
pub mod panics;
mod replay;
pub mod serve;
pub mod shard;
pub mod sharded;
pub mod state;
pub mod supervised;
pub mod token_stats;
pub mod train_row;
pub mod watchdog;

pub use error::TrainError;
