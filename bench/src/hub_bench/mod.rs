//! Costs and faults of downloads from a hub, beside the hub's own client: figures of `make bench-hub`.
//!
//! ```text
//! simulated hub in this process ─► same: faults, kills, a branch that moves: the same bytes and commit   (figure 1)
//!                               └► speed: shards over loopback, with sha256                              (figure 2)
//! ```
//!
//! Each client is a process of its own: ours is the program that pods run; the peers are `huggingface_hub` of
//! [`HUB_CLIENT`], and curl piped into sha256sum.

pub mod clients;
pub mod same;
pub mod speed;

use std::io;
use std::path::PathBuf;

/// The version that `e2e/setup/hub-client.sh` installs.
pub const HUB_CLIENT: &str = "huggingface_hub 1.33.0";

#[derive(Debug, thiserror::Error)]
pub enum HubBenchError {
    #[error("{doing} {}: {source}", path.display())]
    Io {
        doing: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{0}")]
    Wrong(String),
}

impl HubBenchError {
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { doing, path, source }
    }
}
