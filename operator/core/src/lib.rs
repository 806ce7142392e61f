//! The operator's decisions, without a cluster: every kind's objects, pods and status as pure functions of the observed
//! state.
//!
//! ```text
//! observation ─► decide ─► decision: objects, pods, status, events (applied by the controllers)
//! ```
//!
//! Nothing here calls the API server or reads the clock; the controllers do both (`operator/controllers`).

pub mod admission;
pub mod backoff;
pub mod causes;
pub mod conditions;
pub mod desired_object;
pub mod device_claims;
pub mod digest;
pub mod estimate;
pub mod events;
pub mod grpo_run;
pub mod inference_pool;
pub mod kueue;
mod model_download;
pub mod names;
pub mod ownership;
pub mod plan;
pub mod pod_group;
mod pod_parts;
pub mod pods;
pub mod preview;
pub mod quantity;
pub mod quota;
pub mod sandbox_pool;
pub mod settings;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod tests;
