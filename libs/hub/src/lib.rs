//! Models and datasets of the Hugging Face Hub, or of a mirror that speaks its protocol.
//!
//! A revision is pinned to a commit ([`Hub::pin`]), the commit's files are listed with their digests ([`Hub::list`]),
//! and [`snapshot::ensure`] brings the wanted ones into a cache folder. A file appears there under its name only when
//! all its bytes are on disk and have the digest of the listing; a download that was killed continues at its last byte.
//! [`dataset::split_files`] says which files a split of a dataset consists of, [`model::files`] which ones a model
//! needs.
//!
//! The protocol is that of `huggingface_hub` 1.33 (`_commit_api`, `file_download.py`, `utils/_http.py`), Apache-2.0.

pub mod client;
pub mod dataset;
mod error;
pub mod model;
#[cfg(feature = "played")]
pub mod played;
mod repository;
mod retry;
pub mod snapshot;
mod transfer;

pub use client::{Hub, HubSettings};
pub use error::HubError;
pub use repository::{Commit, Digest, Kind, RemoteFile, Repository};
