//! An issuer with its own key, for tests, benches and processes that are started by hand. The checks stay on, and the
//! tokens look like those of a cluster.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use grpo_contracts::access::Service;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Value, json};

use crate::account::ServiceAccount;
use crate::http::Guard;
use crate::keys::{IssuerKeys, KeyStore};
use crate::verify::Verifier;

/// The key cannot be made or used.
#[derive(Debug, thiserror::Error)]
#[error("{doing}: {cause}; look at the machine's source of random numbers")]
pub struct IssuerError {
    doing: &'static str,
    cause: String,
}

/// Signs tokens with ES256.
pub struct LocalIssuer {
    pub issuer: String,
    key: EncodingKey,
    public: Value,
}

impl LocalIssuer {
    pub const ISSUER: &'static str = "https://issuer.test";
    const KEY_ID: &'static str = "local";

    /// An issuer with a new key.
    pub fn new() -> Result<Self, IssuerError> {
        crate::crypto::install();
        let failed = |doing| move |cause: String| IssuerError { doing, cause };
        let random = SystemRandom::new();
        let private = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random)
            .map_err(|error| failed("making a key")(error.to_string()))?;
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, private.as_ref(), &random)
            .map_err(|error| failed("reading a key just made")(error.to_string()))?;
        // Byte 4, then the two coordinates of 32 bytes each.
        let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
        let public = json!({
            "kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": Self::KEY_ID,
            "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y),
        });
        Ok(Self {
            issuer: Self::ISSUER.to_owned(),
            key: EncodingKey::from_ec_der(private.as_ref()),
            public,
        })
    }

    /// The content of `--issuer-file`.
    pub fn file(&self) -> String {
        json!({"issuer": self.issuer, "keys": [self.public]}).to_string()
    }

    /// The public key as a JSON Web Key.
    pub fn public_key(&self) -> Value {
        self.public.clone()
    }

    pub fn keys(&self) -> IssuerKeys {
        IssuerKeys::new(&self.issuer, std::slice::from_ref(&self.public))
    }

    /// The guard of a service that trusts this issuer.
    pub fn guard(&self, service: Service, allowed: &[ServiceAccount]) -> Guard {
        let allowed = allowed.iter().cloned().map(Into::into).collect();
        Guard::new(Verifier::new(service, allowed, KeyStore::of(self.keys())))
    }

    /// A token that is valid for an hour.
    pub fn token(&self, account: &ServiceAccount, service: Service) -> Result<String, IssuerError> {
        self.token_until(
            account,
            service.audience(),
            SystemTime::now() + Duration::from_secs(3600),
        )
    }

    /// A token for any audience, with any expiry.
    pub fn token_until(
        &self,
        account: &ServiceAccount,
        audience: &str,
        end: SystemTime,
    ) -> Result<String, IssuerError> {
        let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let begin = seconds(end.min(SystemTime::now())).saturating_sub(1);
        self.sign(&json!({
            "iss": self.issuer, "aud": [audience], "sub": account.subject(),
            "iat": begin, "nbf": begin, "exp": seconds(end),
            "kubernetes.io": {"namespace": account.namespace, "serviceaccount": {"name": account.name, "uid": "u"}},
        }))
    }

    /// A token with these claims.
    pub fn sign(&self, claims: &Value) -> Result<String, IssuerError> {
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some(Self::KEY_ID.to_owned());
        encode(&header, claims, &self.key).map_err(|error| IssuerError {
            doing: "signing a token",
            cause: error.to_string(),
        })
    }

    /// Writes tokens in the kubelet's layout: a folder with one file for each service.
    pub fn write_tokens(
        &self,
        folder: &Path,
        account: &ServiceAccount,
        services: &[Service],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        std::fs::create_dir_all(folder)?;
        for service in services {
            std::fs::write(folder.join(service.audience()), self.token(account, *service)?)?;
        }
        Ok(())
    }
}
