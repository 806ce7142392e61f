//! Fully sharded training without autograd hooks, breadth first.
//!
//! Parameters live in units (embedding with head and final norm; one unit per block). A rank keeps an equal flat fp32 shard of every unit, and AdamW's two
//! moments of it. For each block: gather its weights once, pass *all* micro-batches through, keep each input, free the weights. Backward
//! walks the blocks in reverse: gather again, recompute with graph, and reduce-scatter the block's gradient once. So a step costs two gathers and
//! one reduce-scatter per unit however many micro-batches there are, and memory holds one unit's weights and the blocks' inputs.

use grpo_native::Group;
use grpo_policy::model::{self, Block, Rope};
use grpo_policy::weights::{self, Array, Unit, Weights};
use grpo_policy::{Config, ModelError};
use tch::{Kind, Tensor};

use crate::data::MicroBatch;
use crate::error::TrainError;

/// AdamW (arXiv 1711.05101), moments in fp32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    pub betas: [f64; 2],
    pub epsilon: f64,
    pub weight_decay: f64,
    /// Largest norm of the whole gradient; 0 does not clip.
    pub clip: f64,
}

/// One rank's part of one unit.
pub struct Shard {
    pub unit: Unit,
    /// `[padded / world]`.
    pub values: Tensor,
    pub first_moment: Tensor,
    pub second_moment: Tensor,
}

/// One rank's part of model and optimizer.
pub struct Sharded {
    pub config: Config,
    pub group: Group,
    pub shards: Vec<Shard>,
    /// Optimizer steps taken: the exponent of AdamW's bias correction.
    pub updates: u64,
    /// Largest number of logits that exist at once: the vocabulary head is computed in pieces of trained tokens.
    pub head_logits: usize,
    rope: Rope,
}

/// 256 MiB of fp32.
const HEAD_LOGITS: usize = 1 << 26;

/// What the loss of some of a micro-batch's trained tokens is: takes their logprobs and entropies, both `[n]`, and answers the summed loss.
pub type LossFn<'a> = dyn FnMut(&MicroBatch, &Tensor, &Tensor) -> Tensor + 'a;

impl Sharded {
    /// Takes this rank's part of `weights`.
    pub fn new(config: Config, group: Group, weights: &Weights) -> Result<Self, TrainError> {
        let world = group.world() as usize;
        let shards = weights::units(&config)
            .into_iter()
            .map(|unit| {
                let mut flat = Vec::with_capacity(padded(&unit, world));
                for (name, _) in &unit.tensors {
                    let missing = || ModelError::MissingTensor {
                        path: "the model".to_owned(),
                        name: name.clone(),
                    };
                    flat.extend_from_slice(&weights.get(name).ok_or_else(missing)?.values);
                }
                flat.resize(padded(&unit, world), 0.0);
                let part = flat.len() / world;
                let begin = part * group.rank() as usize;
                let values = Tensor::from_slice(&flat[begin..begin + part]);
                let (first_moment, second_moment) = (values.zeros_like(), values.zeros_like());
                Ok(Shard {
                    unit,
                    values,
                    first_moment,
                    second_moment,
                })
            })
            .collect::<Result<_, TrainError>>()?;
        let rope = Rope::new(&config, config.max_position_embeddings as i64, Kind::Float);
        Ok(Self {
            config,
            group,
            shards,
            updates: 0,
            head_logits: HEAD_LOGITS,
            rope,
        })
    }

    /// The unit's tensors, whole, on every rank.
    fn gather(&self, index: usize) -> Result<Vec<Tensor>, TrainError> {
        let whole = self.group.all_gather(&self.shards[index].values)?;
        Ok(split(&self.shards[index].unit, &whole))
    }

    /// All weights, whole. Every rank must call it.
    pub fn weights(&self) -> Result<Weights, TrainError> {
        let mut weights = Weights::new();
        for index in 0..self.shards.len() {
            for ((name, shape), tensor) in self.shards[index].unit.tensors.iter().zip(self.gather(index)?) {
                let values = Vec::<f32>::try_from(tensor.reshape([-1]))?;
                weights.insert(
                    name.clone(),
                    Array {
                        shape: shape.clone(),
                        values,
                    },
                );
            }
        }
        Ok(weights)
    }

    /// Gradients of the summed loss over this rank's micro-batches, reduced over ranks: one shard per unit. The loss function is called for
    /// every piece of every micro-batch, in order. Answers this rank's summed loss beside them.
    pub fn gradients(&self, batches: &[MicroBatch], loss: &mut LossFn<'_>) -> Result<(Vec<Tensor>, f64), TrainError> {
        let layers = self.shards.len() - 1;
        // Forward: inputs[layer][micro-batch], the last being the head's.
        let mut inputs: Vec<Vec<Tensor>> = Vec::with_capacity(layers + 1);
        let ends = self.gather(0)?;
        tch::no_grad(|| -> Result<(), TrainError> {
            inputs.push(batches.iter().map(|batch| model::embed(&ends[0], &batch.ids)).collect());
            for layer in 0..layers {
                let weights = self.gather(layer + 1)?;
                let next = inputs[layer]
                    .iter()
                    .map(|x| model::block(&self.config, &self.rope, &Block(&weights), x));
                let next = next.collect();
                inputs.push(next);
            }
            Ok(())
        })?;

        // Head: loss, and what flows back into the last block.
        let ends: Vec<Tensor> = ends
            .into_iter()
            .map(|tensor| tensor.detach().set_requires_grad(true))
            .collect();
        let mut total = 0.0;
        let mut flowing: Vec<Tensor> = Vec::with_capacity(batches.len());
        for (batch, x) in batches.iter().zip(inputs.pop().unwrap_or_default()) {
            let x = x.detach().set_requires_grad(true);
            let h = x.size()[2];
            for piece in batch.pieces((self.head_logits / self.config.vocab_size) as i64) {
                let chosen = x.reshape([-1, h]).index_select(0, &piece.positions);
                let logits = model::head(&self.config, &ends, &chosen);
                let (logprobs, entropies) = model::logprobs(&logits, &piece.targets, &piece.temperatures);
                let loss = loss(&piece, &logprobs, &entropies);
                total += loss.double_value(&[]);
                loss.backward();
            }
            flowing.push(grad_of(&x));
        }

        // Backward through the blocks, then the embedding.
        let mut gradients: Vec<Option<Tensor>> = (0..self.shards.len()).map(|_| None).collect();
        for layer in (0..layers).rev() {
            let weights = self.gather(layer + 1)?;
            let weights: Vec<Tensor> = weights
                .into_iter()
                .map(|t| t.detach().set_requires_grad(true))
                .collect();
            for (x, above) in inputs.pop().unwrap_or_default().iter().zip(flowing.iter_mut()) {
                let x = x.detach().set_requires_grad(true);
                let y = model::block(&self.config, &self.rope, &Block(&weights), &x);
                // The gradient of <y, g> for constant g is the vector-Jacobian product with g.
                (y * &*above).sum(Kind::Float).backward();
                *above = grad_of(&x);
            }
            gradients[layer + 1] = Some(self.reduce(layer + 1, &weights)?);
        }
        for (batch, above) in batches.iter().zip(&flowing) {
            (model::embed(&ends[0], &batch.ids) * above).sum(Kind::Float).backward();
        }
        gradients[0] = Some(self.reduce(0, &ends)?);
        Ok((gradients.into_iter().flatten().collect(), total))
    }

    /// This rank's part of the unit's gradient, summed over ranks.
    fn reduce(&self, index: usize, tensors: &[Tensor]) -> Result<Tensor, TrainError> {
        let shard = &self.shards[index];
        let mut parts: Vec<Tensor> = tensors.iter().map(|tensor| grad_of(tensor).reshape([-1])).collect();
        let padding = shard.values.numel() * self.group.world() as usize - shard.unit.numel();
        if padding > 0 {
            parts.push(Tensor::zeros([padding as i64], (Kind::Float, tch::Device::Cpu)));
        }
        Ok(self.group.reduce_scatter_sum(&Tensor::cat(&parts, 0).contiguous())?)
    }

    /// Norm of the whole gradient.
    pub fn norm(&self, gradients: &[Tensor]) -> Result<f64, TrainError> {
        let squares: f64 = gradients
            .iter()
            .map(|g| g.to_kind(Kind::Double).square().sum(Kind::Double).double_value(&[]))
            .sum();
        let mut sum = Tensor::from_slice(&[squares]);
        self.group.all_reduce_sum(&mut sum)?;
        Ok(sum.double_value(&[0]).sqrt())
    }

    /// One AdamW step; answers the norm of the gradient before clipping. A norm that is not finite changes nothing: one such step
    /// would be in every parameter and moment for good.
    pub fn update(&mut self, gradients: &[Tensor], rate: f64, adam: &AdamW) -> Result<f64, TrainError> {
        let norm = self.norm(gradients)?;
        if !norm.is_finite() {
            return Ok(norm);
        }
        let scale = if adam.clip > 0.0 && norm > adam.clip {
            adam.clip / (norm + 1e-6)
        } else {
            1.0
        };
        self.updates += 1;
        let corrections = adam.betas.map(|beta| 1.0 - beta.powi(self.updates.min(1 << 30) as i32));
        tch::no_grad(|| {
            for (shard, gradient) in self.shards.iter_mut().zip(gradients) {
                let g = gradient * scale;
                shard.first_moment = &shard.first_moment * adam.betas[0] + &g * (1.0 - adam.betas[0]);
                shard.second_moment = &shard.second_moment * adam.betas[1] + g.square() * (1.0 - adam.betas[1]);
                let direction = (&shard.first_moment / corrections[0])
                    / ((&shard.second_moment / corrections[1]).sqrt() + adam.epsilon);
                shard.values = &shard.values * (1.0 - rate * adam.weight_decay) - direction * rate;
            }
        });
        Ok(norm)
    }

    /// Sums numbers over the ranks.
    pub fn sum(&self, numbers: &[f64]) -> Result<Vec<f64>, TrainError> {
        let mut tensor = Tensor::from_slice(numbers);
        self.group.all_reduce_sum(&mut tensor)?;
        Ok(Vec::<f64>::try_from(tensor)?)
    }
}

/// Values of a unit after padding to a multiple of the world.
pub fn padded(unit: &Unit, world: usize) -> usize {
    unit.numel().div_ceil(world) * world
}

fn split(unit: &Unit, whole: &Tensor) -> Vec<Tensor> {
    let mut begin = 0;
    unit.tensors
        .iter()
        .map(|(_, shape)| {
            let shape: Vec<i64> = shape.iter().map(|n| *n as i64).collect();
            let numel: i64 = shape.iter().product();
            let tensor = whole.narrow(0, begin, numel).view(shape.as_slice());
            begin += numel;
            tensor
        })
        .collect()
}

/// The accumulated gradient, zero where nothing flowed (a rank without micro-batches).
fn grad_of(tensor: &Tensor) -> Tensor {
    let grad = tensor.grad();
    if grad.defined() { grad } else { tensor.zeros_like() }
}
