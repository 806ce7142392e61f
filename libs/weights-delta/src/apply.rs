//! Makes a file from its base and a delta.

use std::io::{ErrorKind, Read, Write};

use zstd::bulk::Decompressor;

use crate::{DeltaError, FRAME, MAGIC, kind};

/// Most bytes of a stream of one frame: as many changed words as the frame has, three bytes each.
const LONGEST_STREAM: usize = FRAME / 2 * 3;

/// Writes the file that `delta` makes of `base`; returns its length. It holds one frame in memory.
///
/// The bytes that a wrong base or a damaged delta makes are wrong: compare the checksum of what was written with that
/// of the manifest before it is used.
///
/// # Errors
///
/// If the delta is not one, ends early, or does not fit the base, and if reading or writing fails.
pub fn apply(mut base: impl Read, mut delta: impl Read, mut out: impl Write) -> Result<u64, DeltaError> {
    let mut magic = [0; MAGIC.len()];
    take(&mut delta, &mut magic)?;
    if &magic != MAGIC {
        return Err(DeltaError::Damaged("it does not begin as one"));
    }
    let mut state = State {
        decompressor: Decompressor::new().map_err(DeltaError::Compress)?,
        gaps: Vec::with_capacity(LONGEST_STREAM),
        differences: Vec::with_capacity(LONGEST_STREAM),
        compressed: Vec::new(),
    };
    let mut frame = vec![0; FRAME];
    let mut made = 0;
    loop {
        let [tag] = *take(&mut delta, &mut [0; 1])?;
        if tag == kind::END {
            let said = u64::from_le_bytes(*take(&mut delta, &mut [0; 8])?);
            if made != said {
                return Err(DeltaError::Incomplete { made, said });
            }
            if fill(&mut delta, &mut [0; 1]).map_err(DeltaError::Delta)? > 0 {
                return Err(DeltaError::Damaged("bytes follow its end"));
            }
            return out.flush().map(|()| made).map_err(DeltaError::Write);
        }
        let length = number(&mut delta)?;
        let frame = frame
            .get_mut(..length)
            .ok_or(DeltaError::Damaged("a frame is too long"))?;
        // The base has a place for every byte of the new file, also where that is taken whole.
        let found = fill(&mut base, frame).map_err(DeltaError::Base)?;
        let short = || DeltaError::ShortBase {
            found: made + found as u64,
            needed: made + length as u64,
        };
        match tag {
            kind::SAME if found < length => return Err(short()),
            kind::SAME => {}
            kind::CHANGED if found < length => return Err(short()),
            kind::CHANGED => {
                state.read(&mut delta)?;
                state.change(frame)?;
            }
            kind::WHOLE => {
                take(&mut delta, frame)?;
            }
            _ => return Err(DeltaError::Damaged("a frame has an unknown kind")),
        }
        out.write_all(frame).map_err(DeltaError::Write)?;
        made += length as u64;
    }
}

/// The streams of one frame.
struct State {
    decompressor: Decompressor<'static>,
    gaps: Vec<u8>,
    differences: Vec<u8>,
    compressed: Vec<u8>,
}

impl State {
    fn read(&mut self, delta: &mut impl Read) -> Result<(), DeltaError> {
        let mut lengths = [0; 4];
        for length in &mut lengths {
            *length = number(delta)?;
        }
        let [gaps, gaps_compressed, differences, differences_compressed] = lengths;
        let Self {
            decompressor,
            compressed,
            ..
        } = self;
        for (stream, length, within) in [
            (&mut self.gaps, gaps, gaps_compressed),
            (&mut self.differences, differences, differences_compressed),
        ] {
            if length > LONGEST_STREAM || within > zstd::zstd_safe::compress_bound(LONGEST_STREAM) {
                return Err(DeltaError::Damaged("a stream is too long"));
            }
            compressed.resize(within, 0);
            take(delta, compressed)?;
            // The capacity bounds it.
            stream.clear();
            let found = decompressor.decompress_to_buffer(compressed, stream);
            if found.ok() != Some(length) {
                return Err(DeltaError::Damaged("a stream cannot be decompressed"));
            }
        }
        Ok(())
    }

    fn change(&self, frame: &mut [u8]) -> Result<(), DeltaError> {
        let (mut gaps, mut differences) = (self.gaps.as_slice(), self.differences.as_slice());
        let mut at = 0;
        while let Some(gap) = leb128(&mut gaps) {
            let difference = leb128(&mut differences).ok_or(DeltaError::Damaged("a difference is missing"))?;
            at += 2 * gap as usize;
            let word = frame
                .get_mut(at..at + 2)
                .ok_or(DeltaError::Damaged("a change is beyond its frame"))?;
            let changed = u16::from_le_bytes([word[0], word[1]]).wrapping_add(from_zigzag(difference as u16));
            word.copy_from_slice(&changed.to_le_bytes());
            at += 2;
        }
        match gaps.is_empty() && differences.is_empty() {
            true => Ok(()),
            false => Err(DeltaError::Damaged("a number ends early")),
        }
    }
}

fn from_zigzag(value: u16) -> u16 {
    (value >> 1) ^ (value & 1).wrapping_neg()
}

/// The next number of a stream, at most 32 bits; `None` at the end, and at a number that has none.
#[inline]
fn leb128(stream: &mut &[u8]) -> Option<u32> {
    let (mut value, mut shift) = (0, 0);
    for (at, byte) in stream.iter().take(5).enumerate() {
        value |= u32::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            *stream = &stream[at + 1..];
            return Some(value);
        }
        shift += 7;
    }
    None
}

/// Fills the buffer from the delta.
fn take<'a, T: AsMut<[u8]> + ?Sized>(delta: &mut impl Read, into: &'a mut T) -> Result<&'a T, DeltaError> {
    match delta.read_exact(into.as_mut()) {
        Ok(()) => Ok(into),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(DeltaError::Damaged("it ends early")),
        Err(error) => Err(DeltaError::Delta(error)),
    }
}

/// A length.
fn number(delta: &mut impl Read) -> Result<usize, DeltaError> {
    take(delta, &mut [0; 4]).map(|bytes: &[u8; 4]| u32::from_le_bytes(*bytes) as usize)
}

/// Reads until the buffer is full or the file ends; how much it read.
fn fill(from: &mut impl Read, into: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < into.len() {
        match from.read(&mut into[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
