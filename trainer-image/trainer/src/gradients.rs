//! Computes loss and gradients of a step's micro-batches by one of two schedules.
//!
//! **Streamed**, breadth first: for each block, gather its weights once, pass *all* micro-batches through, keep each
//! input, free the weights. Backward walks the blocks in reverse: gather again, recompute with graph, and
//! reduce-scatter the block's gradient once. So a step costs two gathers and one reduce-scatter per unit for any number
//! of micro-batches, and memory holds one unit's weights and the blocks' inputs. If these inputs exceed a budget, the
//! micro-batches pass in waves: each wave costs the same gathers again, and the gradients of waves are added. On a GPU
//! with memory to spare, attention's outputs are kept as well, and not computed again.
//!
//! ***Kept**, if the whole model and one micro-batch's activations fit a budget on every rank: every unit is gathered
//! once, and each micro-batch is differentiated as one graph, nothing computed twice. Both schedules do the same
//! operations on the same numbers.
//!
//! Both schedules compute the vocabulary head in chunks (see [`grpo_model::head`]). Both sum gradients over
//! micro-batches in fp32, for every precision of the blocks.

mod head;
mod room;
mod summed;
mod vjp;
mod waves;

use grpo_model::model::{self, Block, Pass};
use grpo_native::attention::Saving;
use tch::Tensor;

use self::head::EmbeddingAndHead;
use self::summed::Summed;
use self::vjp::{grad_of, summing, vjp};
use crate::error::TrainError;
use crate::gathering::Reducing;
use crate::loss_fn::LossFn;
use crate::micro_batch::MicroBatch;
use crate::sharded::Sharded;

impl Sharded {
    /// Gradients of the summed loss over this rank's micro-batches, reduced over ranks: one shard per unit, and this
    /// rank's summed loss. The loss function is called for every piece of every micro-batch, in order.
    pub fn gradients(&self, batches: &[MicroBatch], loss: &mut LossFn<'_>) -> Result<(Vec<Tensor>, f64), TrainError> {
        match self.keeps(batches)? {
            true => self.kept(batches, loss),
            false => self.streamed(batches, loss),
        }
    }

    fn kept(&self, batches: &[MicroBatch], loss: &mut LossFn<'_>) -> Result<(Vec<Tensor>, f64), TrainError> {
        // All are started at once, unless each first comes from the pod's memory.
        let ahead = if self.compute.kept_aside().parameters {
            1
        } else {
            usize::MAX
        };
        let mut coming = self.units_in(0..self.shards.len(), ahead)?;
        let piece = self.head_piece_of_kept(batches)?;
        let ends = coming.next()?.unwrap_or_default();
        let mut embedding_and_head = self.embedding_and_head(ends, piece);
        let mut units = Vec::new();
        let mut passes: Vec<Vec<Pass>> = self.shards[1..].iter().map(|_| Vec::new()).collect();
        let mut total = 0.0;
        for batch in batches {
            let below =
                tch::no_grad(|| model::embed(&embedding_and_head.tensors[0], &batch.ids)).set_requires_grad(true);
            let mut x = below.shallow_clone();
            let mut leaves: Vec<Vec<Tensor>> = Vec::with_capacity(passes.len());
            for (layer, passes) in passes.iter_mut().enumerate() {
                if units.len() == layer
                    && let Some(tensors) = coming.next()?
                {
                    units.push(Summed::of(tensors));
                }
                leaves.push(self.leaves(layer + 1, &units[layer].tensors));
                let weights = &leaves[layer];
                let mut pass = batch.pass(layer);
                x = model::block(
                    &self.config,
                    &self.rope,
                    &batch.layout,
                    Block { layer, weights },
                    &x,
                    &mut pass,
                );
                passes.push(pass);
            }
            let above = self.head(batch, &x, &mut embedding_and_head, loss, &mut total)?;
            vjp(&x, &above);
            drop(x);
            self.groups.sequence.check()?;
            for (unit, leaves) in units.iter_mut().zip(leaves) {
                unit.add(&leaves);
            }
            self.embedded(&mut embedding_and_head, &batch.ids, &grad_of(&below));
            batch.layout.forget_angles();
        }
        // A rank without micro-batches has used none yet.
        while let Some(tensors) = coming.next()? {
            units.push(Summed::of(tensors));
        }
        self.note_loads(&passes)?;
        let mut leaving = self.reduce(0, embedding_and_head.gradients)?;
        let mut gradients = Vec::with_capacity(self.shards.len());
        for (index, unit) in units.into_iter().enumerate() {
            let trained = unit.gradients(self.frozen_tensors(index + 1));
            let next = self.reduce(index + 1, trained)?;
            gradients.push(std::mem::replace(&mut leaving, next).wait()?);
        }
        gradients.push(leaving.wait()?);
        Ok((gradients, total))
    }

    fn streamed(&self, batches: &[MicroBatch], loss: &mut LossFn<'_>) -> Result<(Vec<Tensor>, f64), TrainError> {
        let waves = self.waves(batches)?;
        let (attended, piece) = self.plan_of(&waves)?;
        let mut embedding_and_head = self.embedding_and_head(self.gather(0)?, piece);
        let mut total = 0.0;
        let mut blocks: Vec<Tensor> = Vec::new();
        for (wave, attended) in waves.into_iter().zip(attended) {
            let gradients = self.wave(wave, attended, &mut embedding_and_head, loss, &mut total)?;
            match blocks.is_empty() {
                true => blocks = gradients,
                false => waves::add(&mut blocks, &gradients),
            }
        }
        let mut gradients = vec![self.reduce(0, embedding_and_head.gradients)?.wait()?];
        gradients.append(&mut blocks);
        Ok((gradients, total))
    }

    /// Gradients of the blocks over one wave; those of embedding and head are added to `embedding_and_head`.
    /// Attention's outputs are kept in `attended` layers.
    fn wave(
        &self,
        batches: &[MicroBatch],
        attended: usize,
        embedding_and_head: &mut EmbeddingAndHead,
        loss: &mut LossFn<'_>,
        total: &mut f64,
    ) -> Result<Vec<Tensor>, TrainError> {
        let layers = self.shards.len() - 1;
        let block = |layer: usize, weights: &[Tensor], batch: &MicroBatch, x: &Tensor, pass: &mut Pass| {
            let block = Block { layer, weights };
            model::block(&self.config, &self.rope, &batch.layout, block, x, pass)
        };
        // Attention's outputs are kept from here up: the backward pass, which begins there, frees them first.
        let attended_from = layers.saturating_sub(attended);
        // Forward: inputs[layer][micro-batch], the last being the head's.
        let mut inputs: Vec<Vec<Tensor>> = Vec::with_capacity(layers + 1);
        // [layer][micro-batch]: the recomputation takes the same experts and the saved attention.
        let mut passes: Vec<Vec<Pass>> = Vec::with_capacity(layers);
        tch::no_grad(|| -> Result<(), TrainError> {
            inputs.push(
                batches
                    .iter()
                    .map(|batch| model::embed(&embedding_and_head.tensors[0], &batch.ids))
                    .collect(),
            );
            let mut coming = self.units_in(1..=layers, 1)?;
            for layer in 0..layers {
                let weights = coming.next()?.unwrap_or_default();
                let mut own: Vec<Pass> = batches.iter().map(|batch| batch.pass(layer)).collect();
                if layer >= attended_from {
                    own.iter_mut().for_each(|pass| pass.attention = Saving::Next);
                }
                let all = batches.iter().zip(&inputs[layer]).zip(&mut own);
                let next = all.map(|((batch, x), pass)| block(layer, &weights, batch, x, pass));
                let next = next.collect();
                let done = std::mem::take(&mut inputs[layer]).into_iter();
                inputs[layer] = done
                    .map(|input| self.compute.put_aside(input))
                    .collect::<Result<_, _>>()?;
                inputs.push(next);
                passes.push(own);
                self.groups.sequence.check()?;
            }
            Ok(())
        })?;
        self.note_loads(&passes)?;

        let mut coming = self.units_in((1..=layers).rev(), 1)?;
        let mut flowing: Vec<Tensor> = Vec::with_capacity(batches.len());
        for (batch, x) in batches.iter().zip(inputs.pop().unwrap_or_default()) {
            flowing.push(self.head(batch, &x, embedding_and_head, loss, total)?);
        }

        // Backward through the blocks, then the embedding.
        let mut gradients: Vec<Tensor> = Vec::with_capacity(layers);
        let mut leaving: Option<Reducing<'_>> = None;
        // A layer's inputs are copied back while the layer above is computed.
        let mut taken = self.compute.start_taking_back(inputs.pop().unwrap_or_default())?;
        for layer in (0..layers).rev() {
            self.compute.wait_for_copies()?;
            // Before the copies of the layer below begin: a unit from the pod's memory waits for all earlier copies.
            let whole = coming.next()?.unwrap_or_default();
            let below = inputs.pop().unwrap_or_default();
            let own = std::mem::replace(&mut taken, self.compute.start_taking_back(below)?);
            let mut unit = Summed::of(whole);
            let own = own.into_iter().zip(passes.pop().unwrap_or_default());
            for ((batch, (x, mut pass)), above) in batches.iter().zip(own).zip(flowing.iter_mut()) {
                let x = x.detach().set_requires_grad(true);
                let weights = self.leaves(layer + 1, &unit.tensors);
                vjp(&block(layer, &weights, batch, &x, &mut pass), above);
                *above = grad_of(&x);
                unit.add(&weights);
            }
            self.groups.sequence.check()?;
            if let Some(last) = leaving.take() {
                gradients.push(last.wait()?);
            }
            let trained = unit.gradients(self.frozen_tensors(layer + 1));
            leaving = Some(self.reduce(layer + 1, trained)?);
        }
        for (batch, above) in batches.iter().zip(&flowing) {
            self.embedded(embedding_and_head, &batch.ids, above);
            // Those of all waves would be more than a wave's inputs where a model is shallow.
            batch.layout.forget_angles();
        }
        if let Some(last) = leaving {
            gradients.push(last.wait()?);
        }
        // They are in order from the last block to the first.
        gradients.reverse();
        Ok(gradients)
    }

    /// Sums the gradient of a unit's trained tensors over the ranks, and sends each rank its part.
    fn reduce(&self, index: usize, tensors: Vec<Tensor>) -> Result<Reducing<'_>, TrainError> {
        let shard = &self.shards[index];
        // An embedding's adapter is empty.
        if shard.unit.tensors.is_empty() {
            let nothing = shard.values.zeros_like().to_device(self.compute.device);
            return Ok(Reducing::nothing(self.shard_group(), nothing));
        }
        // Flattened first: one cast of the whole unit in place of one for each tensor.
        let mut parts: Vec<Tensor> = tensors.iter().map(|gradient| gradient.reshape([-1])).collect();
        let padding = shard.values.numel() * self.shard_group().world() as usize - shard.unit.numel();
        if padding > 0 {
            let like = &tensors[0];
            parts.push(Tensor::zeros([padding as i64], (like.kind(), like.device())));
        }
        let whole = Tensor::cat(&parts, 0);
        self.start_reduce(&whole.to_kind(summing(whole.kind())))
    }
}
