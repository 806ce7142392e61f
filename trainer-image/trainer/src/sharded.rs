//! Fully sharded training without autograd hooks: what a rank holds, and the optimizer's step.
//!
//! Parameters live in units (embedding with head and final norm; one unit per block). A rank keeps an equal flat fp32 shard of every unit, and AdamW's two
//! moments of it. [`crate::gradients`] streams the units through the model.

use grpo_native::Group;
use grpo_native::optimizer::{AdamStep, adamw};
use grpo_policy::model::Rope;
use grpo_policy::weights::{self, Array, Unit, Weights};
use grpo_policy::{Config, ModelError};
use tch::{Kind, Tensor};

use crate::error::TrainError;
pub use crate::gradients::{LossFn, LossOver};

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
    /// Largest estimate of [`Sharded::kept_bytes`] at which activations are kept; above, blocks are computed again in backward.
    pub activation_bytes: usize,
    /// What one call of the loss function is given.
    pub loss_over: LossOver,
    pub(crate) rope: Rope,
}

/// 64 MiB of fp32.
const HEAD_LOGITS: usize = 1 << 24;

const ACTIVATION_BYTES: usize = 2 << 30;

/// Elements whose squares are summed in one go.
const NORM_PIECE: i64 = 1 << 18;

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
            activation_bytes: ACTIVATION_BYTES,
            loss_over: LossOver::default(),
            rope,
        })
    }

    /// The unit's tensors, whole, on every rank.
    pub(crate) fn gather(&self, index: usize) -> Result<Vec<Tensor>, TrainError> {
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

    /// Norm of the whole gradient.
    pub fn norm(&self, gradients: &[Tensor]) -> Result<f64, TrainError> {
        // In pieces: a whole unit in double precision would be twice the unit.
        let square = |part: &Tensor| part.to_kind(Kind::Double).square().sum(Kind::Double).double_value(&[]);
        let squares: f64 = gradients
            .iter()
            .flat_map(|g| g.split(NORM_PIECE, 0))
            .map(|part| square(&part))
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
        let step = AdamStep {
            steps: self.updates,
            rate,
            betas: adam.betas,
            weight_decay: adam.weight_decay,
            epsilon: adam.epsilon,
        };
        for (shard, gradient) in self.shards.iter_mut().zip(gradients) {
            let scaled = (scale != 1.0).then(|| gradient * scale);
            let moments = [&mut shard.first_moment, &mut shard.second_moment];
            adamw(&mut shard.values, scaled.as_ref().unwrap_or(gradient), moments, &step)?;
        }
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
