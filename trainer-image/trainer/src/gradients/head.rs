//! The unit of embedding, final norm and vocabulary head, with gradients computed without autograd.

use grpo_model::head::{self, Chunk};
use grpo_model::model;
use grpo_native::device::sent;
use tch::Tensor;

use super::vjp::{grad_of, summing, vjp};
use crate::error::TrainError;
use crate::loss_fn::{LossFn, LossOver, both_numbers};
use crate::micro_batch::MicroBatch;
use crate::sharded::Sharded;

/// Gradients of the unit of embedding, final norm and head. Autograd would write and read a dense gradient of the
/// vocabulary for every piece.
pub(super) struct EmbeddingAndHead {
    pub(super) tensors: Vec<Tensor>,
    /// Empty if an adapter is trained.
    pub(super) gradients: Vec<Tensor>,
    buffer: Tensor,
    /// Tokens of a piece.
    most: i64,
}

impl EmbeddingAndHead {
    fn head(&self) -> usize {
        if self.tensors.len() > 2 { 2 } else { 0 }
    }

    /// The embedding's part: `above` is the gradient of its output.
    fn embedded(&mut self, ids: &Tensor, above: &Tensor) {
        let h = above.size().last().copied().unwrap_or(1);
        tch::no_grad(|| {
            let above = above.reshape([-1, h]).to_kind(self.gradients[0].kind());
            let _ = self.gradients[0].index_add_(0, &ids.reshape([-1]), &above);
        });
    }
}

/// Scatters gradients `[n, h]` to the states of `x: [b, t, h]` at these flat places. A state at which rows branch
/// predicts the next token of each row: the gradients from all of them are summed in 32 bits at least, and rounded
/// once.
fn to_states(x: &Tensor, positions: &Tensor, gradients: &Tensor) -> Tensor {
    tch::no_grad(|| {
        let (size, sums) = (x.size(), summing(x.kind()));
        let h = size.last().copied().unwrap_or(1);
        let mut states = Tensor::zeros([x.numel() as i64 / h.max(1), h], (sums, x.device()));
        let _ = states.index_add_(0, positions, &gradients.to_kind(sums));
        states.to_kind(x.kind()).view(size.as_slice())
    })
}

impl Sharded {
    /// `most`: trained tokens whose logits exist at once.
    pub(super) fn embedding_and_head(&self, tensors: Vec<Tensor>, most: i64) -> EmbeddingAndHead {
        EmbeddingAndHead {
            gradients: tensors
                .iter()
                .filter(|_| self.frozen.is_empty())
                .map(|tensor| Tensor::zeros(tensor.size(), (summing(tensor.kind()), tensor.device())))
                .collect(),
            buffer: head::buffer(most, self.config.vocab_size as i64, &tensors[0]),
            tensors,
            most,
        }
    }

    /// With an adapter the embedding is not trained.
    pub(super) fn embedded(&self, embedding_and_head: &mut EmbeddingAndHead, ids: &Tensor, above: &Tensor) {
        if self.frozen.is_empty() {
            embedding_and_head.embedded(ids, above);
        }
    }

    /// Adds the micro-batch's loss to `total` and the gradients of head and final norm to `embedding_and_head`; returns
    /// the gradient of the last block's output `x: [b, t, h]`.
    pub(super) fn head(
        &self,
        batch: &MicroBatch,
        x: &Tensor,
        embedding_and_head: &mut EmbeddingAndHead,
        loss: &mut LossFn<'_>,
        total: &mut f64,
    ) -> Result<Tensor, TrainError> {
        let h = x.size().last().copied().unwrap_or(1);
        if batch.trained.is_empty() {
            return Ok(x.zeros_like());
        }
        let norm = embedding_and_head.tensors[1].detach().set_requires_grad(true);
        let chosen = x.detach().reshape([-1, h]).index_select(0, &batch.positions);
        let chosen = chosen.set_requires_grad(true);
        let normed = model::final_norm(&self.config, &norm, &chosen);
        let states = normed.detach();
        let (weight, at) = (
            embedding_and_head.tensors[embedding_and_head.head()].shallow_clone(),
            embedding_and_head.head(),
        );
        let forward = |piece: &MicroBatch, begin: i64, buffer: &Tensor| {
            let part = states.narrow(0, begin, piece.positions.size()[0]);
            Chunk::forward(&weight, &part, &piece.targets, &piece.temperatures, buffer)
        };

        // For each piece: the gradients of its logprobs and, if the loss uses them, of its entropies.
        let mut differentiate = |batch: &MicroBatch, logprobs: &Tensor, entropies: &Tensor| -> Result<_, TrainError> {
            let [of_logprobs, of_entropies] = both_numbers(logprobs, entropies)?;
            let gradient = loss(batch, &of_logprobs, &of_entropies);
            *total += gradient.loss;
            let back = |values: &[f64]| sent(&Tensor::from_slice(values).to_kind(logprobs.kind()), logprobs.device());
            let by_entropies = (!gradient.entropies.is_empty()).then(|| back(&gradient.entropies));
            Ok((back(&gradient.logprobs)?, by_entropies.transpose()?))
        };
        let pieces = batch.pieces(embedding_and_head.most);
        let mut backs: Vec<Tensor> = Vec::with_capacity(pieces.len());
        let whole = match self.loss_over == LossOver::Batches && pieces.len() > 1 {
            false => None,
            true => {
                let scores = pieces.iter().enumerate().map(|(i, piece)| {
                    let (_, logprobs, entropies) =
                        forward(piece, i as i64 * embedding_and_head.most, &embedding_and_head.buffer);
                    (logprobs, entropies)
                });
                let (logprobs, entropies): (Vec<Tensor>, Vec<Tensor>) = scores.unzip();
                Some(differentiate(
                    batch,
                    &Tensor::cat(&logprobs, 0),
                    &Tensor::cat(&entropies, 0),
                )?)
            }
        };
        for (i, piece) in pieces.iter().enumerate() {
            let begin = i as i64 * embedding_and_head.most;
            let (chunk, logprobs, entropies) = forward(piece, begin, &embedding_and_head.buffer);
            let (logprobs, entropies) = match &whole {
                None => differentiate(piece, &logprobs, &entropies)?,
                Some((logprobs, entropies)) => {
                    let part = |x: &Tensor| x.narrow(0, begin, piece.positions.size()[0]);
                    (part(logprobs), entropies.as_ref().map(part))
                }
            };
            let gradient = embedding_and_head.gradients.get_mut(at);
            backs.push(chunk.backward(&weight, &logprobs, entropies.as_ref(), gradient));
        }
        vjp(&normed, &Tensor::cat(&backs, 0));
        if let Some(gradient) = embedding_and_head.gradients.get_mut(1) {
            *gradient += grad_of(&norm).to_kind(summing(norm.kind()));
        }
        Ok(to_states(x, &batch.positions, &grad_of(&chosen)))
    }

    /// Trained tokens whose logits exist at once where there is no more memory for them.
    pub(crate) fn head_piece(&self) -> i64 {
        (self.head_logits / self.config.vocab_size.max(1)).max(1) as i64
    }
}

#[cfg(test)]
mod tests;
