//! Where the tokens of a batch stand: the position of each, and who attends to whom. The one thing by which a batch of rows and a packed tree
//! differ to the model.
//!
//! Tokens are counted flat over `[b, t]`: a batch of `b` padded rows has one causal piece per row, a packed tree has `b = 1` and the pieces of
//! its paths.

use grpo_native::attention::{self, AttentionError, Piece};
use tch::Tensor;

use crate::model::Rope;

/// Positions and attention of `b * t` tokens.
pub struct Layout {
    /// `[b * t]` int64.
    positions: Tensor,
    pieces: Vec<Piece>,
}

impl Layout {
    /// `b` rows of `t` tokens, padded on the right: a token sees its row up to itself, so padding is never seen by a real token.
    pub fn rows(b: i64, t: i64) -> Self {
        let t = t.max(0) as usize;
        let pieces = (0..b.max(0) as usize)
            .map(|row| row * t..(row + 1) * t)
            .filter(|row| !row.is_empty())
            .map(|row| Piece {
                queries: row.clone(),
                keys: row,
                causal: true,
            });
        Self {
            positions: Tensor::arange(t as i64, (tch::Kind::Int64, tch::Device::Cpu)).repeat([b]),
            pieces: pieces.collect(),
        }
    }

    /// Tokens of a packed tree.
    pub fn tree(positions: &[usize], pieces: Vec<Piece>) -> Result<Self, AttentionError> {
        attention::check(&pieces, positions.len())?;
        let positions: Vec<i64> = positions.iter().map(|p| *p as i64).collect();
        Ok(Self {
            positions: Tensor::from_slice(&positions),
            pieces,
        })
    }

    /// Pairs of a query and a key that it sees.
    pub fn pairs(&self) -> usize {
        self.pieces.iter().map(Piece::pairs).sum()
    }

    /// Rotates every head of `x: [b, t, heads, d]` by its token's position.
    pub fn rotate(&self, rope: &Rope, x: &Tensor) -> Tensor {
        let size = x.size();
        let (cos, sin) = rope.at(&self.positions);
        let flat = x.reshape([size[0] * size[1], size[2], size[3]]);
        done(attention::rotate(&flat, &cos, &sin)).view(size.as_slice())
    }

    /// Attention of `q: [b, t, heads, d]` over `k, v: [b, t, groups, d]`, to `[b, t, heads * d]`.
    pub fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
        let size = q.size();
        let flat = |x: &Tensor| x.reshape([size[0] * size[1], x.size()[2], size[3]]);
        done(attention::tree(&flat(q), &flat(k), &flat(v), &self.pieces)).view([size[0], size[1], size[2] * size[3]])
    }
}

/// Shapes that do not fit panic, as they do in every other operation on tensors.
fn done(result: Result<Tensor, AttentionError>) -> Tensor {
    result.unwrap_or_else(|error| panic!("{error}"))
}
