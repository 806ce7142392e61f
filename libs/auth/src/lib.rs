//! Who calls: service-account tokens, checked without asking anybody.
//!
//! A pod carries a token for each service it calls, which the kubelet replaces before it expires ([`client`]). The
//! service checks signature, issuer, audience, expiry and service account ([`verify`]) against the cluster's public
//! keys ([`keys`]), which it fetched from the API server at its start and keeps while the API server is away. No
//! request waits for the API server. [`http`] does this in front of an axum router. [`flags`] are the command-line
//! flags of a service. [`local_issuer`] stands in for a cluster where processes are started by hand: with a key of its
//! own, so that the checks stay on.

pub mod account;
pub mod client;
mod crypto;
pub mod flags;
pub mod http;
pub mod keys;
pub mod local_issuer;
pub mod verify;

pub use account::{AllowedAccount, ServiceAccount};
pub use client::TokenFile;
pub use flags::AuthFlags;
pub use http::Guard;
pub use keys::{IssuerKeys, KeyStore};
pub use local_issuer::LocalIssuer;
pub use verify::{Refusal, Verifier};
