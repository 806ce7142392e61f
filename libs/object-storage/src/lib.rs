//! Buckets of S3, Google Cloud Storage and Azure, as a run's manifest names them.
//!
//! [`open`] creates a client from an [`ObjectStoreSource`](grpo_crds::sources::ObjectStoreSource) and its credentials;
//! [`store_of`] opens a run's store. The crate [`object_store`] implements the protocols; this crate decides on the
//! identity that signs, the proxy, and the authorities that TLS trusts. [`BucketFiles`] is a model or a dataset in a
//! bucket that a cache of [`grpo_hub::snapshot`] downloads.

mod bucket_error;
mod bucket_files;
mod credentials;
mod open;
#[cfg(feature = "played")]
pub mod played;
mod run_store;

pub use bucket_error::{BucketError, is_refusal};
pub use bucket_files::{BucketFiles, Content, MOST_OBJECTS};
pub use credentials::{Credentials, CredentialsError};
pub use open::{OpenError, Opened, open};
pub use run_store::{RunStoreError, read_store, read_store_blocking, run_store, run_store_blocking, store_of};

#[cfg(test)]
mod tests;
