//! Deltas of published weights: the differences between a file of one version and the file of the same name of an
//! earlier one. Engines that have the earlier file fetch a fiftieth of the bytes.
//!
//! A step of AdamW at a learning rate of 1e-6 moves most bf16 values by less than half of their spacing: a few percent
//! of the values change. A delta holds the places and the differences of those. The trainer makes it while it publishes
//! a version ([`Encoder`]). An engine agent makes the new file from its copy of the earlier one ([`apply`]). Both read
//! the files once, frame by frame: a file of any size takes the memory of a frame.
//!
//! # Format
//!
//! [`MAGIC`], then frames, then an end. Integers are little-endian. A frame begins with its kind (u8) and the number of
//! the new file's bytes that it makes (u32, at most [`FRAME`]):
//!
//! | kind | then | the new bytes |
//! |---|---|---|
//! | 0 | nothing | the base's |
//! | 1 | u32: length of the gaps and of their zstd frame, length of the differences and of their zstd frame; both zstd frames | the base's, with some 16-bit words changed |
//! | 2 | the new bytes | these |
//! | 255 | u64 in place of the u32: length of the new file | the end |
//!
//! Gaps are the numbers of unchanged words before each changed one. Differences are new word minus old word, modulo
//! 65,536, in zigzag form: neighbouring bf16 values, also those around zero of one sign, have neighbouring words. Both
//! are LEB128. Words of two bytes suit bf16; other files are made correctly too, with larger deltas.
//!
//! A delta makes the right file of the right base only. It has no checksums: the manifest of a version has those of the
//! base, of the delta and of the new file (`grpo_records::weights`), and the reader compares them.

mod apply;
mod encode;

pub use apply::apply;
pub use encode::Encoder;

/// The first bytes of a delta.
pub const MAGIC: &[u8; 8] = b"grpo-d1\n";

/// Most bytes of the new file that one frame makes: base and result of a frame stay in a core's cache.
pub const FRAME: usize = 1 << 20;

/// Length of the end.
const END_BYTES: usize = 9;

/// Kinds of frames.
mod kind {
    pub const SAME: u8 = 0;
    pub const CHANGED: u8 = 1;
    pub const WHOLE: u8 = 2;
    pub const END: u8 = 255;
}

/// Why a file was not made from a base and a delta.
#[derive(Debug, thiserror::Error)]
pub enum DeltaError {
    #[error("the delta is damaged: {0}")]
    Damaged(&'static str),
    #[error("the delta makes {made} bytes and says {said}: a part of it is missing")]
    Incomplete { made: u64, said: u64 },
    #[error("the base ends after {found} bytes of at least {needed}: it is another file than the delta's base")]
    ShortBase { found: u64, needed: u64 },
    #[error("reading the delta: {0}")]
    Delta(std::io::Error),
    #[error("reading the base: {0}")]
    Base(std::io::Error),
    #[error("writing the new file: {0}")]
    Write(std::io::Error),
    #[error("compressing: {0}")]
    Compress(std::io::Error),
}

#[cfg(test)]
mod tests;
