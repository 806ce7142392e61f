//! The position of each token in a batch, and the tokens that it attends to. For the model, this is the only difference
//! between a batch of rows and a packed tree.
//!
//! Tokens are counted flat over `[b, t]`: a batch of `b` padded rows has one causal piece per row, a packed tree has
//! `b = 1` and the pieces of its paths.
//!
//! **A part of a tree.** Ranks that share a sequence (DeepSpeed-Ulysses, arXiv 2309.14509) each hold an equal,
//! contiguous part of its tokens. Norms, linear layers, rotation and the MLP work on single tokens. Around attention
//! the ranks exchange tokens for heads: each then has all tokens of its share of the heads, attends, and exchanges
//! back. If there are more ranks than groups of keys and values, several ranks have copies of one group.

use std::cell::RefCell;
use std::rc::Rc;

use grpo_native::Exchange;
use grpo_native::attention::{self, AttentionError, Piece, Saving};
use grpo_native::device::{CopyError, sent};
use tch::Tensor;

use crate::rotation::{Angles, Rope};

/// Positions and attention of `b * t` tokens.
pub struct Layout {
    /// `[b * t]` int32.
    positions: Tensor,
    /// The pieces of the whole sequence, if this is a part.
    pieces: Vec<Piece>,
    /// The ranks with the other parts.
    shared: Option<Rc<Exchange>>,
    /// `[b * t]` int64: keys for the adapters' dropout; `None`: no dropout.
    keys: Option<Tensor>,
    /// The tokens' angles. Every rotation of every block needs the same ones, so they are looked up once.
    angles: RefCell<Option<Rc<Angles>>>,
}

impl Layout {
    /// `b` rows of `t` tokens, padded on the right: a token attends to its row up to itself, so real tokens never
    /// attend to padding.
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
            positions: Tensor::arange(t as i64, (tch::Kind::Int, tch::Device::Cpu)).repeat([b]),
            pieces: pieces.collect(),
            shared: None,
            keys: None,
            angles: RefCell::default(),
        }
    }

    /// Tokens of a packed tree.
    pub fn tree(positions: &[usize], pieces: Vec<Piece>) -> Result<Self, AttentionError> {
        attention::check(&pieces, positions.len())?;
        let positions: Vec<i32> = positions.iter().map(|p| *p as i32).collect();
        Ok(Self {
            positions: Tensor::from_slice(&positions),
            pieces,
            shared: None,
            keys: None,
            angles: RefCell::default(),
        })
    }

    /// This rank's part of a packed tree; every rank of `shared` has an equal part. `positions` and `pieces` are those
    /// of the whole tree, and its number of tokens is a multiple of the number of ranks. Every pass through a block,
    /// forward and backward, then waits for the other ranks.
    pub fn part(positions: &[usize], pieces: Vec<Piece>, shared: Rc<Exchange>) -> Result<Self, AttentionError> {
        let n = positions.len();
        if !n.is_multiple_of(shared.world()) {
            let message = format!("{n} tokens cannot be divided over {} ranks", shared.world());
            return Err(AttentionError::Layout { at: 0, message });
        }
        let whole = Self::tree(positions, pieces)?;
        let tokens = (n / shared.world()) as i64;
        Ok(Self {
            positions: whole.positions.narrow(0, tokens * shared.rank() as i64, tokens),
            shared: Some(shared),
            ..whole
        })
    }

    pub fn to_device(&self, device: tch::Device) -> Result<Self, CopyError> {
        self.moved(|tensor| sent(tensor, device))
    }

    /// The same layout with each of its tensors replaced by `place` of it.
    pub fn moved<E>(&self, place: impl Fn(&Tensor) -> Result<Tensor, E>) -> Result<Self, E> {
        let keys = self.keys.as_ref().map(&place);
        Ok(Self {
            positions: place(&self.positions)?,
            pieces: self.pieces.clone(),
            shared: self.shared.clone(),
            keys: keys.transpose()?,
            angles: RefCell::default(),
        })
    }

    /// The same layout with adapter dropout by these keys of its tokens, `[b * t]` int64.
    pub fn dropping(&self, keys: Tensor) -> Self {
        Self {
            keys: Some(keys),
            ..self.keeping_all()
        }
    }

    /// The same layout without dropout.
    pub fn keeping_all(&self) -> Self {
        Self {
            positions: self.positions.shallow_clone(),
            pieces: self.pieces.clone(),
            shared: self.shared.clone(),
            keys: None,
            angles: RefCell::default(),
        }
    }

    pub fn keys(&self) -> Option<&Tensor> {
        self.keys.as_ref()
    }

    /// Pairs of a query and a key that it attends to.
    pub fn pairs(&self) -> usize {
        self.pieces.iter().map(Piece::pairs).sum()
    }

    /// Rotates every head of `x: [b, t, heads, d]` by its token's position.
    pub fn rotate(&self, rope: &Rope, x: &Tensor) -> Tensor {
        let size = x.size();
        let angles = self.angles(rope);
        let flat = x.reshape([size[0] * size[1], size[2], size[3]]);
        done(attention::rotate(&flat, &angles.cos, &angles.sin)).view(size.as_slice())
    }

    /// The tokens' angles by this table, which is that of the last call unless a model was moved or converted.
    fn angles(&self, rope: &Rope) -> Rc<Angles> {
        let mut kept = self.angles.borrow_mut();
        match &*kept {
            Some(angles) if angles.are_of(rope) => angles.clone(),
            _ => kept.insert(Rc::new(rope.at(&self.positions))).clone(),
        }
    }

    /// Frees the angles. The next rotation looks them up again.
    pub fn forget_angles(&self) {
        self.angles.replace(None);
    }

    /// Attention of `q: [b, t, heads, d]` over `k, v: [b, t, groups, d]`, to `[b, t, heads * d]`.
    /// `saving`: for the heads that this rank computes.
    pub fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor, saving: &mut Saving) -> Tensor {
        let size = q.size();
        let (n, heads, d) = (size[0] * size[1], size[2], size[3]);
        let flat = |x: &Tensor| x.reshape([n, x.size()[2], d]);
        let (q, k, v) = (flat(q), flat(k), flat(v));
        let mixed = match &self.shared {
            Some(shared) if shared.world() > 1 => self.attend_with_others(shared, &q, &k, &v, saving),
            _ => done(attention::tree_saving(&q, &k, &v, &self.pieces, saving)),
        };
        mixed.view([size[0], size[1], heads * d])
    }

    /// The same for a part: `q: [n, heads, d]` and `k, v: [n, groups, d]` to `[n, heads * d]`. One exchange forth and
    /// one back.
    fn attend_with_others(&self, shared: &Exchange, q: &Tensor, k: &Tensor, v: &Tensor, saving: &mut Saving) -> Tensor {
        let ranks = shared.world() as i64;
        let (n, heads, d) = (q.size()[0], q.size()[1], q.size()[2]);
        let groups = k.size()[1];
        let share = |x: &Tensor| match groups >= ranks {
            true => x.view([n, ranks, groups / ranks, d]),
            // Adjacent ranks share a group, as their heads do.
            false => x
                .unsqueeze(2)
                .expand([n, groups, ranks / groups, d], false)
                .reshape([n, ranks, 1, d]),
        };
        // First: heads, keys and values for each rank j, of the local tokens. Then: those of this rank, of all tokens.
        let shares = [q.view([n, ranks, heads / ranks, d]), share(k), share(v)];
        let widths = shares.each_ref().map(|x| x.size()[2]);
        let own = shared.all_to_all(&Tensor::cat(&shares, 2).transpose(0, 1));
        let own = own.view([ranks * n, widths.iter().sum(), d]);
        let [q, k, v] = [0, 1, 2].map(|at| own.narrow(1, widths[..at].iter().sum(), widths[at]));
        let mixed = done(attention::tree_saving(&q, &k, &v, &self.pieces, saving));
        let mixed = shared.all_to_all(&mixed.view([ranks, n, widths[0] * d]));
        mixed.transpose(0, 1).reshape([n, heads * d])
    }
}

/// Checks whether this number of ranks may share a sequence of a model with these numbers of heads and groups of keys
/// and values; the error says why not.
pub fn check_sharing(ranks: usize, heads: usize, groups: usize) -> Result<(), String> {
    if ranks == 0 || !heads.is_multiple_of(ranks) {
        return Err(format!(
            "the model has {heads} heads, which {ranks} ranks cannot divide: choose a divisor of {heads}"
        ));
    }
    if !groups.is_multiple_of(ranks) && !ranks.is_multiple_of(groups) {
        return Err(format!(
            "the model has {groups} groups of keys and values, which {ranks} ranks neither divide nor copy evenly: choose a divisor or a multiple of {groups}"
        ));
    }
    Ok(())
}

/// Wrong shapes panic, as in every other tensor operation.
fn done(result: Result<Tensor, AttentionError>) -> Tensor {
    result.unwrap_or_else(|error| panic!("{error}"))
}
