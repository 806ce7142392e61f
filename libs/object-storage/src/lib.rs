//! Buckets of S3, Google Cloud Storage and Azure, as a run's manifest names them.
//!
//! [`open`] makes a client of an [`ObjectStoreSource`] and the credentials that go with it. The protocols are those of
//! the crate [`object_store`]; this crate says who signs, through which proxy, and whom TLS trusts.

mod credentials;
mod open;

pub use credentials::{Credentials, CredentialsError};
pub use open::{Opened, OpenError, open};

#[cfg(test)]
mod tests;
