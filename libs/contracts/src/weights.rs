//! Versions of a run's weights: how many a store keeps, and in which form they are published.

use grpo_crds::GrpoRunSpec;

/// Versions that are kept beside the initial one: what a replica that boots may still ask for.
pub const WEIGHTS_KEPT: usize = 8;

/// Whether versions are published as adapters: to engines that load them beside the model. The embedded one takes whole
/// weights, and a pool that is referred to serves this run's adapters.
pub fn publishes_adapters(spec: &GrpoRunSpec) -> bool {
    let engine = spec.inference.pool.as_ref().map(|pool| &pool.engine);
    spec.model.lora.is_some() && engine.is_none_or(|engine| engine.vllm.is_some() || engine.sglang.is_some())
}
