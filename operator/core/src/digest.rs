//! Digests as short names of contents.

use serde_json::Value;
use sha2::{Digest, Sha256};

/// A short name of a content: equal if and only if the contents are.
pub fn digest(content: &Value) -> String {
    format!("{:016x}", number(content))
}

/// The number of a content: equal if and only if the contents are.
pub fn number(content: &Value) -> u64 {
    let digest = Sha256::digest(content.to_string());
    u64::from_be_bytes(std::array::from_fn(|at| digest[at]))
}
