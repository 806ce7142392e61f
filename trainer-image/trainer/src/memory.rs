//! A rank's memory ([`grpo_memory`]) with the model's exact geometry, reported and checked before any allocation.
//!
//! The trainer refuses a run if not even one row of one token fits. It warns if one row of full length does not fit:
//! the length of the rows is not known in advance.

use grpo_memory::{AdapterGeometry, Estimate, Facts, Geometry, Mlp, in_words};
use grpo_model::Config;
use grpo_model::adapter;
use grpo_model::lora::Lora;
use grpo_model::weights::{self, Unit};
use tch::Device;

use crate::error::TrainError;

/// Bytes of a GPU that its driver and libraries take for themselves: contexts, workspaces, NCCL's buffers.
const GPU_LIBRARIES: u64 = 2 << 30;

/// Bytes of a GPU that are left to an engine that sleeps there: contexts, captured graphs, NCCL's buffers.
const SLEEPING_ENGINE: u64 = 4 << 30;

/// Bytes of a GPU that are not for a rank's tensors, for a bound that must not depend on the memory that is free at the
/// moment. `shared`: an engine uses the GPU in turns with the rank.
pub fn reserved(shared: bool) -> u64 {
    GPU_LIBRARIES + if shared { SLEEPING_ENGINE } else { 0 }
}

/// The sizes of a model that decide how much memory it takes.
pub fn geometry(config: &Config) -> Geometry {
    let values = |units: Vec<Unit>| units.iter().map(|unit| unit.numel() as u64).collect();
    let sides = |lora: &Lora, at: usize| {
        let targets = lora.targets().iter();
        targets.map(|target| config.linear_shape(*target)[at] as u64).sum()
    };
    let adapter = config.lora.as_ref().map(|lora| AdapterGeometry {
        units: values(adapter::units(config, lora)),
        inputs: sides(lora, 1),
        outputs: sides(lora, 0),
        drops: lora.dropout > 0.0,
    });
    let mlp = |layer: usize| match config.experts_of(layer) {
        None => Mlp::Dense {
            width: config.intermediate_size as u64,
        },
        Some(experts) => Mlp::Experts {
            count: experts.count as u64,
            per_token: experts.per_token as u64,
            width: experts.intermediate_size as u64,
        },
    };
    Geometry {
        units: values(weights::units(config)),
        adapter,
        vocabulary: config.vocab_size as u64,
        hidden: config.hidden_size as u64,
        heads: config.num_attention_heads as u64,
        groups: config.num_key_value_heads as u64,
        head_dim: config.head_dim() as u64,
        norms_heads: config.norms_heads(),
        positions: config.max_position_embeddings as u64,
        mlps: (0..config.num_hidden_layers).map(mlp).collect(),
    }
}

/// Logs and returns the memory estimate of a step on one row of `context` tokens. Refuses a run that cannot fit into
/// `room` bytes per rank.
pub fn announce(facts: &Facts, context: u64, room: Option<u64>) -> Result<Estimate, TrainError> {
    let (least, whole) = (facts.row(1), facts.row(context));
    tracing::info!(
        bytes = whole.total(),
        room,
        "estimated memory of a rank at one row of {context} tokens: {whole}"
    );
    let Some(room) = room else { return Ok(whole) };
    if least.total() > room {
        return Err(TrainError::Memory {
            needed: least.total(),
            room,
            message: format!(
                "one row of one token takes {least}; a rank has {}: {}",
                in_words(room),
                remedy(facts)
            ),
        });
    }
    if whole.total() > room {
        tracing::warn!(
            "a rank has {}, and one row of {context} tokens may not fit: {}",
            in_words(room),
            remedy(facts)
        );
    }
    Ok(whole)
}

/// Logs the estimate of what a rank on a GPU takes of its pod's memory at one row of `context` tokens, and warns if its
/// part of that memory is smaller. It refuses nothing: a container may not count the pinned memory of a GPU's driver.
pub fn announce_host(device: Device, facts: &Facts, context: u64, ranks: u32) {
    if device == Device::Cpu {
        return;
    }
    let (estimate, room) = (facts.host_row(context), room(ranks));
    tracing::info!(
        bytes = estimate.total(),
        room,
        "estimated memory of the pod for a rank's tensors at one row of {context} tokens: {estimate}"
    );
    if let Some(room) = room.filter(|room| estimate.total() > *room) {
        tracing::warn!(
            "a rank's part of the pod's memory is {}, and its tensors may not fit: give the pod more memory \
             (trainer.resources), the trainer more nodes (trainer.nodes), or offload less (trainer.offload)",
            in_words(room)
        );
    }
}

fn remedy(facts: &Facts) -> &'static str {
    // In bf16: on a GPU.
    if facts.compute < 4 {
        return "give the trainer more nodes (trainer.nodes), GPUs with more memory, trainer.offload, or shard: All, or train an adapter (model.lora)";
    }
    match facts.trains_an_adapter() {
        false => {
            "give the trainer more nodes (trainer.nodes), more memory (trainer.resources), shard: All, or train an adapter (model.lora)"
        }
        true => "give the trainer more nodes (trainer.nodes), more memory (trainer.resources), or shard: All",
    }
}

/// Bytes for each of `ranks` ranks of this container, or machine: an equal part of the smallest limit.
pub fn room(ranks: u32) -> Option<u64> {
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(kib * 1024)
    });
    let limits = [
        machine,
        number("/sys/fs/cgroup/memory.max"),
        number("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
    ];
    limits
        .into_iter()
        .flatten()
        .min()
        .map(|bytes| bytes / u64::from(ranks.max(1)))
}

#[cfg(test)]
mod tests;
