//! Buckets of S3, Google Cloud Storage and Azure, as a run's manifest names them.
//!
//! [`open`] makes a client of an [`ObjectStoreSource`](grpo_crds::sources::ObjectStoreSource) and the credentials that
//! belong to it; [`store_of`] opens a run's store. The protocols are those of the crate [`object_store`]; this crate
//! says who signs, through which proxy, and whom TLS trusts.
//! [`BucketFiles`] are a model or a dataset of a bucket that a cache of [`grpo_hub::snapshot`] downloads.

mod bucket_error;
mod bucket_files;
mod credentials;
mod open;
#[cfg(feature = "played")]
pub mod played;
mod run_store;

pub use bucket_error::BucketError;
pub use bucket_files::{BucketFiles, Content, MOST_OBJECTS};
pub use credentials::{Credentials, CredentialsError};
pub use open::{OpenError, Opened, open};
pub use run_store::{RunStoreError, read_store, read_store_blocking, run_store, run_store_blocking, store_of};

#[cfg(test)]
mod tests;
