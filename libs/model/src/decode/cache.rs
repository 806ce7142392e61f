//! Keys and values of a sequence's tokens, in blocks of [`LANES`] positions.
//!
//! A full block never changes, so sequences with the same beginning may share it: the arithmetic gives each position
//! the same bits in every sequence that computes it.

use super::kernel::LANES;
use std::sync::Arc;

/// Keys and values of [`LANES`] positions, for every layer and key-value head: a key panel `[head_dim][position]`, then
/// a value panel `[head_dim / LANES][position][LANES]`.
#[derive(Default)]
pub struct Block {
    pub(super) data: Vec<f32>,
}

/// The keys and values of one sequence so far.
#[derive(Default)]
pub struct Sequence {
    full: Vec<Arc<Block>>,
    open: Vec<Block>,
    length: usize,
}

impl Sequence {
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of positions read.
    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Whether the next position begins a block, so that a shared block can be adopted.
    pub fn at_block_boundary(&self) -> bool {
        self.open.is_empty()
    }

    /// Adopts the next block of positions from a sequence that read the same tokens up to its end. Returns false within
    /// a block.
    pub fn adopt(&mut self, block: Arc<Block>) -> bool {
        let possible = self.at_block_boundary();
        if possible {
            self.full.push(block);
            self.length += LANES;
        }
        possible
    }

    /// Closes the full blocks. `share` receives each with its number, and may return an equal existing block.
    pub fn close_full_blocks(&mut self, mut share: impl FnMut(usize, Arc<Block>) -> Arc<Block>) {
        let complete = self.length / LANES - self.full.len();
        for block in self.open.drain(..complete) {
            let number = self.full.len();
            self.full.push(share(number, Arc::new(block)));
        }
    }

    pub(super) fn block(&self, number: usize) -> &[f32] {
        match self.full.get(number) {
            Some(block) => &block.data,
            None => &self.open[number - self.full.len()].data,
        }
    }

    /// The block that contains `position`; it must not be closed.
    pub(super) fn open_block(&mut self, position: usize) -> &mut [f32] {
        &mut self.open[position / LANES - self.full.len()].data
    }

    /// Makes room for `tokens` more positions.
    pub(super) fn extend(&mut self, tokens: usize, block_len: usize) {
        self.length += tokens;
        while (self.full.len() + self.open.len()) * LANES < self.length {
            self.open.push(Block {
                data: vec![0.0; block_len],
            });
        }
    }
}
