//! The contents of a file in a simulated repository, and the hub's listing of it.

use std::path::PathBuf;

use bytes::Bytes;
use serde_json::{Value, json};
use sha1::Digest as _;

/// A file's contents.
#[derive(Clone, Debug)]
pub enum Content {
    /// Stored in Git itself.
    Small(Bytes),
    /// Stored by its SHA-256, and served by another host.
    Large(Bytes),
    /// The same, from a local file.
    OnDisk { path: PathBuf, size: u64, sha256: String },
}

impl Content {
    pub(super) fn size(&self) -> u64 {
        match self {
            Self::Small(bytes) | Self::Large(bytes) => bytes.len() as u64,
            Self::OnDisk { size, .. } => *size,
        }
    }

    pub(super) fn sha256(&self) -> String {
        match self {
            Self::Small(bytes) | Self::Large(bytes) => hex::encode(sha2::Sha256::digest(bytes)),
            Self::OnDisk { sha256, .. } => sha256.clone(),
        }
    }

    pub(super) fn entry(&self, path: &str) -> Value {
        match self {
            Self::Small(bytes) => json!({"type": "file", "path": path, "size": bytes.len(), "oid": git_blob(bytes)}),
            large => json!({
                "type": "file", "path": path, "size": large.size(), "oid": git_blob(large.sha256().as_bytes()),
                "lfs": {"oid": large.sha256(), "size": large.size(), "pointerSize": 134},
            }),
        }
    }

    pub(super) fn etag(&self) -> String {
        match self {
            Self::Small(bytes) => git_blob(bytes),
            large => large.sha256(),
        }
    }
}

fn git_blob(bytes: &[u8]) -> String {
    let hash = sha1::Sha1::default().chain_update(format!("blob {}\0", bytes.len()));
    hex::encode(hash.chain_update(bytes).finalize())
}
