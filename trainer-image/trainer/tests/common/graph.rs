//! The reference for a step: the whole model as one graph, and the objective's scalar formulas on it.

use grpo_crds::algorithm::{Algorithm, Denominator, KlPlacement, OldLogprobs};
use grpo_model::layout::Layout;
use grpo_model::model::{self, Block, Pass};
use grpo_model::rotation::Rope;
use grpo_model::weights::{self, Weights};
use grpo_objective::advantage::{batch_advantages, shaped_advantages};
use grpo_objective::kl::shaped_reward;
use grpo_objective::{Sequence, Token, objective};
use grpo_records::batch::{Batch, Row};
use grpo_trainer::micro_batch::MicroBatch;
use tch::{Kind, Tensor};

use super::config;

/// The whole model in one graph.
pub struct Graph {
    pub leaves: Vec<Vec<Tensor>>,
    kind: Kind,
}

impl Graph {
    pub fn new(weights: &Weights) -> Self {
        Self::of(weights, Kind::Float)
    }

    /// In this precision.
    pub fn of(weights: &Weights, kind: Kind) -> Self {
        let leaf = |name: &String, shape: &Vec<usize>| {
            let shape: Vec<i64> = shape.iter().map(|n| *n as i64).collect();
            let values = Tensor::from_slice(&weights[name].values).to_kind(kind);
            let values = values.view(shape.as_slice()).copy();
            values.set_requires_grad(true)
        };
        let units = weights::units(&config());
        let leaves = units
            .iter()
            .map(|u| u.tensors.iter().map(|(name, shape)| leaf(name, shape)).collect());
        Self {
            leaves: leaves.collect(),
            kind,
        }
    }

    /// The hidden states of `ids: [1, t]`, `[t, h]`.
    fn hidden(&self, ids: &Tensor, layout: &Layout) -> Tensor {
        let rope = Rope::new(&config(), 64, self.kind);
        let mut x = model::embed(&self.leaves[0][0], ids);
        for (layer, weights) in self.leaves[1..].iter().enumerate() {
            let block = Block { layer, weights };
            x = model::block(&config(), &rope, layout, block, &x, &mut Pass::default());
        }
        x.squeeze_dim(0)
    }

    /// Logprobs of the trained tokens of a micro-batch, `[n]`, in their order.
    pub fn trained(&self, batch: &MicroBatch) -> Tensor {
        let x = self.hidden(&batch.ids, &batch.layout).index_select(0, &batch.positions);
        let logits = model::head(&config(), &self.leaves[0], &x);
        let logp = (logits / batch.temperatures.to_kind(self.kind).unsqueeze(-1)).log_softmax(-1, self.kind);
        logp.gather(-1, &batch.targets.unsqueeze(-1), false).squeeze_dim(-1)
    }

    /// Logprobs and entropies of tokens 1.., `[n - 1]` each.
    pub fn scores(&self, tokens: &[u32], temperature: f32) -> (Tensor, Tensor) {
        let ids: Vec<i64> = tokens.iter().map(|id| i64::from(*id)).collect();
        let (ids, n) = (Tensor::from_slice(&ids).unsqueeze(0), tokens.len() as i64);
        let x = self.hidden(&ids, &Layout::rows(1, n));
        let logits = model::head(&config(), &self.leaves[0], &x.narrow(0, 0, n - 1));
        let logp = (logits / f64::from(temperature)).log_softmax(-1, self.kind);
        let entropies = -(logp.exp() * &logp).sum_dim_intlist(-1, false, self.kind);
        let chosen = logp.gather(-1, &ids.get(0).narrow(0, 1, n - 1).unsqueeze(-1), false);
        (chosen.squeeze_dim(-1), entropies)
    }

    /// Logprob of every token of every row; 0 for the first.
    pub fn logprobs(&self, rows: &[Row]) -> Vec<Vec<f64>> {
        let one = |row: &Row| {
            let found = Vec::<f32>::try_from(self.scores(&row.tokens, row.temperature).0.detach()).unwrap();
            std::iter::once(0.0).chain(found.into_iter().map(f64::from)).collect()
        };
        rows.iter().map(one).collect()
    }

    /// Gradients of the weights, by unit.
    pub fn gradients(&self) -> Vec<Vec<f32>> {
        let rounded = |unit: Vec<f64>| unit.into_iter().map(|value| value as f32).collect();
        self.exact_gradients().into_iter().map(rounded).collect()
    }

    /// Gradients in the precision of the computation.
    pub fn exact_gradients(&self) -> Vec<Vec<f64>> {
        let flat = |tensor: &Tensor| Vec::<f64>::try_from(tensor.grad().reshape([-1]).to_kind(Kind::Double)).unwrap();
        let units = self.leaves.iter();
        units.map(|unit| unit.iter().flat_map(flat).collect()).collect()
    }
}

/// Weights before the batch, the base's, and the current ones.
pub struct At<'a> {
    pub start: &'a Weights,
    pub base: &'a Weights,
    pub now: &'a Weights,
}

/// A sequence with its name, and row and logprob of each of its tokens.
pub type Named = (String, Sequence, Vec<(usize, usize)>);

/// Gradient by unit, and loss, of the rows of a batch that `takes` selects, by the scalar objective. Advantages are
/// those of the whole batch.
pub fn expected(
    batch: &Batch,
    algorithm: &Algorithm,
    at: &At<'_>,
    takes: impl Fn(&Row) -> bool,
) -> (Vec<Vec<f32>>, f64) {
    let (start, base) = (
        Graph::new(at.start).logprobs(&batch.rows),
        Graph::new(at.base).logprobs(&batch.rows),
    );
    let advantages = match algorithm.kl.as_ref().filter(|kl| kl.placement == KlPlacement::Reward) {
        None => batch_advantages(batch, algorithm, 0).unwrap(),
        Some(kl) => {
            let reward = |row: &Row| {
                let own = batch
                    .rows
                    .iter()
                    .enumerate()
                    .filter(|(_, other)| other.episode == row.episode);
                let old = |number: usize, token: usize| match algorithm.old_logprobs {
                    OldLogprobs::Engine => f64::from(batch.rows[number].logprobs[token]),
                    OldLogprobs::Recompute => start[number][token],
                };
                let tokens = own.flat_map(|(number, row)| {
                    (0..row.tokens.len())
                        .filter(|i| row.mask[*i] == 1)
                        .map(move |i| (number, i))
                });
                let differences: Vec<f64> = tokens.map(|(number, i)| old(number, i) - base[number][i]).collect();
                shaped_reward(f64::from(row.reward), kl, differences.into_iter())
            };
            let rewards: Vec<f64> = batch.rows.iter().map(reward).collect();
            shaped_advantages(batch, &rewards, algorithm, 0).unwrap()
        }
    };
    let graph = Graph::new(at.now);
    let mut sequences: Vec<Named> = Vec::new();
    let mut scores = Vec::new();
    for (number, row) in batch.rows.iter().enumerate() {
        let (logprobs, entropies) = graph.scores(&row.tokens, row.temperature);
        let new = Vec::<f32>::try_from(logprobs.detach()).unwrap();
        let spread = Vec::<f32>::try_from(entropies.detach()).unwrap();
        scores.push((logprobs, entropies));
        if !takes(row) || advantages.masked[number] {
            continue;
        }
        let name = match algorithm.denominator {
            Denominator::Episode => row.episode.clone(),
            Denominator::Row => number.to_string(),
        };
        let place = sequences
            .iter()
            .position(|(other, ..)| *other == name)
            .unwrap_or_else(|| {
                let advantage = advantages.rows[number].unwrap();
                let sequence = Sequence {
                    advantage,
                    tokens: Vec::new(),
                };
                sequences.push((name, sequence, Vec::new()));
                sequences.len() - 1
            });
        for i in (1..row.tokens.len()).filter(|i| row.mask[*i] == 1) {
            sequences[place].2.push((number, i - 1));
            sequences[place].1.tokens.push(Token {
                new: f64::from(new[i - 1]),
                old: start[number][i],
                rollout: f64::from(row.logprobs[i]),
                reference: base[number][i],
                entropy: f64::from(spread[i - 1]),
            });
        }
    }
    let plain: Vec<Sequence> = sequences.iter().map(|(_, sequence, _)| sequence.clone()).collect();
    let found = objective(&plain, algorithm);
    let mut loss = Tensor::from(0.0f32);
    for (gradients, (_, _, places)) in found.gradient.iter().zip(&sequences) {
        for (gradient, (row, i)) in gradients.iter().zip(places) {
            let (logprobs, entropies) = &scores[*row];
            loss += logprobs.get(*i as i64) * gradient.logprob + entropies.get(*i as i64) * gradient.entropy;
        }
    }
    loss.backward();
    (graph.gradients(), found.loss)
}
