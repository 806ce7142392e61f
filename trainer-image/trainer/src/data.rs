//! Rows on their way into the model: what is computed together, as tensors.
//!
//! [`crate::packing`] says which rows go together and where their tokens stand; a [`MicroBatch`] is that with the numbers the loss needs, one of
//! each for every trained token of every row.

use std::rc::Rc;

use grpo_policy::layout::Layout;
use tch::Tensor;

use crate::error::TrainError;
use crate::packing::Pack;

/// One row as the model sees it. Position i predicts `tokens[i + 1]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainRow {
    pub tokens: Vec<u32>,
    /// Weight of token i's loss, 0 where it is not trained on. Same length as `tokens`.
    pub weights: Vec<f32>,
    /// Logprob of token i when it was sampled.
    pub old: Vec<f32>,
    pub advantage: f32,
    pub temperature: f32,
}

/// Rows computed together.
pub struct MicroBatch {
    /// `[b, t]` int64: padded rows, or one packed tree.
    pub ids: Tensor,
    /// Where those tokens stand, and what they see.
    pub layout: Rc<Layout>,
    /// `[n]`, as all below: flat places in `[b * t]` of the hidden states that predict trained tokens.
    pub positions: Tensor,
    /// Rows of the trained tokens, as the step counts its rows; a row's tokens are one behind the other.
    pub rows: Tensor,
    pub targets: Tensor,
    pub weights: Tensor,
    pub old: Tensor,
    pub advantages: Tensor,
    pub temperatures: Tensor,
}

/// What the loss needs to know of trained tokens, `[n]` each.
#[derive(Default)]
struct Trained {
    positions: Vec<i64>,
    rows: Vec<i64>,
    targets: Vec<i64>,
    weights: Vec<f32>,
    old: Vec<f32>,
    advantages: Vec<f32>,
    temperatures: Vec<f32>,
}

impl Trained {
    /// `place`: of the hidden state that predicts `row`'s `token`.
    fn push(&mut self, place: usize, number: usize, row: &TrainRow, token: usize) {
        self.positions.push(place as i64);
        self.rows.push(number as i64);
        self.targets.push(i64::from(row.tokens[token]));
        self.weights.push(row.weights[token]);
        self.old.push(row.old.get(token).copied().unwrap_or(0.0));
        self.advantages.push(row.advantage);
        self.temperatures.push(row.temperature);
    }

    fn batch(self, ids: Tensor, layout: Layout) -> MicroBatch {
        MicroBatch {
            ids,
            layout: Rc::new(layout),
            positions: Tensor::from_slice(&self.positions),
            rows: Tensor::from_slice(&self.rows),
            targets: Tensor::from_slice(&self.targets),
            weights: Tensor::from_slice(&self.weights),
            old: Tensor::from_slice(&self.old),
            advantages: Tensor::from_slice(&self.advantages),
            temperatures: Tensor::from_slice(&self.temperatures),
        }
    }
}

impl MicroBatch {
    /// The same rows with their trained tokens in pieces of at most `most`.
    pub fn pieces(&self, most: i64) -> Vec<Self> {
        let n = self.positions.size1().unwrap_or(0);
        let most = most.max(1);
        (0..n.max(1))
            .step_by(most as usize)
            .map(|begin| {
                let part = |tensor: &Tensor| tensor.narrow(0, begin, most.min(n - begin));
                Self {
                    ids: self.ids.shallow_clone(),
                    layout: self.layout.clone(),
                    positions: part(&self.positions),
                    rows: part(&self.rows),
                    targets: part(&self.targets),
                    weights: part(&self.weights),
                    old: part(&self.old),
                    advantages: part(&self.advantages),
                    temperatures: part(&self.temperatures),
                }
            })
            .collect()
    }

    /// Tokens that the model computes.
    pub fn tokens(&self) -> usize {
        self.ids.numel()
    }

    /// A packed tree of some of `rows`.
    pub fn packed(pack: &Pack, rows: &[TrainRow]) -> Result<Self, TrainError> {
        let ids: Vec<i64> = pack.tokens.iter().map(|token| i64::from(*token)).collect();
        let layout = Layout::tree(&pack.positions, pack.pieces.clone())?;
        let mut trained = Trained::default();
        for entry in &pack.entries {
            trained.push(entry.at, entry.row, &rows[entry.row], entry.token);
        }
        Ok(trained.batch(Tensor::from_slice(&ids).unsqueeze(0), layout))
    }

    /// Rows padded on the right, nothing shared: what packing is held against.
    pub fn padded(rows: &[TrainRow]) -> Self {
        let t = rows.iter().map(|row| row.tokens.len()).max().unwrap_or(1).max(1);
        let mut ids = vec![0i64; rows.len() * t];
        let mut trained = Trained::default();
        for (b, row) in rows.iter().enumerate() {
            for (i, token) in row.tokens.iter().enumerate() {
                ids[b * t + i] = i64::from(*token);
                if i > 0 && row.weights[i] != 0.0 {
                    trained.push(b * t + i - 1, b, row, i);
                }
            }
        }
        let size = [rows.len() as i64, t as i64];
        trained.batch(Tensor::from_slice(&ids).view(size), Layout::rows(size[0], size[1]))
    }
}
