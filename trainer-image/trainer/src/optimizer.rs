//! The optimizer's step on a rank's shards.

use std::ops::Range;

use grpo_model::weights::Unit;
use grpo_native::optimizer::{AdamStep, adamw, square_sum};
use tch::Tensor;

use crate::error::TrainError;
use crate::loss_fn::numbers;
use crate::shard::Shard;
use crate::sharded::Sharded;

/// AdamW (arXiv 1711.05101), moments in fp32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    pub betas: [f64; 2],
    pub epsilon: f64,
    pub weight_decay: f64,
    /// Largest norm of the whole gradient; 0 does not clip.
    pub clip: f64,
}

/// Whether weight decay applies: only to matrices of linear layers. Zero is no simpler value for a norm's scale or a
/// bias, and decay would shrink the embedding's rows that no batch has used.
fn decays(name: &str, shape: &[usize]) -> bool {
    shape.len() > 1 && name != "model.embed_tokens.weight"
}

/// Runs of a unit's values in `part`, padding included, and whether they decay; one run if nothing decays.
fn runs(unit: &Unit, part: Range<usize>, any: bool) -> Vec<(Range<usize>, bool)> {
    let mut runs: Vec<(Range<usize>, bool)> = Vec::new();
    let mut end = 0;
    let tensors = unit.tensors.iter().filter(|_| any);
    for (name, shape) in tensors {
        let begin = end;
        end += shape.iter().product::<usize>();
        let (from, to, decays) = (begin.max(part.start), end.min(part.end), decays(name, shape));
        match runs.last_mut() {
            _ if from >= to => {}
            Some((last, same)) if *same == decays => last.end = to,
            _ => runs.push((from..to, decays)),
        }
    }
    let padding = runs.last().map_or(part.start, |(last, _)| last.end)..part.end;
    if !padding.is_empty() {
        runs.push((padding, false));
    }
    runs
}

impl Sharded {
    /// Norm of the whole gradient.
    pub fn norm(&self, gradients: &[Tensor]) -> Result<f64, TrainError> {
        let squares: Vec<Tensor> = gradients.iter().map(square_sum).collect::<Result<_, _>>()?;
        // One read from the device; the host adds the numbers in order.
        let squares: f64 = match squares.is_empty() {
            true => 0.0,
            false => numbers(&Tensor::cat(&squares, 0))?.iter().sum(),
        };
        let mut sum = Tensor::from_slice(&[squares]);
        self.shard_group().all_reduce_sum(&mut sum)?;
        Ok(sum.double_value(&[0]).sqrt())
    }

    /// Resets the optimizer's state and keeps the values.
    pub fn forget_moments(&mut self) {
        for shard in &mut self.shards {
            // In their place, which may be pinned.
            let _ = shard.first_moment.zero_();
            let _ = shard.second_moment.zero_();
        }
        self.updates = 0;
    }

    /// One AdamW step; returns the norm of the gradient before clipping. A norm that is not finite changes nothing: one
    /// such step would stay in every parameter and moment for good.
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
        let rank = self.shard_group().rank() as usize;
        let compute = self.compute.clone();
        // Offloaded state comes to the device for its step: the same kernel, so the same bits. One unit's state comes
        // and one's returns while another is computed.
        let prefetch = |shard: &Shard| -> Result<[Tensor; 3], TrainError> {
            let [values, first, second] =
                [&shard.values, &shard.first_moment, &shard.second_moment].map(|home| compute.start_prefetch(home));
            Ok([values?, first?, second?])
        };
        let mut coming = self.shards.first().map(&prefetch).transpose()?;
        for (index, gradient) in gradients.iter().enumerate().take(self.shards.len()) {
            let Some([values, first, second]) = coming.take() else {
                break;
            };
            compute.wait_for_copies()?;
            // The host does not run ahead: with more than three units on their way their state would fill the GPU.
            compute.finish_writing_back()?;
            coming = self.shards.get(index + 1).map(&prefetch).transpose()?;
            let shard = &mut self.shards[index];
            let scaled = (scale != 1.0).then(|| gradient * scale);
            let gradient = scaled.as_ref().unwrap_or(gradient);
            let part = values.numel();
            let begin = part * rank;
            for (run, decays) in runs(&shard.unit, begin..begin + part, adam.weight_decay != 0.0) {
                let of = |tensor: &Tensor| tensor.narrow(0, (run.start - begin) as i64, run.len() as i64);
                let step = AdamStep {
                    weight_decay: if decays { adam.weight_decay } else { 0.0 },
                    ..step
                };
                let moments = [&mut of(&first), &mut of(&second)];
                adamw(&mut of(&values), &of(gradient), moments, &step)?;
            }
            let homes = [&mut shard.values, &mut shard.first_moment, &mut shard.second_moment];
            for (home, now) in homes.into_iter().zip([values, first, second]) {
                compute.start_writing_back(&now, home)?;
            }
        }
        compute.finish_writing_back()?;
        Ok(norm)
    }
}

#[cfg(test)]
mod tests;
