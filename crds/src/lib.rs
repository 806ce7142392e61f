//! The API of grpo-operator: three kinds of the group `grpo.dev`, version `v1alpha1`.
//!
//! * [`grpo_run::GrpoRun`]: one reinforcement learning run, what people write;
//! * [`inference_pool::InferencePool`]: engines that serve one model;
//! * [`sandbox_pool::SandboxPool`]: throw-away sandboxes behind a gateway;
//!
//! The types are the source of everything derived from them: the CRD YAML in the chart ([`crd::documents`]), its
//! descriptions, bounds, defaults and CEL rules, and the API's reference page. Everything a manifest can get wrong by
//! itself is refused there, with the field's path. What this version's processes do not execute yet is refused by
//! `grpo-contracts` when a run starts: nothing is ignored in silence.

pub mod agent;
pub mod algorithm;
pub mod attempts;
mod cel;
pub mod common;
pub mod crd;
pub mod grpo_run;
pub mod inference_pool;
pub mod progress;
pub mod reference;
pub mod sandbox_pool;
pub mod sources;

pub use attempts::AttemptStatus;
pub use grpo_run::{GrpoRun, GrpoRunSpec, GrpoRunStatus};
pub use inference_pool::{InferencePool, InferencePoolSpec, InferencePoolStatus};
pub use progress::{Fault, Progress, Stage};
pub use sandbox_pool::{SandboxPool, SandboxPoolSpec, SandboxPoolStatus};

/// The API group of all kinds.
pub const GROUP: &str = "grpo.dev";
