//! A store of a long run, and what a viewer takes to show it: figures of `make bench-viewer`, and the store of
//! `make check-viewer`.
//!
//! ```text
//! store (made here) ─► kubectl grpo ui ─► HTTP: first page, views, searches, the time until a new entry is announced
//! ```

pub mod measure;
pub mod store;

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum ViewerBenchError {
    #[error("{doing} {}: {source}", path.display())]
    Io {
        doing: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("writing a record: {0}")]
    Json(#[from] serde_json::Error),
    #[error("writing rows: {0}")]
    Rows(#[from] grpo_records::RowsError),
    #[error("writing token statistics: {0}")]
    TokenStats(#[from] grpo_records::token_stats::TokenStatsError),
    #[error("{0}")]
    Wrong(String),
}

impl ViewerBenchError {
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { doing, path, source }
    }
}
