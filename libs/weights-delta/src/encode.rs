//! Makes a delta from the bytes of both files.

use zstd::bulk::Compressor;

use crate::{DeltaError, END_BYTES, FRAME, MAGIC, kind};

/// The fastest level: the streams have no repetitions to find, only unequal frequencies.
const LEVEL: i32 = 1;

/// A frame with more changed words than one in this many holds the new bytes.
const DENSE: usize = 4;

/// Makes one delta. Its output is written as it comes: [`Encoder::begin`], the frames, [`Encoder::end`].
pub struct Encoder {
    compressor: Compressor<'static>,
    gaps: Vec<u8>,
    differences: Vec<u8>,
    /// Bytes of the new file so far.
    made: u64,
}

impl Encoder {
    pub fn new() -> Result<Self, DeltaError> {
        Ok(Self {
            compressor: Compressor::new(LEVEL).map_err(DeltaError::Compress)?,
            gaps: Vec::new(),
            differences: Vec::new(),
            made: 0,
        })
    }

    /// The beginning of the delta.
    pub fn begin(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(MAGIC);
    }

    /// Appends the frames for the next bytes of the new file. `old` are the bytes at the same place of the base; beyond
    /// its end, the new bytes are taken whole. All pieces but the last one should have an even length: words of two
    /// pieces are not compared.
    pub fn add(&mut self, old: &[u8], new: &[u8], out: &mut Vec<u8>) -> Result<(), DeltaError> {
        for (at, new) in new.chunks(FRAME).enumerate() {
            let old = old.get(at * FRAME..).unwrap_or_default();
            self.frame(&old[..old.len().min(new.len())], new, out)?;
            self.made += new.len() as u64;
        }
        Ok(())
    }

    /// Appends the end of the delta.
    pub fn end(self, out: &mut Vec<u8>) {
        out.reserve(END_BYTES);
        out.push(kind::END);
        out.extend_from_slice(&self.made.to_le_bytes());
    }

    fn frame(&mut self, old: &[u8], new: &[u8], out: &mut Vec<u8>) -> Result<(), DeltaError> {
        let head = |kind: u8, out: &mut Vec<u8>| {
            out.push(kind);
            out.extend_from_slice(&(new.len() as u32).to_le_bytes());
        };
        if old == new {
            head(kind::SAME, out);
            return Ok(());
        }
        if old.len() != new.len() || new.len() % 2 == 1 || !self.compare(old, new) {
            head(kind::WHOLE, out);
            out.extend_from_slice(new);
            return Ok(());
        }
        head(kind::CHANGED, out);
        let lengths = out.len();
        out.extend_from_slice(&[0; 16]);
        for (at, stream) in [&self.gaps, &self.differences].into_iter().enumerate() {
            let begin = out.len();
            out.resize(begin + zstd::zstd_safe::compress_bound(stream.len()), 0);
            let compressed = self
                .compressor
                .compress_to_buffer(stream, &mut out[begin..])
                .map_err(DeltaError::Compress)?;
            out.truncate(begin + compressed);
            let place = lengths + 8 * at;
            out[place..place + 4].copy_from_slice(&(stream.len() as u32).to_le_bytes());
            out[place + 4..place + 8].copy_from_slice(&(compressed as u32).to_le_bytes());
        }
        Ok(())
    }

    /// Collects gaps and differences of two pieces of one even length; false if too many words differ.
    fn compare(&mut self, old: &[u8], new: &[u8]) -> bool {
        self.gaps.clear();
        self.differences.clear();
        let most = new.len() / 2 / DENSE;
        let (mut changed, mut next) = (0, 0);
        // Eight words at a time: most of them are equal.
        for (block, (old, new)) in old.chunks(16).zip(new.chunks(16)).enumerate() {
            if old == new {
                continue;
            }
            for (word, (old, new)) in old.chunks_exact(2).zip(new.chunks_exact(2)).enumerate() {
                let difference =
                    u16::from_le_bytes([new[0], new[1]]).wrapping_sub(u16::from_le_bytes([old[0], old[1]]));
                if difference == 0 {
                    continue;
                }
                let at = block * 8 + word;
                leb128(&mut self.gaps, (at - next) as u32);
                leb128(&mut self.differences, u32::from(zigzag(difference)));
                next = at + 1;
                changed += 1;
            }
            if changed > most {
                return false;
            }
        }
        true
    }
}

/// Small for small differences of both signs.
fn zigzag(difference: u16) -> u16 {
    let signed = difference as i16;
    ((signed << 1) ^ (signed >> 15)) as u16
}

fn leb128(out: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
