//! Applies a run's spec to the model: adds an adapter, or keeps a base for the KL penalty.

use grpo_crds::algorithm::{Algorithm, OldLogprobs};
use grpo_crds::grpo_run::{GrpoRunSpec, Mode};
use grpo_model::Config;
use grpo_model::lora::{Linear, Lora};
use grpo_model::weights::Source;
use grpo_records::RunStore;

use crate::compute::Compute;
use crate::error::TrainError;
use crate::mesh::Mesh;
use crate::sharded::Sharded;

/// The model as the run trains it, with an adapter or a base to measure a distance from.
pub(super) fn read(
    config: Config,
    mesh: Mesh,
    compute: Compute,
    spec: &GrpoRunSpec,
    source: &Source,
    store: &RunStore,
) -> Result<Sharded, TrainError> {
    let mut model = match &spec.model.lora {
        Some(lora) => {
            let lora = adapter_of(lora, &config)?;
            Sharded::read_frozen(config, mesh, source, &compute, lora, spec.seed)?
        }
        None => Sharded::read(config, mesh, source)?.compute_as(compute),
    };
    if spec.algorithm.kl.is_some() {
        model.hold_base(source)?;
    }
    model.replays = replays(&model.config, spec).then(|| store.clone());
    if let Some(tokens) = spec.trainer.as_ref().and_then(|trainer| trainer.max_tokens_per_gpu) {
        model.micro_batch_tokens = tokens as usize;
    }
    let Algorithm {
        old_logprobs,
        mini_batches,
        epochs,
        ..
    } = spec.algorithm;
    if old_logprobs == OldLogprobs::Recompute && mini_batches * epochs == 1 {
        tracing::warn!(
            "algorithm.oldLogprobs is Recompute and a batch is one optimizer step: every ratio is 1, and no clip ever acts"
        );
    }
    Ok(model)
}

/// Whether tokens go through the experts that engines recorded. No engine has seen the conversations of mode Finetune.
fn replays(config: &Config, spec: &GrpoRunSpec) -> bool {
    config.experts.is_some() && spec.algorithm.router_replay != Some(false) && spec.mode != Mode::Finetune
}

/// The spec's adapter. By default it is on all linear layers; in a mixture, on those of the attention.
pub(super) fn adapter_of(spec: &grpo_crds::sources::Lora, config: &Config) -> Result<Lora, TrainError> {
    let alpha = spec.alpha.unwrap_or(2.0 * f64::from(spec.rank));
    let all = Linear::ALL
        .into_iter()
        .filter(|linear| config.experts.is_none() || *linear < Linear::Gate);
    let targets: Vec<String> = match spec.target_modules.is_empty() {
        true => all.map(|linear| linear.name().to_owned()).collect(),
        false => spec.target_modules.clone(),
    };
    Ok(Lora::new(spec.rank as usize, alpha, &targets)?.with_dropout(spec.dropout))
}
