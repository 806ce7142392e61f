//! Decisions about an `InferencePool` (`grpo.dev`): [`decide`] turns an [`observation`] into a decision.
//!
//! [`crate::pod_group`] decides which replicas to create and delete; [`replica_pods`] builds their pods, with the
//! command lines of [`vllm`] and [`sglang`].

mod clients;
pub mod decide;
mod disk;
mod flags;
mod labels;
mod launch;
mod objects;
pub mod observation;
mod replica_pods;
mod sglang;
mod shared_gpus;
mod template;
mod vllm;

#[cfg(test)]
pub mod tests;
