//! Authentication by service-account tokens. The check is local.
//!
//! A pod carries one token for each service that it calls; the kubelet replaces a token before it expires ([`client`]).
//! The service checks signature, issuer, audience, expiry and service account ([`verify`]) against the cluster's public
//! keys ([`keys`]). It fetches the keys from the API server at its start and keeps them while the API server is away.
//! No request waits for the API server. [`http`] puts the check in front of an axum router. [`mod@serve`] serves it,
//! and [`places`] bounds the connections so that callers with a token find a place. [`flags`] are the command-line
//! flags of a service. [`local_issuer`] replaces the cluster for processes that are started by hand: it has its own
//! key, so the checks stay on.

pub mod account;
pub mod client;
mod crypto;
pub mod flags;
pub mod http;
pub mod keys;
pub mod local_issuer;
pub mod places;
pub mod serve;
pub mod verify;

pub use account::{AllowedAccount, ServiceAccount};
pub use client::TokenFile;
pub use flags::AuthFlags;
pub use http::Guard;
pub use keys::{IssuerKeys, KeyStore};
pub use local_issuer::LocalIssuer;
pub use places::CallersPlace;
pub use serve::serve;
pub use verify::{Refusal, Verifier};
