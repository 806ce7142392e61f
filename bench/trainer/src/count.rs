//! Launches, floating-point operations and bytes of a block and of the vocabulary head on a GPU, for every published
//! geometry at its full size.
//!
//! They come from the trainer's own code, run on tensors without memory ([`grpo_native::recorder`]), so a machine
//! without a GPU counts them. Most operations are one launch; [`launches`] has the others. On a GPU,
//! `grpo-bench-trainer gpu --launches` prints what the GPU's own counters say beside it.

use std::collections::BTreeMap;

use clap::ValueEnum;
use grpo_memory::GPU_HEAD_LOGITS;
use grpo_model::head::Chunk;
use grpo_model::layout::Layout;
use grpo_model::model::{self, Block, Pass};
use grpo_model::rotation::Rope;
use grpo_model::{Config, adapter, weights};
use grpo_native::linear::backward;
use grpo_native::recorder::{Operation, meta, recorded};
use grpo_trainer::micro_batch::MicroBatch;
use grpo_trainer::packing::{Cost, pack};
use grpo_trainer::train_row::TrainRow;
use tch::{Kind, Tensor};

use crate::Failure;
use crate::published::{Model, cases};

/// A pass forward and the one back.
pub struct Passes<T> {
    pub forward: T,
    pub backward: T,
}

/// Sums over operations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    pub launches: u64,
    /// Floating-point operations of products.
    pub flops: f64,
    /// Bytes that operations read and write which are limited by memory bandwidth.
    pub moved: f64,
}

/// Floating-point operations for each byte, below which memory bandwidth limits an H200: 989 TFLOP/s and 4.8 TB/s.
const RIDGE: f64 = 206.0;

/// Kernels of an operation, as the profiler of an H200 counted them (`gpu --launches`). One, if it is not listed.
/// cuBLAS's own fills and sums are left out: they depend on shapes.
pub fn launches(operation: &str) -> u64 {
    match operation {
        // The scores' row sums, the main kernel, and the rounding of the queries' gradients.
        // And, for grouped keys and values, two sums over the heads of a group.
        "aten::_flash_attention_backward" | "aten::_cudnn_attention_backward" => 5,
        // The problem's sizes are prepared on the GPU.
        "aten::_grouped_mm" => 2,
        "aten::topk" => 2,
        // Of one byte: histogram, its sum, one pass, and indices.
        "aten::sort" => 4,
        _ => 1,
    }
}

impl Counts {
    pub fn of(operations: &[Operation]) -> Self {
        operations.iter().fold(Self::default(), |sum, one| Self {
            launches: sum.launches + launches(&one.name),
            flops: sum.flops + one.flops,
            moved: sum.moved
                + if one.flops > RIDGE * (one.read + one.written) {
                    0.0
                } else {
                    one.read + one.written
                },
        })
    }
}

/// Creates the tensors of a block: without memory, or on a GPU.
pub trait Place {
    fn tensor(&self, size: &[i64], kind: Kind) -> Result<Tensor, Failure>;
    /// A tensor of the host there.
    fn placed(&self, tensor: &Tensor) -> Result<Tensor, Failure>;
}

/// Tensors without memory.
pub struct Nowhere;

impl Place for Nowhere {
    fn tensor(&self, size: &[i64], kind: Kind) -> Result<Tensor, Failure> {
        Ok(meta(size, kind)?)
    }

    fn placed(&self, tensor: &Tensor) -> Result<Tensor, Failure> {
        Ok(meta(&tensor.size(), tensor.kind())?)
    }
}

/// The first block of a model with the inputs of a pass through it.
pub struct FirstBlock {
    config: Config,
    rope: Rope,
    layout: Layout,
    weights: Vec<Tensor>,
    x: Tensor,
}

impl FirstBlock {
    pub fn of(config: Config, rows: &[TrainRow], tokens: usize, place: &impl Place) -> Result<Self, Failure> {
        let packing = pack(rows, tokens, 1, &Cost::of(&config));
        let [only] = &packing.ranks[0][..] else {
            return Err(format!("{tokens} tokens were to be one micro-batch").into());
        };
        let batch = MicroBatch::packed(only, rows)?;
        // Views of one tensor, as in a gathered unit.
        let of = |unit: Option<weights::Unit>, trained: bool| -> Result<Vec<Tensor>, Failure> {
            let Some(unit) = unit else {
                return Ok(Vec::new());
            };
            let whole = place.tensor(&[unit.numel() as i64], Kind::BFloat16)?;
            let mut begin = 0;
            let view = |(_, shape): &(String, Vec<usize>)| {
                let size: Vec<i64> = shape.iter().map(|side| *side as i64).collect();
                let numel: i64 = size.iter().product();
                begin += numel;
                let view = whole.narrow(0, begin - numel, numel).view(size.as_slice());
                view.detach().set_requires_grad(trained)
            };
            Ok(unit.tensors.iter().map(view).collect())
        };
        let lora = config.lora.clone();
        let mut weights = of(weights::units(&config).into_iter().nth(1), lora.is_none())?;
        if let Some(lora) = &lora {
            weights.extend(of(adapter::units(&config, lora).into_iter().nth(1), true)?);
        }
        let size = [1, batch.tokens() as i64, config.hidden_size as i64];
        let rope = Rope::new(&config, config.max_position_embeddings as i64, Kind::Float);
        Ok(Self {
            rope: rope.moved(|tensor| place.placed(tensor))?,
            layout: batch.layout.moved(|tensor| place.placed(tensor))?,
            weights,
            x: place.tensor(&size, Kind::BFloat16)?.set_requires_grad(true),
            config,
        })
    }

    /// A pass forward, from leaves without gradients.
    pub fn forward(&self) -> Tensor {
        let leaf = |tensor: &Tensor| tensor.detach().set_requires_grad(tensor.requires_grad());
        let weights: Vec<Tensor> = self.weights.iter().map(leaf).collect();
        let block = Block {
            layer: 0,
            weights: &weights,
        };
        let mut pass = Pass::default();
        model::block(&self.config, &self.rope, &self.layout, block, &leaf(&self.x), &mut pass)
    }

    /// The operations of a pass. The first block looks up the tokens' angles, which a second pass has.
    pub fn operations(&self) -> Result<Passes<Vec<Operation>>, Failure> {
        backward(&self.forward(), &self.x.detach())?;
        let (forward, y) = recorded(|| self.forward());
        let above = y.detach().empty_like();
        let (backward, done) = recorded(|| backward(&y, &above));
        done?;
        Ok(Passes { forward, backward })
    }
}

/// The operations of the vocabulary head over `trained` tokens, all chunks together, in the smallest chunks that a GPU
/// uses.
pub fn head(config: &Config, trained: usize, place: &impl Place) -> Result<Vec<Operation>, Failure> {
    let (v, h) = (config.vocab_size as i64, config.hidden_size as i64);
    let weight = place.tensor(&[v, h], Kind::BFloat16)?;
    let most = (GPU_HEAD_LOGITS / config.vocab_size).max(1);
    let chunk = |n: usize| -> Result<Vec<Operation>, Failure> {
        let n = n as i64;
        let hidden = place.tensor(&[n, h], Kind::BFloat16)?;
        let targets = place.tensor(&[n], Kind::Int64)?;
        let [temperatures, by_logprobs, logits] = [n, n, n * v].map(|size| place.tensor(&[size], Kind::Float));
        let (temperatures, by_logprobs, logits) = (temperatures?, by_logprobs?, logits?);
        let mut gradient = match config.lora.is_none() {
            true => Some(place.tensor(&[v, h], Kind::Float)?),
            false => None,
        };
        let (operations, _) = recorded(|| {
            let (chunk, _, _) = Chunk::forward(&weight, &hidden, &targets, &temperatures, &logits);
            chunk.backward(&weight, &by_logprobs, None, gradient.as_mut())
        });
        Ok(operations)
    };
    let mut all = Vec::new();
    for begin in (0..trained).step_by(most) {
        all.extend(chunk(most.min(trained - begin))?);
    }
    Ok(all)
}

/// Operations by name, with their number.
fn by_name(operations: &[Operation]) -> BTreeMap<&str, u64> {
    let mut found = BTreeMap::new();
    for one in operations {
        *found.entry(one.name.as_str()).or_default() += 1;
    }
    found
}

/// Prints the counts of all geometries, and the operations of one.
pub fn show(tokens: usize, of: Option<Model>) -> Result<bool, Failure> {
    println!(
        "A block in bf16 on a Hopper GPU, activations kept, {tokens} unique tokens: launches, TFLOP, GB moved outside of products"
    );
    for model in Model::value_variants() {
        for (case, rows) in cases(tokens) {
            let config = model.trained(None, tokens)?;
            let found = FirstBlock::of(config, &rows, tokens, &Nowhere)?.operations()?;
            let [forward, back] = [&found.forward, &found.backward].map(|pass| Counts::of(pass));
            let pass = |counts: Counts| {
                format!(
                    "{} launches, {:.3} TFLOP, {:.2} GB",
                    counts.launches,
                    counts.flops / 1e12,
                    counts.moved / 1e9
                )
            };
            println!(
                "  {}, {case}: forward {}; backward {}",
                model.name(),
                pass(forward),
                pass(back)
            );
            if of == Some(*model) {
                println!("    forward: {:?}", by_name(&found.forward));
                println!("    backward: {:?}", by_name(&found.backward));
            }
        }
        let config = model.trained(None, tokens)?;
        let counts = Counts::of(&head(&config, tokens, &Nowhere)?);
        println!("  {}, head: {counts:?}", model.name());
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
