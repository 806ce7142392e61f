//! The trainer's durable state: checkpoints to continue from, and weights versions that engines pull.
//!
//! Each file appears atomically, and the manifest is written last: without it a folder does not count. A checkpoint's
//! shards are flat, so another world size reads them by concatenation.
//!
//! An attempt begins by withdrawing the claims of earlier ones ([`grpo_records::claim`]): a rank of an earlier attempt
//! that still runs can name no more files, and ends.

mod checkpoints;
mod delta;
mod store;
mod versions;

pub use self::checkpoints::{CheckpointManifest, Snapshot, Written};
pub use self::store::{DamagedFile, Epoch, TrainerStore, json, lineage_number, sha256};
pub use self::versions::{DamagedVersion, Form, Publication};
