//! What a GPU of the trainer has to hold, and whether it can: a run that cannot fit is told so before anything starts,
//! with the sum.
//!
//! Only what certainly does not fit is refused. The number of parameters is what the model's name says; a name that
//! says nothing, and nodes that do not say how large their GPUs are, refuse nothing.

use grpo_crds::{
    GrpoRunSpec,
    grpo_run::{Mode, Shard, Trainer},
};

const GIB: f64 = (1u64 << 30) as f64;
/// bf16 weights, fp32 master weights, Adam's two fp32 moments, the fp32 gradient.
const WEIGHTS: f64 = 2.0;
const MASTER: f64 = 4.0;
const MOMENTS: f64 = 8.0;
const GRADIENT: f64 = 4.0;
/// What a rank computes with beside its shard: two gathered blocks and one gradient of a block, of about 2 % of the
/// parameters each.
const WORKING: f64 = 0.02 * (2.0 * WEIGHTS + GRADIENT);
/// CUDA's context, NCCL's buffers, the output head's.
const FIXED: f64 = 2.0 * GIB;
/// The input of every block is kept: bytes a token of a model of a billion parameters, growing with the power of 0.6
/// (layers x width).
const ACTIVATIONS: f64 = 82_000.0;
/// An adapter of all linear layers, as a share of the parameters for each rank.
const ADAPTER: f64 = 3.4e-4;

/// How large a model is, as its name says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    pub parameters: f64,
    /// Those that a token passes; fewer in a mixture of experts.
    pub active: f64,
}

/// Bytes of one GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Need {
    /// Sharded: bytes for each parameter, and over how many GPUs.
    per_parameter: f64,
    shards: f64,
    state: f64,
    activations: f64,
    tokens: f64,
    buffers: f64,
}

impl Need {
    pub fn total(&self) -> f64 {
        self.state + self.activations + self.buffers
    }
}

/// Why the trainer of a run cannot fit into GPUs with so much memory (MiB, as the label `nvidia.com/gpu.memory` has
/// it), and what to do.
pub fn refusal(spec: &GrpoRunSpec, gpu_memory: Option<u64>) -> Option<String> {
    let trains = matches!(spec.mode, Mode::Train | Mode::Finetune);
    let trainer = spec
        .trainer
        .as_ref()
        .filter(|trainer| trains && trainer.gpus_per_node > 0)?;
    let name = model_name(spec)?;
    let size = size(&name)?;
    let capacity = gpu_memory? as f64 * f64::from(1u32 << 20);
    let need = need(spec, trainer, size);
    if need.total() <= capacity {
        return None;
    }
    Some(format!(
        "the trainer does not fit: a GPU needs {} GiB and has {} GiB (nvidia.com/gpu.memory of the nodes). {}. {}",
        gib(need.total()),
        gib(capacity),
        sum(spec, &name, size, &need),
        remedies(spec, trainer, size, capacity)
    ))
}

fn need(spec: &GrpoRunSpec, trainer: &Trainer, size: Size) -> Need {
    let gpus = match trainer.shard {
        Shard::All => trainer.nodes * trainer.gpus_per_node,
        Shard::Node => trainer.gpus_per_node,
    };
    let shards = f64::from(gpus.max(1));
    let per_parameter = per_parameter(spec, trainer);
    let adapter = spec.model.lora.as_ref().map_or(0.0, |lora| {
        ADAPTER * f64::from(lora.rank) * size.parameters * (WEIGHTS + MASTER + MOMENTS + GRADIENT)
    });
    let tokens = tokens(spec, trainer);
    let kept = if trainer.offload.activations { 0.0 } else { tokens };
    Need {
        per_parameter,
        shards,
        state: (size.parameters * per_parameter + adapter) / shards,
        activations: kept * ACTIVATIONS * (size.active / 1e9).powf(0.6),
        tokens: kept,
        buffers: FIXED + WORKING * size.parameters,
    }
}

/// Bytes that a GPU's share of the state has for each parameter.
fn per_parameter(spec: &GrpoRunSpec, trainer: &Trainer) -> f64 {
    let of = |kept: bool, bytes: f64| if kept { bytes } else { 0.0 };
    let offload = &trainer.offload;
    if spec.model.lora.is_some() {
        return of(!offload.parameters, WEIGHTS);
    }
    of(!offload.parameters, WEIGHTS + MASTER) + of(!offload.optimizer, MOMENTS) + GRADIENT
}

/// Tokens a rank computes at a time: what is said, or the longest row there may be.
fn tokens(spec: &GrpoRunSpec, trainer: &Trainer) -> f64 {
    let longest = || {
        let context = spec.agent.limits.context_tokens.unwrap_or(0);
        f64::from(context) / f64::from(trainer.sequence_parallel.max(1))
    };
    trainer.max_tokens_per_gpu.map_or_else(longest, f64::from)
}

fn sum(spec: &GrpoRunSpec, name: &str, size: Size, need: &Need) -> String {
    let what = if spec.model.lora.is_some() {
        "bf16 weights, frozen, and the adapter's state"
    } else {
        "bf16 weights 2, fp32 master weights 4, Adam's moments 8, fp32 gradient 4, less what is offloaded"
    };
    let mut parts = vec![format!(
        "{} billion parameters (the name {name}) x {} bytes ({what}) / {} GPUs = {} GiB",
        round(size.parameters / 1e9),
        need.per_parameter,
        need.shards,
        gib(need.state)
    )];
    if need.tokens > 0.0 {
        parts.push(format!(
            "inputs of the blocks for {} tokens = {} GiB",
            need.tokens,
            gib(need.activations)
        ));
    }
    parts.push(format!("gathered blocks, CUDA and NCCL = {} GiB", gib(need.buffers)));
    parts.join("; ")
}

/// What would make it fit, each by itself.
fn remedies(spec: &GrpoRunSpec, trainer: &Trainer, size: Size, capacity: f64) -> String {
    let fits = |change: &dyn Fn(&mut GrpoRunSpec)| {
        let mut other = spec.clone();
        change(&mut other);
        let trainer = other.trainer.as_ref();
        trainer.is_some_and(|trainer| need(&other, trainer, size).total() <= capacity)
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
    if trainer.max_tokens_per_gpu.is_some() && fits(&with(|trainer| trainer.max_tokens_per_gpu = Some(1024))) {
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

fn gib(bytes: f64) -> String {
    format!("{:.1}", bytes / GIB)
}

fn round(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

/// What the model is called where it comes from.
fn model_name(spec: &GrpoRunSpec) -> Option<String> {
    let model = &spec.model;
    let hub = model.hub.as_ref().map(|hub| hub.repo.clone());
    let image = || {
        let image = model.image.as_ref()?;
        Some(joined(&image.reference, image.path.as_deref()))
    };
    let claim = || {
        let claim = model.persistent_volume_claim.as_ref()?;
        Some(joined(&claim.claim_name, claim.path.as_deref()))
    };
    hub.or_else(image)
        .or_else(claim)
        .or_else(|| model.object_store.as_ref().map(|store| store.url.clone()))
}

fn joined(place: &str, path: Option<&str>) -> String {
    path.map_or_else(|| place.to_owned(), |path| format!("{place}/{path}"))
}

/// The size that a name says: `Qwen3-32B`, `Qwen2.5-Coder-7B-Instruct`, `30B-A3B`. The last part of a path that says
/// one is believed.
pub fn size(name: &str) -> Option<Size> {
    name.rsplit('/').find_map(|part| {
        let words: Vec<&str> = part.split(['-', '_', ':', '@']).collect();
        let parameters = words.iter().find_map(|word| amount(word))?;
        let active = words
            .iter()
            .find_map(|word| amount(word.strip_prefix(['A', 'a'])?))
            .filter(|active| *active < parameters);
        Some(Size {
            parameters,
            active: active.unwrap_or(parameters),
        })
    })
}

/// `0.6B`, `135M`
fn amount(word: &str) -> Option<f64> {
    let (number, unit) = match word.strip_suffix(['B', 'b']) {
        Some(number) => (number, 1e9),
        None => (word.strip_suffix(['M', 'm'])?, 1e6),
    };
    let digits = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: f64 = number.parse().ok().filter(|_| digits)?;
    let amount = number * unit;
    (1e6..=1e13).contains(&amount).then_some(amount)
}

#[cfg(test)]
mod tests;
