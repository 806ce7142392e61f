//! Micro-batches: rows that pass through the model together, as tensors.
//!
//! [`crate::packing`] decides which rows go together and places their tokens; a [`MicroBatch`] is a pack as tensors.
//! The objective's data on a row's tokens stay in the [`TrainRow`]: a micro-batch maps each of its logprobs to a row
//! and token.

use std::rc::Rc;

use grpo_model::layout::Layout;
use grpo_model::model::Pass;
use grpo_native::Exchange;
use grpo_native::attention::Piece;
use grpo_native::device::sent;
use tch::{Kind, Tensor};

use crate::error::TrainError;
use crate::packing::Pack;
use crate::train_row::TrainRow;

/// Rows computed together.
pub struct MicroBatch {
    /// `[b, t]` int32: padded rows, or one packed tree. A step's micro-batches all exist at once.
    pub ids: Tensor,
    /// Positions of these tokens, and the keys that they see.
    pub layout: Rc<Layout>,
    /// `[n]` int64, as all below: flat places in `[b * t]` of the hidden states that predict trained tokens.
    pub positions: Tensor,
    pub targets: Tensor,
    pub temperatures: Tensor,
    /// Row and index in it of each trained token, by row, then by index.
    pub trained: Vec<(usize, usize)>,
    /// For every layer, the experts of each token of `ids`, `[b, t, experts per token]` int16, -1 if the layer's router
    /// decides. `None` in a layer, or an empty list: the routers decide for all tokens.
    pub experts: Vec<Option<Tensor>>,
}

/// Columns of facts on trained tokens.
#[derive(Default)]
struct Trained {
    positions: Vec<i64>,
    targets: Vec<i64>,
    temperatures: Vec<f32>,
    trained: Vec<(usize, usize)>,
}

impl Trained {
    /// `place`: place of the hidden state that predicts `row`'s `token`.
    fn push(&mut self, place: usize, number: usize, row: &TrainRow, token: usize) {
        self.positions.push(place as i64);
        self.targets.push(i64::from(row.tokens[token]));
        self.temperatures.push(row.temperature);
        self.trained.push((number, token));
    }

    fn batch(self, ids: Tensor, layout: Layout) -> MicroBatch {
        MicroBatch {
            ids,
            layout: Rc::new(layout),
            positions: Tensor::from_slice(&self.positions),
            targets: Tensor::from_slice(&self.targets),
            temperatures: Tensor::from_slice(&self.temperatures),
            trained: self.trained,
            experts: Vec::new(),
        }
    }
}

impl MicroBatch {
    /// A pass through a layer, with its given experts.
    pub fn pass(&self, layer: usize) -> Pass {
        let experts = self.experts.get(layer).and_then(Option::as_ref);
        Pass {
            experts: experts.map(|experts| experts.to_kind(Kind::Int64)),
            ..Pass::default()
        }
    }

    /// The same rows, with pieces of at most `most` trained tokens.
    pub fn pieces(&self, most: i64) -> Vec<Self> {
        let n = self.trained.len() as i64;
        let most = most.max(1);
        (0..n.max(1))
            .step_by(most as usize)
            .map(|begin| {
                let count = most.min(n - begin);
                let part = |tensor: &Tensor| tensor.narrow(0, begin, count);
                Self {
                    ids: self.ids.shallow_clone(),
                    layout: self.layout.clone(),
                    positions: part(&self.positions),
                    targets: part(&self.targets),
                    temperatures: part(&self.temperatures),
                    trained: self.trained[begin as usize..(begin + count) as usize].to_vec(),
                    // The head has no experts.
                    experts: Vec::new(),
                }
            })
            .collect()
    }

    /// Moves it to the device. The process does not wait for a GPU.
    pub fn to_device(self, device: tch::Device) -> Result<Self, TrainError> {
        let experts = self.experts.into_iter();
        let experts = experts.map(|experts| experts.map(|experts| sent(&experts, device)).transpose());
        Ok(Self {
            ids: sent(&self.ids, device)?,
            layout: Rc::new(self.layout.to_device(device)?),
            positions: sent(&self.positions, device)?,
            targets: sent(&self.targets, device)?,
            temperatures: sent(&self.temperatures, device)?,
            trained: self.trained,
            experts: experts.collect::<Result<_, _>>()?,
        })
    }

    /// Number of tokens that the model computes.
    pub fn tokens(&self) -> usize {
        self.ids.numel()
    }

    /// This rank's part of a packed tree that the ranks of `shared` compute together. The parts are equal and
    /// contiguous. Padding makes the number of tokens divisible; no other token attends to it.
    pub fn part(pack: &Pack, rows: &[TrainRow], shared: &Rc<Exchange>) -> Result<Self, TrainError> {
        let n = pack.tokens.len();
        let whole = n.next_multiple_of(shared.world());
        let (mut positions, mut pieces) = (pack.positions.clone(), pack.pieces.clone());
        positions.resize(whole, 0);
        if whole > n {
            pieces.push(Piece {
                queries: n..whole,
                keys: n..whole,
                causal: true,
            });
        }
        let here = whole / shared.world();
        let begin = here * shared.rank();
        let mut ids: Vec<i32> = pack.tokens.iter().map(|token| token.cast_signed()).collect();
        ids.resize(whole, 0);
        let layout = Layout::part(&positions, pieces, shared.clone())?;
        let mut trained = Trained::default();
        for entry in pack
            .entries
            .iter()
            .filter(|entry| (begin..begin + here).contains(&entry.at))
        {
            trained.push(entry.at - begin, entry.row, &rows[entry.row], entry.token);
        }
        let ids = Tensor::from_slice(&ids[begin..begin + here]);
        Ok(trained.batch(ids.unsqueeze(0), layout))
    }

    /// A packed tree of some of `rows`.
    pub fn packed(pack: &Pack, rows: &[TrainRow]) -> Result<Self, TrainError> {
        let ids: Vec<i32> = pack.tokens.iter().map(|token| token.cast_signed()).collect();
        let layout = Layout::tree(&pack.positions, pack.pieces.clone())?;
        let mut trained = Trained::default();
        for entry in &pack.entries {
            trained.push(entry.at, entry.row, &rows[entry.row], entry.token);
        }
        Ok(trained.batch(Tensor::from_slice(&ids).unsqueeze(0), layout))
    }

    /// Rows padded on the right, nothing shared: the baseline for packing. Rows are numbered from `first`.
    pub fn padded(rows: &[TrainRow], first: usize) -> Self {
        let t = rows.iter().map(|row| row.tokens.len()).max().unwrap_or(1).max(1);
        let mut ids = vec![0i32; rows.len() * t];
        let mut trained = Trained::default();
        for (b, row) in rows.iter().enumerate() {
            for (i, token) in row.tokens.iter().enumerate() {
                ids[b * t + i] = token.cast_signed();
            }
            for i in row.trained() {
                trained.push(b * t + i - 1, first + b, row, i);
            }
        }
        let size = [rows.len() as i64, t as i64];
        trained.batch(Tensor::from_slice(&ids).view(size), Layout::rows(size[0], size[1]))
    }
}
