//! What survives: checkpoints to go on from, and weights versions that engines pull.
//!
//! Both are written into a folder without a name of theirs, synced, and renamed, the manifest last: a name either holds
//! everything or does not exist. A checkpoint's shards are flat, so they are read back at another world size by putting
//! them behind each other.
//!
//! An attempt begins by removing the folders in which those before it write: a rank of an earlier one that is still
//! alive somewhere finds nothing left to rename, and ends.

mod checkpoints;
mod store;
mod versions;

pub use self::checkpoints::{CheckpointManifest, Snapshot};
pub use self::store::{Epoch, Store, json, lineage_number, sha256};
pub use self::versions::{Form, WEIGHTS_KEPT};
