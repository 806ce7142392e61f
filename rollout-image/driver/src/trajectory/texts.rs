//! The texts of a live episode's earlier turns, compressed.
//!
//! An engine gets ids. Texts of earlier turns are read only at the end of an episode, by servers that speak only text,
//! and by judges, whose episodes keep all texts. Beside the ids they would be the largest part of a live episode. So
//! the texts of some turns are taken out of them and compressed together. They are put back into a copy of the turns.

use grpo_records::{Message, TurnRecord};
use std::io;

/// Bytes of texts from which on they are compressed together. Smaller blocks compress worse.
const BLOCK: usize = 16 << 10;
/// A fast one: a block is compressed while its episode waits, and read once.
const LEVEL: i32 = 1;

/// The texts of the first turns of an episode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PackedTexts {
    /// In order, without gaps.
    blocks: Vec<Block>,
}

/// The texts of consecutive turns.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Block {
    turns: usize,
    /// A zstd frame of JSON: text, opening and observation of each turn.
    frame: Box<[u8]>,
    /// Bytes of the JSON.
    bytes: usize,
}

impl PackedTexts {
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Takes the texts of the turns that have theirs, once they are enough for a block. Texts that cannot be compressed
    /// stay.
    pub(super) fn pack(&mut self, turns: &mut [TurnRecord]) {
        let packed: usize = self.blocks.iter().map(|block| block.turns).sum();
        let turns = turns.get_mut(packed..).unwrap_or_default();
        if turns.iter().map(bytes_of).sum::<usize>() < BLOCK {
            return;
        }
        let Ok(block) = Block::of(turns) else { return };
        self.blocks.push(block);
        for turn in turns {
            if has_spare_text(turn) {
                turn.text = String::new();
            }
            turn.opening = Vec::new();
            turn.observation_text = String::new();
        }
    }

    /// Puts the texts back into all turns of the episode.
    pub(super) fn put_back(&self, turns: &mut [TurnRecord]) -> io::Result<()> {
        let mut turns = turns.iter_mut();
        for block in &self.blocks {
            let json = zstd::bulk::decompress(&block.frame, block.bytes)?;
            let texts: Vec<(String, Vec<Message>, String)> = serde_json::from_slice(&json)?;
            for (text, opening, observation) in texts {
                let Some(turn) = turns.next() else { return Ok(()) };
                if has_spare_text(turn) {
                    turn.text = text;
                }
                turn.opening = opening;
                turn.observation_text = observation;
            }
        }
        Ok(())
    }
}

impl Block {
    fn of(turns: &[TurnRecord]) -> io::Result<Self> {
        let texts = turns.iter().map(|turn| {
            let text = if has_spare_text(turn) { turn.text.as_str() } else { "" };
            (text, &turn.opening[..], turn.observation_text.as_str())
        });
        let texts: Vec<(&str, &[Message], &str)> = texts.collect();
        let json = serde_json::to_vec(&texts)?;
        Ok(Self {
            turns: turns.len(),
            // A copy: the compressor's buffer is as long as the texts, and allocators shrink one of that size to whole
            // pages, in a mapping of its own.
            frame: Box::from(&zstd::bulk::compress(&json, LEVEL)?[..]),
            bytes: json.len(),
        })
    }
}

/// Whether no later turn needs the answer's text. The recording endpoint repeats an answer to a command-line agent.
fn has_spare_text(turn: &TurnRecord) -> bool {
    turn.request.is_none()
}

/// Bytes of the texts that a block would take.
fn bytes_of(turn: &TurnRecord) -> usize {
    let opening: usize = turn.opening.iter().map(|message| message.content.len()).sum();
    let text = if has_spare_text(turn) { turn.text.len() } else { 0 };
    text + opening + turn.observation_text.len()
}

#[cfg(test)]
mod tests;
