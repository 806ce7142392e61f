//! Models and datasets of the Hugging Face Hub, or of a mirror that speaks its protocol.
//!
//! A revision is pinned to a commit ([`Hub::pin`]), the commit's files are listed with their digests ([`Hub::list`]),
//! and [`snapshot::ensure`] downloads the selected ones into a cache folder. A file gets its name there only when all
//! its bytes are on disk and match the listed digest; a killed download continues at its last byte. A [`Pin`] is a
//! commit with its selected files: processes that read the same pin hold the same files. Other sources than a hub
//! implement [`FileSource`], and their files are cached in the same way. [`dataset::split_files`] selects the files of
//! a dataset's split, [`model::files`] the files of a model.
//!
//! The protocol is that of `huggingface_hub` 1.33 (`_commit_api`, `file_download.py`, `utils/_http.py`), Apache-2.0.

pub mod client;
pub mod dataset;
mod error;
mod lock;
pub mod model;
pub mod pin;
#[cfg(feature = "played")]
pub mod played;
mod repository;
mod retry;
mod room;
pub mod snapshot;
pub mod source;
mod transfer;

pub use client::{Hub, HubFiles, HubSettings};
pub use error::HubError;
pub use pin::Pin;
pub use repository::{Commit, Digest, Kind, RemoteFile, Repository};
pub use source::FileSource;
