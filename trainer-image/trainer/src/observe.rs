//! Logprobs and entropies without gradients: of the policy, and of the model that training began with.

use grpo_model::head::{self, Chunk};
use grpo_model::model::{self, Block, Pass};
use tch::Tensor;

use crate::error::TrainError;
use crate::loss_fn::{Model, NoteFn, both_numbers};
use crate::micro_batch::MicroBatch;
use crate::sharded::Sharded;

impl Sharded {
    /// Logprobs and entropies of this rank's trained tokens without gradients: calls `note` for every piece of every
    /// micro-batch, in order. Micro-batches pass in the same waves as for gradients, and each block is gathered once
    /// per wave, so hidden states of one wave at most are held. Every rank must call it.
    pub fn observe(&self, model: Model, batches: &[&MicroBatch], note: &mut NoteFn<'_>) -> Result<(), TrainError> {
        let _guard = tch::no_grad_guard();
        let mut first = 0;
        for wave in self.waves(batches)? {
            self.observe_wave(model, wave, &mut |at, piece, logprobs, entropies| {
                note(first + at, piece, logprobs, entropies);
            })?;
            first += wave.len();
        }
        Ok(())
    }

    fn observe_wave(&self, model: Model, batches: &[&MicroBatch], note: &mut NoteFn<'_>) -> Result<(), TrainError> {
        let config = match model {
            Model::Policy => self.config.clone(),
            Model::Base => self.config.without_lora(),
        };
        let gather = |index: usize| match model {
            Model::Policy => self.gather(index),
            Model::Base => self.gather_base(index),
        };
        let embedding_and_head = gather(0)?;
        let mut states: Vec<Tensor> = batches
            .iter()
            .map(|batch| model::embed(&embedding_and_head[0], &batch.ids))
            .collect();
        for layer in 0..self.shards.len() - 1 {
            let gathered = gather(layer + 1)?;
            let block = Block {
                layer,
                weights: &gathered,
            };
            for (batch, x) in batches.iter().zip(states.iter_mut()) {
                let mut pass = match model {
                    Model::Policy => batch.pass(layer),
                    Model::Base => Pass::default(),
                };
                *x = model::block(&config, &self.rope, &batch.layout, block, x, &mut pass);
            }
            self.groups.sequence.check()?;
        }
        let head = &embedding_and_head[if embedding_and_head.len() > 2 { 2 } else { 0 }];
        let most = self.head_piece();
        let buffer = head::buffer(most, config.vocab_size as i64, head);
        for (at, (batch, x)) in batches.iter().zip(states).enumerate() {
            let h = x.size().last().copied().unwrap_or(1);
            for piece in batch.pieces(most).iter().filter(|piece| !piece.trained.is_empty()) {
                let chosen = x.reshape([-1, h]).index_select(0, &piece.positions);
                let normed = model::final_norm(&config, &embedding_and_head[1], &chosen);
                let (_, logprobs, entropies) =
                    Chunk::forward(head, &normed, &piece.targets, &piece.temperatures, &buffer);
                let [logprobs, entropies] = both_numbers(&logprobs, &entropies)?;
                note(at, piece, &logprobs, &entropies);
            }
            batch.layout.forget_angles();
        }
        Ok(())
    }
}
