//! Estimates whether a run's trainer fits into the cluster's GPUs: a run that cannot fit is refused before anything
//! starts, with the calculation.
//!
//! [`forecast`] gives the same numbers for a run that fits, and for its engines and its store.
//!
//! The calculation is the trainer's own ([`grpo_memory`]), for a geometry guessed from the model's name. Nothing is
//! refused if the name has no size, or if nodes do not report their GPU memory.

pub mod forecast;
mod geometry;
mod size;

use grpo_crds::{
    GrpoRunSpec,
    grpo_run::{Mode, Shard, Trainer},
};
use grpo_memory::{Estimate, Facts, GPU_TOKENS, Load, Schedule, TOKENS, in_words};

use self::{
    geometry::guess,
    size::{Size, model_name, size},
};

/// CUDA's context and NCCL's buffers, beside the tensors.
const CUDA_AND_NCCL: u64 = 2 << 30;

/// Why the trainer of a run cannot fit into GPUs with this memory (MiB, as in the label `nvidia.com/gpu.memory`), and
/// what to do.
pub fn refusal(spec: &GrpoRunSpec, gpu_memory: Option<u64>) -> Option<String> {
    let trains = matches!(spec.mode, Mode::Train | Mode::Finetune);
    let trainer = spec
        .trainer
        .as_ref()
        .filter(|trainer| trains && trainer.gpus_per_node > 0)?;
    let name = model_name(spec)?;
    let size = size(&name)?;
    let capacity = gpu_memory? << 20;
    let estimate = estimate(spec, trainer, size);
    if needed(&estimate) <= capacity {
        return None;
    }
    Some(format!(
        "the trainer does not fit: a GPU needs {} and has {} (nvidia.com/gpu.memory of the nodes). {} billion parameters (the name {name}) over {} GPUs, {} tokens at a time: {estimate}; CUDA and NCCL {}. {}",
        in_words(needed(&estimate)),
        in_words(capacity),
        round(size.parameters / 1e9),
        facts(spec, trainer, size).shards,
        tokens(spec, trainer),
        in_words(CUDA_AND_NCCL),
        remedies(spec, trainer, size, capacity)
    ))
}

fn needed(estimate: &Estimate) -> u64 {
    estimate.total() + CUDA_AND_NCCL
}

fn facts(spec: &GrpoRunSpec, trainer: &Trainer, size: Size) -> Facts {
    let geometry = guess(size, spec.model.lora.as_ref());
    let per_node = trainer.gpus_per_node;
    Facts::of_run(geometry, spec, per_node, trainer.nodes * per_node)
}

fn estimate(spec: &GrpoRunSpec, trainer: &Trainer, size: Size) -> Estimate {
    let load = Load::one(tokens(spec, trainer));
    facts(spec, trainer, size).estimate(&load, Schedule::Streamed)
}

/// Tokens that a rank computes at a time: its share of a full pack, or of the longest possible row, which is computed
/// alone if no pack holds it.
fn tokens(spec: &GrpoRunSpec, trainer: &Trainer) -> u64 {
    let longest = spec.longest_row().unwrap_or(1);
    u64::from(pack_share(trainer).max(longest.div_ceil(trainer.sequence_parallel.max(1))))
}

/// Tokens of a rank in a full pack: the limit in the spec, otherwise the trainer's own.
fn pack_share(trainer: &Trainer) -> u32 {
    let own = if trainer.gpus_per_node > 0 { GPU_TOKENS } else { TOKENS };
    trainer.max_tokens_per_gpu.unwrap_or(own)
}

/// Changes that would each make it fit.
fn remedies(spec: &GrpoRunSpec, trainer: &Trainer, size: Size, capacity: u64) -> String {
    let fits = |change: &dyn Fn(&mut GrpoRunSpec)| {
        let mut other = spec.clone();
        change(&mut other);
        let trainer = other.trainer.as_ref();
        trainer.is_some_and(|trainer| needed(&estimate(&other, trainer, size)) <= capacity)
    };
    let with = |change: fn(&mut Trainer)| move |spec: &mut GrpoRunSpec| spec.trainer.iter_mut().for_each(change);
    let mut found = Vec::new();
    let enough = (trainer.nodes + 1..=256).find(|nodes| {
        let nodes = *nodes;
        trainer.shard == Shard::All
            && fits(&move |spec| spec.trainer.iter_mut().for_each(|trainer| trainer.nodes = nodes))
    });
    found.extend(enough.map(|nodes| format!("trainer.nodes: {nodes}")));
    if trainer.shard == Shard::Node && fits(&with(|trainer| trainer.shard = Shard::All)) {
        found.push("trainer.shard: All".to_owned());
    }
    type Change = fn(&mut Trainer);
    let offloads: [(&str, Change); 4] = [
        ("activations", |trainer| trainer.offload.activations = true),
        ("optimizer", |trainer| trainer.offload.optimizer = true),
        ("optimizer and parameters", |trainer| {
            (trainer.offload.optimizer, trainer.offload.parameters) = (true, true);
        }),
        ("optimizer, parameters and activations", |trainer| {
            trainer.offload = grpo_crds::grpo_run::Offload {
                optimizer: true,
                parameters: true,
                activations: true,
            };
        }),
    ];
    let offload = offloads.into_iter().find(|(_, change)| fits(&with(*change)));
    found.extend(offload.map(|(what, _)| format!("trainer.offload of {what}")));
    if fits(&with(|trainer| trainer.max_tokens_per_gpu = Some(1024))) {
        found.push("a lower trainer.maxTokensPerGpu".to_owned());
    }
    let adapter = |spec: &mut GrpoRunSpec| {
        spec.model.lora = Some(grpo_crds::sources::Lora {
            rank: 16,
            alpha: None,
            target_modules: Vec::new(),
            dropout: 0.0,
        });
    };
    if spec.model.lora.is_none() && fits(&adapter) {
        found.push("model.lora".to_owned());
    }
    match found.as_slice() {
        [] => "Use GPUs with more memory, or a smaller model".to_owned(),
        found => format!("It would fit with {}", found.join(", or ")),
    }
}

fn round(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests;
