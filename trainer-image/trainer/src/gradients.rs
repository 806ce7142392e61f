//! Loss and gradients of a step's micro-batches, by one of two schedules.
//!
//! **Streamed**, breadth first: for each block, gather its weights once, pass *all* micro-batches through, keep each
//! input, free the weights. Backward walks the blocks in reverse: gather again, recompute with graph, and
//! reduce-scatter the block's gradient once. So a step costs two gathers and one reduce-scatter per unit however many
//! micro-batches there are, and memory holds one unit's weights and the blocks' inputs.
//!
//! **Kept**, where the whole model and one micro-batch's activations fit a budget on every rank: every unit is gathered
//! once, and each micro-batch is differentiated as one graph, nothing computed twice. Both schedules do the same
//! operations on the same numbers.
//!
//! The vocabulary head is computed in chunks (see [`grpo_model::head`]) by both. Gradients are summed over
//! micro-batches in fp32 by both, whatever a block is computed in.

use grpo_model::head::{self, Chunk};
use grpo_model::model::{self, Block};
use tch::{Kind, Tensor};

use crate::data::MicroBatch;
use crate::error::TrainError;
use crate::gathering::{Gathering, Reducing};
use crate::memory::Load;
use crate::sharded::Sharded;

/// A summed loss, and its derivatives by what the model says of each trained token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LossGrad {
    pub loss: f64,
    /// By the logprobs, `[n]`.
    pub logprobs: Vec<f64>,
    /// By the entropies, `[n]`; empty where the loss does not look at them.
    pub entropies: Vec<f64>,
}

impl LossGrad {
    /// The sum of logprobs by these weights.
    pub fn weighted(weights: Vec<f64>, logprobs: &[f64]) -> Self {
        Self {
            loss: weights
                .iter()
                .zip(logprobs)
                .map(|(weight, logprob)| weight * logprob)
                .sum(),
            logprobs: weights,
            entropies: Vec::new(),
        }
    }
}

/// What the loss of some of a micro-batch's trained tokens is: takes their logprobs and entropies, `[n]` each and in
/// the order of
/// [`MicroBatch::trained`]. It is computed outside of the graph, in double precision, by the objective's own words.
pub type LossFn<'a> = dyn FnMut(&MicroBatch, &[f64], &[f64]) -> LossGrad + 'a;

/// Is told logprobs and entropies, `[n]` each, of some of a micro-batch's trained tokens; the micro-batch's number
/// comes first.
pub type NoteFn<'a> = dyn FnMut(usize, &MicroBatch, &[f64], &[f64]) + 'a;

/// Who is asked for logprobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// What is trained.
    Policy,
    /// What training began with: the frozen model beside an adapter, or what [`Sharded::hold_base`] has kept.
    Base,
}

/// What one call of a loss function is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LossOver {
    /// A piece of a micro-batch: the loss is a sum over tokens. Logits are computed once.
    #[default]
    Tokens,
    /// A whole micro-batch: the loss looks at a row's tokens together. Logits are computed a second time for the
    /// gradient, where they are more than one piece.
    Batches,
}

/// Gradients of the unit of embedding, final norm and head, which are not left to autograd: a dense gradient of the
/// vocabulary per piece would be written and read again each time.
struct EmbeddingAndHead {
    tensors: Vec<Tensor>,
    /// None where an adapter is trained beside them.
    gradients: Vec<Tensor>,
    buffer: Tensor,
    /// Tokens of a piece.
    most: i64,
}

impl EmbeddingAndHead {
    fn head(&self) -> usize {
        if self.tensors.len() > 2 { 2 } else { 0 }
    }

    /// The embedding's part: `above` is what flows into its output.
    fn embedded(&mut self, ids: &Tensor, above: &Tensor) {
        let h = above.size().last().copied().unwrap_or(1);
        tch::no_grad(|| {
            let above = above.reshape([-1, h]).to_kind(self.gradients[0].kind());
            let _ = self.gradients[0].index_add_(0, &ids.reshape([-1]), &above);
        });
    }
}

/// A gathered unit, and its gradient so far.
struct Summed {
    tensors: Vec<Tensor>,
    /// Of each tensor that something has flowed into, in the kind of [`summing`].
    sums: Vec<Option<Tensor>>,
}

impl Summed {
    fn of(tensors: Vec<Tensor>) -> Self {
        let sums = tensors.iter().map(|_| None).collect();
        Self { tensors, sums }
    }

    /// Adds what has flowed into `leaves`, which are the tensors as one micro-batch has used them.
    fn add(&mut self, leaves: &[Tensor]) {
        tch::no_grad(|| {
            for (sum, leaf) in self.sums.iter_mut().zip(leaves) {
                let gradient = leaf.grad();
                if !gradient.defined() {
                    continue;
                }
                match sum {
                    Some(sum) => *sum += gradient,
                    None => *sum = Some(gradient.to_kind(summing(gradient.kind()))),
                }
            }
        });
    }

    /// Of the tensors behind the frozen ones. Zero where nothing flowed (a rank without micro-batches, an expert
    /// without tokens).
    fn gradients(self, frozen: usize) -> Vec<Tensor> {
        let zero = |tensor: &Tensor| Tensor::zeros(tensor.size(), (summing(tensor.kind()), tensor.device()));
        let each = self.sums.into_iter().zip(&self.tensors).skip(frozen);
        each.map(|(sum, tensor)| sum.unwrap_or_else(|| zero(tensor))).collect()
    }
}

impl Sharded {
    /// Gradients of the summed loss over this rank's micro-batches, reduced over ranks: one shard per unit. The loss
    /// function is called for every piece of every micro-batch, in order. Answers this rank's summed loss beside them.
    pub fn gradients(&self, batches: &[MicroBatch], loss: &mut LossFn<'_>) -> Result<(Vec<Tensor>, f64), TrainError> {
        // All ranks gather alike, so one that cannot keep what it computes decides for all.
        let over = f64::from(u8::from(self.kept_bytes(batches) > self.activation_bytes));
        if self.sum(&[over])?[0] > 0.0 {
            self.streamed(batches, loss)
        } else {
            self.kept(batches, loss)
        }
    }

    /// Estimate of what the kept schedule holds of these micro-batches beyond the state that is held anyway: see
    /// [`crate::memory::Facts::kept_bytes`].
    pub fn kept_bytes(&self, batches: &[MicroBatch]) -> usize {
        let count = |n: usize| n as u64;
        let load = Load {
            tokens: batches.iter().map(|batch| count(batch.tokens())).collect(),
            trained: batches
                .iter()
                .map(|batch| count(batch.trained.len()))
                .max()
                .unwrap_or(0),
        };
        self.facts().kept_bytes(&load) as usize
    }

    fn embedding_and_head(&self, tensors: Vec<Tensor>) -> EmbeddingAndHead {
        let most = self.head_piece();
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

    /// Beside an adapter the embedding is not trained.
    fn embedded(&self, embedding_and_head: &mut EmbeddingAndHead, ids: &Tensor, above: &Tensor) {
        if self.frozen.is_empty() {
            embedding_and_head.embedded(ids, above);
        }
    }

    fn kept(&self, batches: &[MicroBatch], loss: &mut LossFn<'_>) -> Result<(Vec<Tensor>, f64), TrainError> {
        // All on their way at once: each is waited for where it is first needed.
        let coming = (0..self.shards.len()).map(|index| self.start_gather(index));
        let mut coming = coming.collect::<Result<Vec<_>, _>>()?.into_iter().enumerate();
        let mut next = || -> Result<Option<(usize, Vec<Tensor>)>, TrainError> {
            let unit = coming.next().map(|(index, unit)| Ok((index, unit.wait()?)));
            unit.transpose()
        };
        let mut embedding_and_head = self.embedding_and_head(next()?.map(|(_, tensors)| tensors).unwrap_or_default());
        let mut units = Vec::new();
        let mut routes: Vec<Vec<Option<Tensor>>> = self.shards[1..].iter().map(|_| Vec::new()).collect();
        let mut total = 0.0;
        for batch in batches {
            let below =
                tch::no_grad(|| model::embed(&embedding_and_head.tensors[0], &batch.ids)).set_requires_grad(true);
            let mut x = below.shallow_clone();
            let mut leaves: Vec<Vec<Tensor>> = Vec::with_capacity(routes.len());
            for (layer, routes) in routes.iter_mut().enumerate() {
                if units.len() == layer
                    && let Some((_, tensors)) = next()?
                {
                    units.push(Summed::of(tensors));
                }
                leaves.push(self.leaves(layer + 1, &units[layer].tensors));
                let weights = &leaves[layer];
                let mut experts = batch.experts_of(layer);
                x = model::block(
                    &self.config,
                    &self.rope,
                    &batch.layout,
                    Block { layer, weights },
                    &x,
                    &mut experts,
                );
                routes.push(experts);
            }
            let above = self.head(batch, &x, &mut embedding_and_head, loss, &mut total)?;
            vjp(&x, &above);
            drop(x);
            self.groups.sequence.check()?;
            for (unit, leaves) in units.iter_mut().zip(leaves) {
                unit.add(&leaves);
            }
            self.embedded(&mut embedding_and_head, &batch.ids, &grad_of(&below));
        }
        // A rank without micro-batches has needed none.
        while let Some((_, tensors)) = next()? {
            units.push(Summed::of(tensors));
        }
        self.note_loads(&routes);
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
        let layers = self.shards.len() - 1;
        let block = |layer: usize, weights: &[Tensor], batch: &MicroBatch, x: &Tensor, experts: &mut Option<Tensor>| {
            let block = Block { layer, weights };
            model::block(&self.config, &self.rope, &batch.layout, block, x, experts)
        };
        // Forward: inputs[layer][micro-batch], the last being the head's.
        let mut inputs: Vec<Vec<Tensor>> = Vec::with_capacity(layers + 1);
        // Experts of every token, [layer][micro-batch]: what is recomputed goes the same way.
        let mut routes: Vec<Vec<Option<Tensor>>> = Vec::with_capacity(layers);
        let mut embedding_and_head = self.embedding_and_head(self.gather(0)?);
        tch::no_grad(|| -> Result<(), TrainError> {
            inputs.push(
                batches
                    .iter()
                    .map(|batch| model::embed(&embedding_and_head.tensors[0], &batch.ids))
                    .collect(),
            );
            let mut coming = Some(self.start_gather(layers.min(1))?);
            for layer in 0..layers {
                let weights = coming.take().map_or_else(|| self.gather(layer + 1), Gathering::wait)?;
                if layer + 1 < layers {
                    coming = Some(self.start_gather(layer + 2)?);
                }
                let mut chosen: Vec<Option<Tensor>> = batches.iter().map(|batch| batch.experts_of(layer)).collect();
                let all = batches.iter().zip(&inputs[layer]).zip(&mut chosen);
                let next = all.map(|((batch, x), experts)| block(layer, &weights, batch, x, experts));
                let next = next.collect();
                let done = std::mem::take(&mut inputs[layer]).into_iter();
                inputs[layer] = done
                    .map(|input| self.compute.put_aside(input))
                    .collect::<Result<_, _>>()?;
                inputs.push(next);
                routes.push(chosen);
                self.groups.sequence.check()?;
            }
            Ok(())
        })?;
        self.note_loads(&routes);

        let mut coming = Some(self.start_gather(layers)?);
        let mut total = 0.0;
        let mut flowing: Vec<Tensor> = Vec::with_capacity(batches.len());
        for (batch, x) in batches.iter().zip(inputs.pop().unwrap_or_default()) {
            flowing.push(self.head(batch, &x, &mut embedding_and_head, loss, &mut total)?);
        }

        // Backward through the blocks, then the embedding.
        let mut gradients: Vec<Tensor> = Vec::with_capacity(self.shards.len());
        let mut leaving: Option<Reducing<'_>> = None;
        for layer in (0..layers).rev() {
            let whole = coming.take().map_or_else(|| self.gather(layer + 1), Gathering::wait)?;
            if layer > 0 {
                coming = Some(self.start_gather(layer)?);
            }
            let mut unit = Summed::of(whole);
            let mut chosen = routes.pop().unwrap_or_default();
            let layer_inputs = inputs.pop().unwrap_or_default().into_iter().zip(&mut chosen);
            for ((batch, (x, experts)), above) in batches.iter().zip(layer_inputs).zip(flowing.iter_mut()) {
                let x = self.compute.take_back(&x).detach().set_requires_grad(true);
                let weights = self.leaves(layer + 1, &unit.tensors);
                vjp(&block(layer, &weights, batch, &x, experts), above);
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
            self.embedded(&mut embedding_and_head, &batch.ids, above);
        }
        let last = self.reduce(0, embedding_and_head.gradients)?;
        for unit in leaving.into_iter().chain([last]) {
            gradients.push(unit.wait()?);
        }
        // They came from the last unit to the first.
        gradients.reverse();
        Ok((gradients, total))
    }

    /// Adds the micro-batch's loss to `total` and what it says of head and final norm to `embedding_and_head`; answers what flows
    /// into the last block's output `x: [b, t, h]`.
    fn head(
        &self,
        batch: &MicroBatch,
        x: &Tensor,
        embedding_and_head: &mut EmbeddingAndHead,
        loss: &mut LossFn<'_>,
        total: &mut f64,
    ) -> Result<Tensor, TrainError> {
        let h = x.size().last().copied().unwrap_or(1);
        let x = x.detach().set_requires_grad(true);
        if batch.trained.is_empty() {
            return Ok(x.zeros_like());
        }
        let norm = embedding_and_head.tensors[1].detach().set_requires_grad(true);
        let chosen = x.reshape([-1, h]).index_select(0, &batch.positions);
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

        // Of each piece: the gradients of its logprobs and, where the loss looks at them, entropies.
        let mut differentiate = |batch: &MicroBatch, logprobs: &Tensor, entropies: &Tensor| -> Result<_, TrainError> {
            let gradient = loss(batch, &numbers(logprobs)?, &numbers(entropies)?);
            *total += gradient.loss;
            let back = |values: &[f64]| {
                Tensor::from_slice(values)
                    .to_kind(logprobs.kind())
                    .to_device(logprobs.device())
            };
            let by_entropies = (!gradient.entropies.is_empty()).then(|| back(&gradient.entropies));
            Ok((back(&gradient.logprobs), by_entropies))
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
        Ok(grad_of(&x))
    }

    /// Logprobs and entropies of this rank's trained tokens without gradients, each block gathered once: `note` is
    /// called for every piece of every micro-batch, in order. Every rank must call it.
    pub fn observe(&self, model: Model, batches: &[&MicroBatch], note: &mut NoteFn<'_>) -> Result<(), TrainError> {
        let _guard = tch::no_grad_guard();
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
                let mut experts = match model {
                    Model::Policy => batch.experts_of(layer),
                    Model::Base => None,
                };
                *x = model::block(&config, &self.rope, &batch.layout, block, x, &mut experts);
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
                note(at, piece, &numbers(&logprobs)?, &numbers(&entropies)?);
            }
        }
        Ok(())
    }

    /// Trained tokens whose logits exist at once.
    fn head_piece(&self) -> i64 {
        (self.head_logits / self.config.vocab_size.max(1)).max(1) as i64
    }

    /// Sends the gradient of what is trained in a unit to where its parts are, summed over ranks.
    fn reduce(&self, index: usize, tensors: Vec<Tensor>) -> Result<Reducing<'_>, TrainError> {
        let shard = &self.shards[index];
        // An embedding's adapter is empty.
        if shard.unit.tensors.is_empty() {
            let nothing = shard.values.zeros_like().to_device(self.compute.device);
            return Ok(Reducing::nothing(self.shard_group(), nothing));
        }
        let mut parts: Vec<Tensor> = tensors.iter().map(|gradient| gradient.reshape([-1])).collect();
        let padding = shard.values.numel() * self.shard_group().world() as usize - shard.unit.numel();
        if padding > 0 {
            let like = &tensors[0];
            parts.push(Tensor::zeros([padding as i64], (like.kind(), like.device())));
        }
        self.start_reduce(&Tensor::cat(&parts, 0))
    }
}

/// What gradients of such numbers are summed in: 32 bits at least.
fn summing(kind: Kind) -> Kind {
    match kind {
        Kind::BFloat16 => Kind::Float,
        kind => kind,
    }
}

/// As the objective takes them.
fn numbers(tensor: &Tensor) -> Result<Vec<f64>, TrainError> {
    Ok(Vec::<f64>::try_from(
        tensor.to_kind(Kind::Double).to_device(tch::Device::Cpu),
    )?)
}

/// Vector-Jacobian product: runs backward through `y` with the gradient `above`, as the gradient of <y, above>.
fn vjp(y: &Tensor, above: &Tensor) {
    (y * above).sum(Kind::Float).backward();
}

/// The gradient, zero where nothing flowed.
fn grad_of(tensor: &Tensor) -> Tensor {
    let grad = tensor.grad();
    if grad.defined() { grad } else { tensor.zeros_like() }
}
