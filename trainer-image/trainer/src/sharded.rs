//! Fully sharded training without autograd hooks: one rank's shards of model and optimizer state.
//!
//! Parameters live in units (embedding with head and final norm; one unit per block). A rank keeps an equal flat fp32
//! shard of every unit, and AdamW's two moments of it. `gradients.rs` streams the units through the model.
//!
//! If blocks are computed in bf16, these fp32 shards stay the masters. A shard is rounded before it is gathered, which
//! halves the bytes sent; gradients are summed over micro-batches and ranks in fp32. Published and stored weights are
//! always the masters.
//!
//! If an adapter is trained, the model's own units are sharded in the same way, without moments or gradients, and are
//! gathered with the adapter's. They are held in the compute precision.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use grpo_memory::{Facts, GPU_HEAD_LOGITS, GPU_TOKENS, HEAD_LOGITS, ParallelDims, TOKENS};
use grpo_model::adapter;
use grpo_model::lora::Lora;
use grpo_model::model::{self, Pass};
use grpo_model::rotation::Rope;
use grpo_model::weights::{self, Source, Unit, Weights};
use grpo_model::{Config, ModelError};
use grpo_native::gpu_wait::wait_for;
use grpo_native::{Group, device};
use grpo_objective::mixing::mixed;
use grpo_records::RunStore;
use tch::{Device, Kind, Tensor};

use crate::compute::{Compute, Precision};
use crate::error::TrainError;
use crate::initial::initial_adapter;
use crate::loss_fn::LossOver;
use crate::memory;
use crate::mesh::{Mesh, ParallelGroups};
use crate::micro_batch::MicroBatch;
use crate::packing::Pack;
use crate::replay;
use crate::shard::{Shard, frozen_parts, part_of};
use crate::train_row::TrainRow;

/// One rank's part of model and optimizer.
pub struct Sharded {
    pub config: Config,
    /// All ranks.
    pub group: Group,
    pub(crate) groups: ParallelGroups,
    /// The trained units: the model's, or the adapter's.
    pub shards: Vec<Shard>,
    /// The model's own units if an adapter is trained, in the precision of [`Sharded::compute_in`]; else empty.
    pub(crate) frozen: Vec<(Unit, Tensor)>,
    /// The model that training began with, if [`Sharded::hold_base`] was called; else empty.
    pub(crate) base: Vec<(Unit, Tensor)>,
    /// Every whole unit, flat and padded, if nothing may be sent: see [`Sharded::without_collectives`].
    pub(crate) replicated: Option<Vec<Tensor>>,
    /// Optimizer steps taken: the exponent of AdamW's bias correction.
    pub updates: u64,
    /// Number of logits that exist at once: the vocabulary head is computed in pieces of trained tokens. Larger on a
    /// GPU with memory to spare.
    pub head_logits: usize,
    /// Largest estimate of [`Sharded::kept_bytes`] at which activations are kept; above it, backward computes blocks
    /// again. A GPU's free memory is a second bound.
    pub activation_bytes: usize,
    /// Most bytes of attention outputs to keep if blocks are computed again, from the last layer down: a kept output is
    /// not computed again. A GPU's free memory is a second bound.
    pub attention_bytes: usize,
    /// Most bytes of block inputs to keep at once if blocks are computed again: micro-batches with more in total pass
    /// in waves. On a GPU, half of a step's memory is a second bound.
    pub input_bytes: usize,
    /// Most unique tokens that a rank computes at a time, unless its part of a single row is longer.
    pub micro_batch_tokens: usize,
    /// The tokens that one call of the loss function gets.
    pub loss_over: LossOver,
    /// The store with the experts that engines recorded, if a mixture's tokens are to go through them
    /// ([`crate::replay`]).
    pub replays: Option<RunStore>,
    /// Derived from seed and step: decides which values an adapter's dropout drops.
    pub(crate) drops_by: u64,
    pub(crate) compute: Compute,
    /// Whether an engine uses the device in turns with this rank.
    pub(crate) shares_device: bool,
    pub(crate) rope: Rope,
    /// Tokens that each expert of each layer computed on this rank since [`Sharded::begin_step`].
    pub(crate) loads: RefCell<Vec<Vec<i64>>>,
}

const ACTIVATION_BYTES: usize = 2 << 30;

/// A wave of this size computes for much longer than the gathering of its units takes.
const INPUT_BYTES: usize = 8 << 30;

impl Sharded {
    /// Takes this rank's part of `weights`.
    pub fn new(config: Config, mesh: impl Into<Mesh>, weights: &Weights) -> Result<Self, TrainError> {
        Self::build(config, mesh.into(), part_of(weights, "the model"))
    }

    /// Reads this rank's part of a model directory, and no other bytes of its tensors.
    pub fn read(config: Config, mesh: impl Into<Mesh>, source: &Source) -> Result<Self, TrainError> {
        Self::build(config, mesh.into(), |name, range| source.read_finite(name, range))
    }

    /// Reads this rank's part of a model directory in the compute precision, freezes it, and puts a new adapter beside
    /// it: [`Sharded::read`] and [`Sharded::with_adapter`], without the masters and moments that no step would change.
    pub fn read_frozen(
        config: Config,
        mesh: impl Into<Mesh>,
        source: &Source,
        compute: &Compute,
        lora: Lora,
        seed: u64,
    ) -> Result<Self, TrainError> {
        Self::frozen_of(
            config,
            mesh,
            |name, range| source.read_finite(name, range),
            compute,
            lora,
            seed,
        )
    }

    /// Like [`Sharded::read_frozen`], with values from `read`, which returns a range of the tensor of that name.
    pub fn frozen_of(
        config: Config,
        mesh: impl Into<Mesh>,
        read: impl Fn(&str, Range<usize>) -> Result<Vec<f32>, ModelError>,
        compute: &Compute,
        lora: Lora,
        seed: u64,
    ) -> Result<Self, TrainError> {
        let Mesh { world: group, groups } = mesh.into();
        let frozen = frozen_parts(weights::units(&config), groups.shard(&group), compute, &read)?;
        let adapter = initial_adapter(&config, &lora, seed);
        let model = Self::of_parts(config, Mesh { world: group, groups }, Vec::new(), frozen);
        Ok(model.beside(lora, &adapter)?.compute_as(compute.clone()))
    }

    fn build(
        config: Config,
        mesh: Mesh,
        read: impl Fn(&str, Range<usize>) -> Result<Vec<f32>, ModelError>,
    ) -> Result<Self, TrainError> {
        let shard_group = mesh.groups.shard(&mesh.world);
        let shards = weights::units(&config)
            .into_iter()
            .map(|unit| Shard::new(unit, shard_group, &read))
            .collect::<Result<_, TrainError>>()?;
        Ok(Self::of_parts(config, mesh, shards, Vec::new()))
    }

    fn of_parts(config: Config, mesh: Mesh, shards: Vec<Shard>, frozen: Vec<(Unit, Tensor)>) -> Self {
        let Mesh { world: group, groups } = mesh;
        let rope = Rope::new(&config, config.max_position_embeddings as i64, Kind::Float);
        Self {
            config,
            group,
            groups,
            shards,
            frozen,
            base: Vec::new(),
            replicated: None,
            updates: 0,
            head_logits: HEAD_LOGITS,
            activation_bytes: ACTIVATION_BYTES,
            attention_bytes: 0,
            input_bytes: INPUT_BYTES,
            micro_batch_tokens: TOKENS as usize,
            loss_over: LossOver::default(),
            replays: None,
            drops_by: 0,
            compute: Compute::default(),
            shares_device: false,
            rope,
            loads: RefCell::default(),
        }
    }

    /// Sets the precision of blocks and of the head's operands. A frozen model is held in it and does not get back the
    /// digits that bf16 lost.
    pub fn compute_in(self, precision: Precision) -> Self {
        let compute = Compute {
            precision,
            ..self.compute.clone()
        };
        self.compute_as(compute)
    }

    /// Sets the precision and all other settings of the computation, and moves all state to its place. On a GPU
    /// micro-batches and the head's chunks are larger, and activations may take all free memory.
    pub fn compute_as(mut self, compute: Compute) -> Self {
        if compute.device.is_cuda() {
            device::compute_deterministically(compute.deterministic);
            self.micro_batch_tokens = GPU_TOKENS as usize;
            self.head_logits = GPU_HEAD_LOGITS;
            self.activation_bytes = usize::MAX;
            self.attention_bytes = usize::MAX;
        }
        for shard in &mut self.shards {
            shard.values = compute.in_its_place(&shard.values, compute.of_parameters());
            for moment in [&mut shard.first_moment, &mut shard.second_moment] {
                *moment = compute.in_its_place(moment, compute.of_moments());
            }
        }
        for (_, values) in self.frozen.iter_mut().chain(&mut self.base) {
            *values = compute.in_its_place(&values.to_kind(compute.kind()), compute.of_parameters());
        }
        self.rope = self.rope.to_device(compute.device);
        self.compute = compute;
        self
    }

    /// Leaves no tensor on the device, where parameters and moments are kept aside already ([`Compute::offload`]). Call
    /// [`Sharded::enter_device`] before the next computation.
    pub(crate) fn leave_device(&mut self) {
        self.rope = self.rope.to_device(Device::Cpu);
    }

    /// Undoes [`Sharded::leave_device`]; otherwise changes nothing.
    pub(crate) fn enter_device(&mut self) {
        self.rope = self.rope.to_device(self.compute.device);
    }

    pub fn computes(&self) -> &Compute {
        &self.compute
    }

    /// The kind in which blocks are computed.
    pub(crate) fn kind(&self) -> Kind {
        self.compute.kind()
    }

    /// Freezes the model and puts a new adapter beside it, which is trained from now on. As in PEFT, B begins at zero,
    /// so the model's outputs do not change at first.
    pub fn with_adapter(self, lora: Lora, seed: u64) -> Result<Self, TrainError> {
        let adapter = initial_adapter(&self.config, &lora, seed);
        self.with_adapter_of(lora, &adapter)
    }

    /// Like [`Sharded::with_adapter`], with an adapter that was trained before.
    pub fn with_adapter_of(self, lora: Lora, adapter: &Weights) -> Result<Self, TrainError> {
        let compute = self.compute.clone();
        let mut model = self;
        let frozen = model.shards.drain(..).map(|shard| (shard.unit, shard.values));
        model.frozen = frozen.collect();
        Ok(model.beside(lora, adapter)?.compute_as(compute))
    }

    /// Puts an adapter beside the frozen model.
    fn beside(self, lora: Lora, adapter: &Weights) -> Result<Self, TrainError> {
        let config = self.config.clone().with_lora(lora.clone())?;
        let read = part_of(adapter, "the adapter");
        let shards = adapter::units(&config, &lora)
            .into_iter()
            .map(|unit| Shard::new(unit, self.shard_group(), &read))
            .collect::<Result<_, TrainError>>()?;
        Ok(Self {
            config,
            shards,
            updates: 0,
            ..self
        })
    }

    /// Converts parameters, and all later computation, to this kind.
    pub fn in_kind(mut self, kind: Kind) -> Self {
        for shard in &mut self.shards {
            for tensor in [&mut shard.values, &mut shard.first_moment, &mut shard.second_moment] {
                *tensor = tensor.to_kind(kind);
            }
        }
        for (_, values) in &mut self.frozen {
            *values = values.to_kind(kind);
        }
        self.rope = Rope::new(&self.config, self.config.max_position_embeddings as i64, kind);
        self
    }

    /// The baseline for the cost of sharding: the same shards and steps, but each rank gathers units from its own full
    /// copy, and takes its part of its own gradient without a sum. The copy does not follow the steps and has no
    /// adapter: use it for measurements only.
    pub fn without_collectives(mut self) -> Result<Self, TrainError> {
        let whole = self
            .shards
            .iter()
            .map(|shard| self.shard_group().all_gather(&shard.values));
        self.replicated = Some(whole.collect::<Result<_, _>>()?);
        Ok(self)
    }

    /// The ranks over which the state is sharded.
    pub fn shard_group(&self) -> &Group {
        self.groups.shard(&self.group)
    }

    /// The input of memory estimates.
    pub(crate) fn facts(&self) -> Facts {
        let dims = ParallelDims {
            sequence: self.groups.sequence.world() as u32,
            shard: Some(self.shard_group().world()),
        };
        let mut facts = Facts::of(memory::geometry(&self.config), dims, self.group.world());
        facts.holds_base = !self.base.is_empty();
        facts.compute = self.kind().elt_size_in_bytes() as u64;
        facts.head_logits = self.head_logits as u64;
        facts.offload = self.compute.kept_aside();
        facts
    }

    /// The replica of the state to which this rank's part belongs.
    pub fn replica(&self) -> u32 {
        self.groups.replicate().map_or(0, Group::rank)
    }

    /// The number of data-parallel groups, to which micro-batches are dealt, and this rank's group among them. Ranks
    /// that share sequences are one group.
    pub fn data_parallel(&self) -> (usize, usize) {
        let sequence = self.groups.sequence.world();
        (
            self.group.world() as usize / sequence,
            self.group.rank() as usize / sequence,
        )
    }

    /// Most unique tokens of one pack. Ranks that share sequences divide it, so it has `micro_batch_tokens` for each of
    /// them, as `max_tokens_per_gpu` in slime and `ppo_max_token_len_per_gpu` in verl.
    pub fn pack_tokens(&self) -> usize {
        self.micro_batch_tokens.max(1) * self.groups.sequence.world() as usize
    }

    /// Whether a packed tree's tokens are divided over ranks.
    pub fn shares_sequences(&self) -> bool {
        self.groups.sequence.world() > 1
    }

    /// This rank's part of a packed tree of some of `rows`.
    pub fn micro_batch(&self, pack: &Pack, rows: &[TrainRow]) -> Result<MicroBatch, TrainError> {
        let mut batch = match self.shares_sequences() {
            false => MicroBatch::packed(pack, rows)?,
            true => MicroBatch::part(pack, rows, &self.groups.sequence)?,
        };
        let (ranks, rank) = (self.groups.sequence.world() as i64, self.groups.sequence.rank() as i64);
        let tokens = batch.ids.numel() as i64;
        // Takes this rank's part of a tensor over all tokens of the pack, along their dimension. Padding after the
        // tokens makes their number divisible; no other token attends to it.
        let here = |all: Tensor, dim: usize| {
            let mut behind = vec![0; 2 * (all.dim() - 1 - dim)];
            behind.extend([0, tokens * ranks - all.size()[dim]]);
            all.constant_pad_nd(behind).narrow(dim as i64, tokens * rank, tokens)
        };
        if self.config.lora.as_ref().is_some_and(|lora| lora.dropout > 0.0) {
            let keys = pack.prefixes.iter();
            let keys: Vec<i64> = keys.map(|prefix| mixed(prefix ^ self.drops_by).cast_signed()).collect();
            batch.layout = Rc::new(batch.layout.dropping(here(Tensor::from_slice(&keys), 0)));
        }
        if let Some(store) = &self.replays {
            let experts = replay::experts_of(pack, rows, &self.config, store)?.into_iter();
            batch.experts = experts.map(|experts| Some(here(experts?, 1))).collect();
        }
        batch.to_device(self.compute.device)
    }

    /// Sets the adapter's dropout for this step, and counts loads from zero.
    pub fn begin_step(&mut self, seed: u64, step: u32) {
        self.loads.borrow_mut().clear();
        self.drops_by = mixed(mixed(seed) ^ u64::from(step));
    }

    /// Keeps this rank's part of the base model for its logprobs. With an adapter, the frozen model is the base
    /// already.
    pub fn hold_base(&mut self, source: &Source) -> Result<(), TrainError> {
        if self.frozen.is_empty() {
            let read = |name: &str, range: Range<usize>| source.read_finite(name, range);
            self.base = frozen_parts(weights::units(&self.config), self.shard_group(), &self.compute, &read)?;
        }
        Ok(())
    }

    /// Keeps a copy of the current model as the base.
    pub fn base_is_here(&mut self) {
        let copy = |shard: &Shard| (shard.unit.clone(), shard.values.copy());
        self.base = self.shards.iter().map(copy).collect();
    }

    /// Number of frozen tensors in a unit. They come first.
    pub(crate) fn frozen_tensors(&self, index: usize) -> usize {
        self.frozen.get(index).map_or(0, |(unit, _)| unit.tensors.len())
    }

    /// Gathered tensors as leaves of a graph; only trained tensors require a gradient.
    pub(crate) fn leaves(&self, index: usize, tensors: &[Tensor]) -> Vec<Tensor> {
        let frozen = self.frozen_tensors(index);
        let leaf = |(at, tensor): (usize, &Tensor)| tensor.detach().set_requires_grad(at >= frozen);
        tensors.iter().enumerate().map(leaf).collect()
    }

    /// Tokens that each expert of each layer computed in the forward passes of all gradients since
    /// [`Sharded::begin_step`], over all ranks, padding included: `[layer][expert]`, empty for a layer without experts.
    /// Every rank must call it.
    pub fn expert_loads(&self) -> Result<Vec<Vec<u64>>, TrainError> {
        let own = self.loads.borrow().clone();
        let flat: Vec<f64> = own.iter().flatten().map(|count| *count as f64).collect();
        let mut sums = match flat.is_empty() {
            true => Vec::new(),
            false => self.sum(&flat)?,
        }
        .into_iter();
        let layer = |own: Vec<i64>| sums.by_ref().take(own.len()).map(|sum| sum as u64).collect();
        Ok(own.into_iter().map(layer).collect())
    }

    /// `passes`: `[layer][micro-batch]`.
    pub(crate) fn note_loads(&self, passes: &[Vec<Pass>]) -> Result<(), TrainError> {
        let mut loads = self.loads.borrow_mut();
        loads.resize(passes.len(), Vec::new());
        // Also on a rank without micro-batches: all ranks sum as many numbers.
        for (layer, own) in loads.iter_mut().enumerate() {
            if let Some(experts) = self.config.experts_of(layer) {
                own.resize(experts.count, 0);
            }
        }
        let counted = |(layer, passes): (usize, &Vec<Pass>)| {
            let experts = self.config.experts_of(layer)?;
            let chosen = passes.iter().filter_map(|pass| pass.experts.as_ref());
            let counts = chosen
                .map(|chosen| model::counts(experts, chosen))
                .reduce(|sum, counts| sum + counts)?;
            Some((layer, counts))
        };
        let (layers, counts): (Vec<usize>, Vec<Tensor>) = passes.iter().enumerate().filter_map(counted).unzip();
        if counts.is_empty() {
            return Ok(());
        }
        // One copy for all layers: each copy waits for the GPU.
        let counts = Tensor::cat(&counts, 0);
        let counts = wait_for(counts.device(), || Vec::<i64>::try_from(counts.to_device(Device::Cpu)))?;
        let each = layers
            .iter()
            .zip(counts.chunks_exact(counts.len() / layers.len().max(1)));
        for (layer, counts) in each {
            loads[*layer]
                .iter_mut()
                .zip(counts)
                .for_each(|(sum, count)| *sum += count);
        }
        Ok(())
    }

    /// Sums numbers over the ranks.
    pub fn sum(&self, numbers: &[f64]) -> Result<Vec<f64>, TrainError> {
        let mut tensor = Tensor::from_slice(numbers);
        self.group.all_reduce_sum(&mut tensor)?;
        Ok(Vec::<f64>::try_from(tensor)?)
    }
}
