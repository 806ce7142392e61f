//! What survives: checkpoints to go on from, and weights versions that engines pull.
//!
//! Each file is there whole or not at all, and the manifest is written last: without it a folder does not count. A
//! checkpoint's shards are flat, so they are read back at another world size by putting them behind each other.
//!
//! An attempt begins by withdrawing the claims of those before it ([`grpo_records::claim`]): a rank of an earlier one
//! that is still alive somewhere can name nothing any more, and ends.

mod checkpoints;
mod store;
mod versions;

pub use self::checkpoints::{CheckpointManifest, Snapshot, Written};
pub use self::store::{Epoch, TrainerStore, json, lineage_number, sha256};
pub use self::versions::{Form, Publication};
