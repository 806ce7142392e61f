//! Buckets of S3, Google Cloud Storage and Azure, as a run's manifest names them.
//!
//! [`open`] makes a client of an [`ObjectStoreSource`] and the credentials that go with it. The protocols are those of
//! the crate [`object_store`]; this crate says who signs, through which proxy, and whom TLS trusts.
//! [`BucketFiles`] are a model or a dataset of a bucket that a cache of [`grpo_hub::snapshot`] downloads.

mod bucket_error;
mod bucket_files;
mod credentials;
mod open;
#[cfg(feature = "played")]
pub mod played;

pub use bucket_error::BucketError;
pub use bucket_files::{BucketFiles, Content, MOST_OBJECTS};
pub use credentials::{Credentials, CredentialsError};
pub use open::{OpenError, Opened, open};

#[cfg(test)]
mod tests;
