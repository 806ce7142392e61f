//! What is to be done about an `InferencePool` (`grpo.dev`): [`decide`] turns an [`observation`] into a decision.
//!
//! Which replicas come and go is [`crate::pod_group`]'s; what they are made of is [`replica_pods`], with the command
//! lines of [`vllm`] and [`sglang`].

pub mod decide;
mod flags;
mod labels;
mod launch;
mod objects;
pub mod observation;
mod replica_pods;
mod sglang;
mod template;
mod vllm;

#[cfg(test)]
pub mod tests;
