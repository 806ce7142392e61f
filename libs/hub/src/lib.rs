//! Models and datasets of the Hugging Face Hub, or of a mirror that speaks its protocol.
//!
//! A revision is pinned to a commit ([`Hub::pin`]), the commit's files are listed with their digests ([`Hub::list`]),
//! and [`snapshot::ensure`] brings the wanted ones into a cache folder. A file appears there under its name only when
//! all its bytes are on disk and have the digest of the listing; a download that was killed continues at its last byte.
//! A [`Pin`] is a commit with the files that are wanted of it: processes that read one hold the same files.
//! Files of another place than a hub are cached in the same way: it implements [`FileSource`].
//! [`dataset::split_files`] says which files a split of a dataset consists of, [`model::files`] which ones a model
//! needs.
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
