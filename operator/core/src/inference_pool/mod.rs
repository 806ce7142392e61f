//! Decisions about an `InferencePool` (`grpo.dev`): [`decide`] turns an [`observation`] into a decision.
//!
//! [`crate::pod_group`] decides which replicas to create and delete; [`replica_pods`] builds their pods, with the
//! command lines of [`vllm`] and [`sglang`].

mod clients;
pub mod decide;
mod disk;
mod first_pod;
mod flags;
mod labels;
mod launch;
mod objects;
pub mod observation;
mod replica_pods;
mod several_pods;
mod sglang;
mod shared_gpus;
mod template;
mod vllm;

pub use first_pod::{all_pods, first_pod};
pub use shared_gpus::replicas;

#[cfg(test)]
pub mod tests;
