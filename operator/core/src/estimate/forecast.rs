//! Estimates the bytes of a run from its spec and the name of its model: memory of trainer and engines, weights
//! versions, checkpoints and model downloads.

use grpo_contracts::{RunConfig, run_config::pool_cache, weights};
use grpo_crds::{
    GrpoRun, GrpoRunSpec,
    grpo_run::Mode,
    inference_pool::{Device, Engine, ModelCache},
    sources::ModelSource,
};
use grpo_memory::{EngineShare, Estimate, GPU_TOKENS, Geometry, Gpu, HostEstimate, Load, Schedule, StepWork};

use super::{
    CUDA_AND_NCCL,
    geometry::guess,
    pack_share,
    size::{Size, model_name, size, source_name},
    tokens,
};

/// Bytes of one number: in the publisher's model files, as the optimizer steps it, and in a checkpoint (a value and two
/// moments).
const BF16: u64 = 2;
const F32: u64 = 4;
const CHECKPOINT: u64 = 12;

/// A model with the sizes that its name states.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedModel {
    pub name: String,
    pub parameters: u64,
    /// Active parameters for each token; fewer in a mixture of experts.
    pub active: u64,
    /// Bytes of the model files, in bf16.
    pub bytes: u64,
}

/// Returns the model of a spec, or `None` if the name has no size.
pub fn model(source: &ModelSource) -> Option<NamedModel> {
    let name = source_name(source)?;
    let size = size(&name)?;
    let (parameters, active) = (size.parameters as u64, size.active as u64);
    Some(NamedModel {
        name,
        parameters,
        active,
        bytes: BF16 * parameters,
    })
}

/// The memory of a trainer's ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainerMemory {
    pub ranks: u32,
    /// Ranks that share the state.
    pub shards: u64,
    /// Tokens that a rank computes at a time.
    pub tokens: u64,
    /// Tokens of a full pack. Rows in one pack share their common prefixes.
    pub pack: u64,
    /// Tokens of the longest possible row, if it fits into no pack.
    pub longer: Option<u64>,
    pub on_gpus: bool,
    pub estimate: Estimate,
    /// Memory outside the tensors: CUDA's context and NCCL's buffers.
    pub besides: u64,
    /// What the tensors of a pod's ranks take of its own memory, beside its GPUs. `None` without GPUs.
    pub host: Option<HostEstimate>,
}

impl TrainerMemory {
    /// Bytes of one rank.
    pub fn total(&self) -> u64 {
        self.estimate.total() + self.besides
    }
}

/// Returns the memory of a run's trainer, or `None` without a trainer or if the model's name has no size.
pub fn trainer(spec: &GrpoRunSpec) -> Option<TrainerMemory> {
    let trainer = spec.trainer.as_ref().filter(|_| spec.mode.needs_trainer())?;
    let size = size(&model_name(spec)?)?;
    let on_gpus = trainer.gpus_per_node > 0;
    let per_pod = trainer.gpus_per_node.max(1);
    let mut counted = trainer.clone();
    counted.gpus_per_node = per_pod;
    let load = Load::one(tokens(spec, trainer));
    let facts = super::facts(spec, &counted, size);
    let pack = u64::from(pack_share(trainer)) * u64::from(trainer.sequence_parallel.max(1));
    Some(TrainerMemory {
        pack,
        longer: spec.longest_row().map(u64::from).filter(|longest| *longest > pack),
        ranks: trainer.nodes * per_pod,
        shards: facts.shards,
        tokens: tokens(spec, trainer),
        on_gpus,
        besides: if on_gpus { CUDA_AND_NCCL } else { 0 },
        host: on_gpus.then(|| facts.host(&load).of_ranks(per_pod)),
        estimate: facts.estimate(&load, Schedule::Streamed),
    })
}

/// Speed of each GPU of a trainer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainerSpeed {
    /// Tokens of each row.
    pub row: u64,
    pub tokens_per_second: f64,
    /// Whether activations fit; otherwise blocks are computed twice.
    pub kept: bool,
}

/// Returns the tokens a second of each GPU of a run's trainer, calculated ([`grpo_memory::StepTime`]) for rows of the
/// maximum length. `bytes`: memory of a GPU, if known. Returns `None` without GPUs, or if the model's name has no size.
pub fn trainer_speed(spec: &GrpoRunSpec, gpu: &Gpu, bytes: Option<u64>) -> Option<TrainerSpeed> {
    let trainer = spec.trainer.as_ref().filter(|_| spec.mode.needs_trainer())?;
    if trainer.gpus_per_node == 0 {
        return None;
    }
    let facts = super::facts(spec, trainer, size(&model_name(spec)?)?);
    // Sequence parallelism: each rank has its share of the tokens and of the pairs.
    let sequence = u64::from(trainer.sequence_parallel.max(1));
    let row = u64::from(spec.longest_row().unwrap_or(GPU_TOKENS));
    let whole = StepWork::row(row);
    let share = |of: f64| of / sequence as f64;
    let work = StepWork {
        tokens: share(whole.tokens),
        pairs: share(whole.pairs),
        trained: share(whole.trained),
    };
    // The trainer's own rule (`Sharded::gpu_room`): with several micro-batches, activations may take nine tenths of the
    // memory left by state and logits.
    let tokens = tokens(spec, trainer).max(row.div_ceil(sequence));
    let load = Load {
        tokens: vec![tokens; 2],
        trained: tokens,
    };
    let state = facts.estimate(&load, Schedule::Kept).state;
    let beside = state + F32 * facts.head_logits + CUDA_AND_NCCL;
    let room = bytes.map(|bytes| bytes.saturating_sub(beside) / 10 * 9);
    let kept = room.is_some_and(|room| facts.step_bytes(&load, Schedule::Kept) <= room);
    let schedule = if kept { Schedule::Kept } else { Schedule::Streamed };
    let attended = room.map_or(0, |room| facts.attended_layers(&load, Some(room), u64::MAX));
    let time = facts.step_time(&work, schedule, attended, gpu);
    // A step has many rows but one optimizer pass, so the time of a row leaves the optimizer out.
    let seconds = time.total() - time.optimizer;
    Some(TrainerSpeed {
        row,
        tokens_per_second: work.tokens / seconds,
        kept,
    })
}

/// The memory of one replica of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineMemory {
    /// GPUs of a replica, over all its pods; 0 for an engine on CPUs.
    pub gpus: u32,
    /// Memory of each GPU, or of the pod of an engine without GPUs.
    pub share: EngineShare,
    /// The fraction of a GPU's memory for weights and cache. `None`: the engine's own default.
    pub fraction: Option<f64>,
}

/// Returns the memory of an engine, or `None` for an external engine or if the model's name has no size.
pub fn engine(source: &ModelSource, engine: &Engine) -> Option<EngineMemory> {
    let size = size(&source_name(source)?)?;
    let geometry = guess(size, None);
    let of = |gpus, tensor, stages, fraction| EngineMemory {
        gpus,
        share: EngineShare::of(&geometry, tensor, stages),
        fraction,
    };
    if let Some(vllm) = &engine.vllm {
        return Some(match vllm.device {
            Device::Gpu => of(
                vllm.ranks(),
                vllm.tensor_parallel,
                vllm.pipeline_parallel,
                Some(vllm.gpu_memory_utilization),
            ),
            Device::Cpu => of(0, 1, 1, None),
        });
    }
    if let Some(sglang) = &engine.sglang {
        let (tensor, stages) = (sglang.tensor_parallel, sglang.pipeline_parallel);
        return Some(of(sglang.ranks(), tensor, stages, sglang.memory_fraction));
    }
    // The embedded engine computes in fp32, on CPUs.
    let share = EngineShare::of(&geometry, 1, 1);
    engine.embedded.as_ref().map(|_| EngineMemory {
        gpus: 0,
        share: EngineShare {
            weights: share.weights * F32 / BF16,
            token: share.token * F32 / BF16,
        },
        fraction: None,
    })
}

/// Bytes that a training run writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreBytes {
    /// One version of the weights, as engines pull it.
    pub version: u64,
    /// Kept versions, including the initial one.
    pub versions: u64,
    /// One checkpoint.
    pub checkpoint: u64,
    /// Checkpoints that exist at the same time, including the one being written.
    pub checkpoints: u64,
}

impl StoreBytes {
    /// The maximum, without episodes.
    pub fn total(&self) -> u64 {
        self.version * self.versions + self.checkpoint * self.checkpoints
    }
}

/// Returns the bytes of versions and checkpoints, or `None` if the run does not train or the model's name has no size.
pub fn store(spec: &GrpoRunSpec) -> Option<StoreBytes> {
    if !spec.mode.needs_trainer() {
        return None;
    }
    let size = size(&model_name(spec)?)?;
    let whole = size.parameters as u64;
    let adapter = adapter_values(size, spec);
    // An adapter is published in the optimizer's precision, full weights in the compute precision: bf16 on GPUs.
    let on_gpus = spec.trainer.as_ref().is_some_and(|trainer| trainer.gpus_per_node > 0);
    let version = match weights::publishes_adapters(spec) {
        true => F32 * adapter.unwrap_or(whole),
        false if on_gpus => BF16 * whole,
        false => F32 * whole,
    };
    Some(StoreBytes {
        version,
        versions: weights::WEIGHTS_KEPT as u64 + 1,
        checkpoint: CHECKPOINT * adapter.unwrap_or(whole),
        checkpoints: u64::from(spec.checkpoint.keep) + 1,
    })
}

/// Number of values in the trained adapter.
fn adapter_values(size: Size, spec: &GrpoRunSpec) -> Option<u64> {
    let Geometry { adapter, .. } = guess(size, spec.model.lora.as_ref());
    adapter.map(|adapter| adapter.units.iter().sum())
}

/// How often a model is downloaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelDownloads {
    /// Number of downloads, one for each cache; an upper bound if nodes share a cache.
    pub times: u32,
    /// `times` is an upper bound, since pods of one node share the download.
    pub at_most: bool,
    /// One of the downloads is in the run's store.
    pub in_store: bool,
}

/// Returns the downloads of a run's model by its own pods, or `None` for a mounted model.
pub fn downloads_of_run(run: &GrpoRun) -> Option<ModelDownloads> {
    let spec = &run.spec;
    let download = RunConfig::of(run).model_download?;
    let pool = spec.inference.pool.as_ref().filter(|_| spec.mode.needs_engines());
    let engines = pool.map_or(0, |pool| match pool.engine.external {
        Some(_) => 0,
        None => pool.replicas * pool.engine.nodes(),
    });
    let trainer = spec.trainer.as_ref().filter(|_| spec.mode.needs_trainer());
    let trainers = trainer.map_or(0, |trainer| trainer.nodes);
    Some(match pool_cache(spec) {
        Some(ModelCache {
            claim_name: Some(_), ..
        }) => ModelDownloads {
            times: 1,
            at_most: false,
            in_store: false,
        },
        Some(_) => ModelDownloads {
            times: engines + trainers,
            at_most: true,
            in_store: false,
        },
        None => {
            let in_bucket = spec.store.object_store.is_some();
            let own = if in_bucket {
                trainers
            } else {
                u32::from(download.weights)
            };
            ModelDownloads {
                times: engines + own,
                at_most: false,
                in_store: download.weights && !in_bucket,
            }
        }
    })
}

/// Returns the downloads of a model by the replicas of a pool without a run, or `None` for a mounted model or an
/// external engine.
pub fn downloads_of_pool(pool: &grpo_crds::InferencePoolSpec) -> Option<ModelDownloads> {
    if !pool.model.is_downloaded() || pool.engine.external.is_some() {
        return None;
    }
    let pods = pool.replicas * pool.engine.nodes();
    let cache = pool.model_cache.as_ref();
    let claim = cache.is_some_and(|cache| cache.claim_name.is_some());
    Some(ModelDownloads {
        times: if claim { pods.min(1) } else { pods },
        at_most: cache.is_some_and(|cache| cache.host_path.is_some()),
        in_store: false,
    })
}

/// Whether a run's engines load each new version of the weights.
pub fn updates_engines(mode: Mode, engine: &Engine) -> bool {
    let external = engine.external.as_ref();
    mode == Mode::Train
        && external.is_none_or(|external| external.weights == grpo_crds::inference_pool::ExternalWeights::Agent)
}

#[cfg(test)]
mod tests;
