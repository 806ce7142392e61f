//! A run's weights versions: how many a store keeps, and in which form they are published.

use grpo_crds::GrpoRunSpec;

/// Versions that are kept in addition to the initial one: a starting replica may still request them.
pub const WEIGHTS_KEPT: usize = 8;

/// Whether versions are published as adapters: for engines that load them beside the model. The embedded engine takes
/// full weights. A pool that is only referenced serves this run's adapters.
pub fn publishes_adapters(spec: &GrpoRunSpec) -> bool {
    let engine = spec.inference.pool.as_ref().map(|pool| &pool.engine);
    spec.model.lora.is_some() && engine.is_none_or(|engine| engine.vllm.is_some() || engine.sglang.is_some())
}
