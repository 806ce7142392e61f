//! Waves: micro-batches that pass through the blocks together, so that the kept inputs fit a budget.

use std::borrow::Borrow;

use tch::Tensor;

use crate::error::TrainError;
use crate::micro_batch::MicroBatch;
use crate::sharded::Sharded;

impl Sharded {
    /// Bytes of the inputs of the blocks and of the head for these micro-batches.
    pub fn input_bytes_of<B: Borrow<MicroBatch>>(&self, batches: &[B]) -> usize {
        let tokens: usize = batches.iter().map(|batch| batch.borrow().tokens()).sum();
        tokens * self.config.hidden_size * self.shards.len() * self.kind().elt_size_in_bytes()
    }

    /// This rank's micro-batches in order, in waves of one micro-batch or of several that fit [`Sharded::input_bytes`].
    /// Every rank has the same number of waves, because all ranks gather and reduce the units of each wave; some waves
    /// may be empty. Ranks that share sequences have micro-batches of the same sizes, and so the same waves.
    pub(crate) fn waves<'a, B: Borrow<MicroBatch>>(&self, batches: &'a [B]) -> Result<Vec<&'a [B]>, TrainError> {
        let fits = |wave: &[B]| wave.len() == 1 || self.input_bytes_of(wave) <= self.input_bytes;
        let count = batches.len();
        let length = (1..=count).rev().find(|length| batches.chunks(*length).all(fits));
        let own = length.map_or(1, |length| count.div_ceil(length));
        let mut of_ranks = vec![0.0; self.group.world() as usize];
        of_ranks[self.group.rank() as usize] = own as f64;
        let most = self.sum(&of_ranks)?.into_iter().fold(1.0, f64::max) as usize;
        let length = count.div_ceil(most);
        let part = |wave: usize| &batches[count.min(wave * length)..count.min((wave + 1) * length)];
        Ok((0..most).map(part).collect())
    }
}

/// Adds a wave's gradients to those of the waves before it.
pub(super) fn add(sums: &mut [Tensor], gradients: &[Tensor]) {
    tch::no_grad(|| {
        for (sum, gradient) in sums.iter_mut().zip(gradients) {
            let _ = sum.g_add_(gradient);
        }
    });
}
