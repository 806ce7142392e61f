//! Authenticates the gateway to sandboxd: an ed25519 signature over the request and its addressee.
//!
//! The sandbox holds only the public key, so no process in it can forge a request that another sandbox obeys. Lease and
//! epoch are signed, so a request for an earlier holder is refused. The time is signed, so a recorded request cannot be
//! replayed much later.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use sha2::{Digest, Sha256};

pub const SIGNATURE_HEADER: &str = "x-grpo-signature";
pub const LEASE_HEADER: &str = "x-grpo-lease";
pub const EPOCH_HEADER: &str = "x-grpo-epoch";
pub const TIME_HEADER: &str = "x-grpo-time";

/// Maximum difference between a request's time and now, milliseconds. It covers different clocks of nodes, but not an
/// upload of an hour.
pub const MAX_SKEW_MILLIS: i64 = 120_000;

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    #[error("the key is not 32 bytes of base64 that are an ed25519 public key")]
    BadKey,
    #[error("the signature is not 64 bytes of base64")]
    Malformed,
    #[error("the signature does not fit the request")]
    Wrong,
    #[error(
        "the gateway's clock is {} s {} this sandbox's, more than {} s: set the clocks of their nodes",
        millis.unsigned_abs() / 1000,
        if *millis < 0 { "behind" } else { "ahead of" },
        MAX_SKEW_MILLIS / 1000
    )]
    Skewed {
        /// The request's time minus the time of the reader.
        millis: i64,
    },
}

/// The signed content.
#[derive(Clone, Copy, Debug)]
pub struct Signed<'a> {
    pub method: &'a str,
    /// Path with query, as sent.
    pub target: &'a str,
    pub lease: &'a str,
    pub epoch: u64,
    pub unix_millis: i64,
    pub body: &'a [u8],
}

impl Signed<'_> {
    fn message(&self) -> Vec<u8> {
        let mut message = format!(
            "{}\n{}\n{}\n{}\n{}\n",
            self.method, self.target, self.lease, self.epoch, self.unix_millis
        )
        .into_bytes();
        message.extend_from_slice(&Sha256::digest(self.body));
        message
    }
}

/// The gateway's half.
pub struct Signer(SigningKey);

impl Signer {
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(SigningKey::from_bytes(seed))
    }

    /// The public key for [`crate::KEY_ENV`].
    pub fn public_key(&self) -> String {
        STANDARD.encode(self.0.verifying_key().to_bytes())
    }

    /// The value of [`SIGNATURE_HEADER`].
    pub fn sign(&self, request: &Signed<'_>) -> String {
        STANDARD.encode(self.0.sign(&request.message()).to_bytes())
    }
}

/// sandboxd's half.
pub struct Verifier(VerifyingKey);

impl Verifier {
    pub fn from_base64(key: &str) -> Result<Self, SignatureError> {
        let bytes = STANDARD.decode(key.trim()).map_err(|_| SignatureError::BadKey)?;
        let bytes: [u8; 32] = bytes.try_into().map_err(|_| SignatureError::BadKey)?;
        VerifyingKey::from_bytes(&bytes)
            .map(Self)
            .map_err(|_| SignatureError::BadKey)
    }

    /// The checks that need no body: whether the request's time is acceptable, and whether the signature has the right
    /// form.
    pub fn precheck(unix_millis: i64, signature: &str, now: i64) -> Result<(), SignatureError> {
        timely(unix_millis, now)?;
        decoded(signature).map(|_| ())
    }

    /// `now` in unix milliseconds.
    pub fn verify(&self, request: &Signed<'_>, signature: &str, now: i64) -> Result<(), SignatureError> {
        timely(request.unix_millis, now)?;
        let signature = decoded(signature)?;
        self.0
            .verify_strict(&request.message(), &signature)
            .map_err(|_| SignatureError::Wrong)
    }
}

fn timely(unix_millis: i64, now: i64) -> Result<(), SignatureError> {
    match now.abs_diff(unix_millis) > MAX_SKEW_MILLIS.unsigned_abs() {
        true => Err(SignatureError::Skewed {
            millis: unix_millis.saturating_sub(now),
        }),
        false => Ok(()),
    }
}

fn decoded(signature: &str) -> Result<Signature, SignatureError> {
    let bytes = STANDARD.decode(signature).map_err(|_| SignatureError::Malformed)?;
    Signature::from_slice(&bytes).map_err(|_| SignatureError::Malformed)
}

#[cfg(test)]
mod tests;
