//! Cache of blocks of keys and values, which later rows with the same prefix reuse.
//!
//! The samples of a group share their prompt, and every turn of an agent sends the whole conversation again, so most of
//! a prompt has been read before. The key of an entry is (number of the block before, the tokens in this one): exact,
//! without hash collisions. Sharing cannot change an answer, because every row computes the same bits for a position. A
//! cache belongs to one weights version and is dropped with it.

use grpo_model::decode::{BLOCK_LEN, Block};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Place of a block: the number of the block before it, and its tokens.
pub type Place = (BlockNumber, [u32; BLOCK_LEN]);

/// Number of a block among all that a cache has seen. 0 comes before the first block.
pub type BlockNumber = u64;

/// The most recently used blocks, up to a fixed number.
pub struct PrefixCache {
    capacity: usize,
    entries: HashMap<Place, Entry>,
    by_age: BTreeMap<u64, Place>,
    clock: u64,
    next: BlockNumber,
}

struct Entry {
    number: BlockNumber,
    block: Arc<Block>,
    used: u64,
}

impl PrefixCache {
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            entries: HashMap::new(),
            by_age: BTreeMap::new(),
            clock: 0,
            next: 1,
        }
    }

    /// The block at this place, if cached.
    pub fn find(&mut self, place: &Place) -> Option<(BlockNumber, Arc<Block>)> {
        let entry = self.entries.get_mut(place)?;
        self.clock += 1;
        self.by_age.remove(&entry.used);
        self.by_age.insert(self.clock, *place);
        entry.used = self.clock;
        Some((entry.number, entry.block.clone()))
    }

    /// Adds `block`, or returns the equal block that is already cached.
    pub fn share(&mut self, place: Place, block: Arc<Block>) -> (BlockNumber, Arc<Block>) {
        if let Some(known) = self.find(&place) {
            return known;
        }
        let number = self.next;
        self.next += 1;
        self.clock += 1;
        self.by_age.insert(self.clock, place);
        self.entries.insert(
            place,
            Entry {
                number,
                block: block.clone(),
                used: self.clock,
            },
        );
        while self.entries.len() > self.capacity {
            let Some((_, oldest)) = self.by_age.pop_first() else {
                break;
            };
            self.entries.remove(&oldest);
        }
        (number, block)
    }
}

/// The block-sized piece of `tokens` that begins at `start`, if it is complete.
pub fn piece(tokens: &[u32], start: usize) -> Option<[u32; BLOCK_LEN]> {
    tokens.get(start..start + BLOCK_LEN)?.try_into().ok()
}

#[cfg(test)]
mod tests;
