//! Token verification: signature, issuer, audience, time and service account.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use grpo_contracts::access::Service;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Validation, decode, decode_header};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::account::{AllowedAccount, ServiceAccount};
use crate::keys::{IssuerKeys, KeyStore};

/// Longer tokens are not read. A Kubernetes token has about a kilobyte.
pub const MAX_TOKEN_BYTES: usize = 8 << 10;
/// Allowed clock difference, in seconds.
const LEEWAY: u64 = 10;
/// Number of tokens in the cache, all of them of allowed accounts: tokens of other accounts would take their places. A
/// signature is checked once, not with every request.
const REMEMBERED: usize = 1024;

/// Why a caller is refused. Each message says what to do next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("no token: send 'Authorization: Bearer <token>' with a service-account token for the audience {audience}")]
    NoToken { audience: &'static str },
    #[error("the token is no service-account token: {why}; send one for the audience {audience}")]
    Malformed { why: String, audience: &'static str },
    #[error(
        "the token is signed with a key that the cluster does not publish; send a token of this cluster, and if its keys were just changed ask again in some seconds"
    )]
    UnknownKey,
    #[error("the token's signature is wrong; send a token of this cluster")]
    BadSignature,
    #[error("the token has expired; read it again from its file, which the kubelet keeps fresh, or ask for another")]
    Expired,
    #[error("the token is not valid yet; compare the clocks of the nodes")]
    Early,
    #[error("the token is of another issuer than {issuer}; send a token of this cluster")]
    WrongIssuer { issuer: String },
    #[error("the token is for another audience; ask for one with the audience {audience}")]
    WrongAudience { audience: &'static str },
    #[error("the service account {account} may not call this service; allowed: {allowed}")]
    NotAllowed { account: ServiceAccount, allowed: String },
    #[error("the cluster's keys were not fetched yet, so no token can be checked; ask again in some seconds")]
    NoKeys,
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
    exp: u64,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Kubernetes,
}

#[derive(Deserialize)]
struct Kubernetes {
    namespace: String,
    serviceaccount: Named,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

struct Remembered {
    account: ServiceAccount,
    expires: u64,
    /// The keys that verified the token. If the keys change, the token is checked again.
    keys: Arc<IssuerKeys>,
}

/// Checks the tokens of one service.
pub struct Verifier {
    service: Service,
    /// Of this instance of the service, beside the audience of all its instances.
    own_audience: Option<String>,
    allowed: Vec<AllowedAccount>,
    keys: KeyStore,
    remembered: Mutex<HashMap<[u8; 32], Remembered>>,
}

impl Verifier {
    /// With an empty list, every caller is refused.
    pub fn new(service: Service, allowed: Vec<AllowedAccount>, keys: KeyStore) -> Self {
        crate::crypto::install();
        Self {
            service,
            own_audience: None,
            allowed,
            keys,
            remembered: Mutex::default(),
        }
    }

    /// Accepts tokens for this audience too.
    pub fn accepting(mut self, audience: String) -> Self {
        self.own_audience = Some(audience);
        self
    }

    pub fn service(&self) -> Service {
        self.service
    }

    /// The account of this token.
    pub fn verify(&self, token: &str) -> Result<ServiceAccount, Refusal> {
        let account = self.account(token)?;
        match self.allows(&account) {
            true => Ok(account),
            false => {
                let allowed: Vec<String> = self.allowed.iter().map(AllowedAccount::to_string).collect();
                Err(Refusal::NotAllowed {
                    account,
                    allowed: allowed.join(", "),
                })
            }
        }
    }

    fn allows(&self, account: &ServiceAccount) -> bool {
        self.allowed.iter().any(|allowed| allowed.allows(account))
    }

    fn account(&self, token: &str) -> Result<ServiceAccount, Refusal> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(self.malformed(format!("it is longer than {MAX_TOKEN_BYTES} bytes")));
        }
        let keys = self.keys.current().ok_or(Refusal::NoKeys)?;
        // The lookup compares digests, not the secret itself.
        let digest: [u8; 32] = Sha256::digest(token).into();
        if let Some(account) = self.recall(&digest, &keys)? {
            return Ok(account);
        }
        let (account, expires) = self.check(token, &keys)?;
        if !self.allows(&account) {
            return Ok(account);
        }
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.len() >= REMEMBERED {
            let now = now();
            remembered.retain(|_, known| known.expires > now);
        }
        if remembered.len() < REMEMBERED {
            let account = account.clone();
            remembered.insert(digest, Remembered { account, expires, keys });
        }
        Ok(account)
    }

    fn recall(&self, digest: &[u8; 32], keys: &Arc<IssuerKeys>) -> Result<Option<ServiceAccount>, Refusal> {
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = remembered.get(digest) else {
            return Ok(None);
        };
        if known.expires.saturating_add(LEEWAY) <= now() {
            remembered.remove(digest);
            return Err(Refusal::Expired);
        }
        if !Arc::ptr_eq(&known.keys, keys) {
            remembered.remove(digest);
            return Ok(None);
        }
        Ok(Some(known.account.clone()))
    }

    fn check(&self, token: &str, keys: &IssuerKeys) -> Result<(ServiceAccount, u64), Refusal> {
        let audience = self.service.audience();
        let header = decode_header(token).map_err(|error| self.malformed(error.to_string()))?;
        let id = header
            .kid
            .ok_or_else(|| self.malformed("its header names no key".to_owned()))?;
        let Some((algorithm, key)) = keys.key(&id) else {
            self.keys.want_newer();
            return Err(Refusal::UnknownKey);
        };
        let mut wanted = Validation::new(*algorithm);
        wanted.leeway = LEEWAY;
        wanted.validate_nbf = true;
        let audiences: Vec<&str> = [audience].into_iter().chain(self.own_audience.as_deref()).collect();
        wanted.set_audience(&audiences);
        wanted.set_issuer(&[&keys.issuer]);
        wanted.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        let claims: Claims = match decode(token, key, &wanted) {
            Ok(decoded) => decoded.claims,
            Err(error) => {
                return Err(match error.kind() {
                    ErrorKind::InvalidSignature => Refusal::BadSignature,
                    ErrorKind::ExpiredSignature => Refusal::Expired,
                    ErrorKind::ImmatureSignature => Refusal::Early,
                    ErrorKind::InvalidAudience => Refusal::WrongAudience { audience },
                    ErrorKind::InvalidIssuer => Refusal::WrongIssuer {
                        issuer: keys.issuer.clone(),
                    },
                    _ => self.malformed(error.to_string()),
                });
            }
        };
        let account = ServiceAccount::new(claims.kubernetes.namespace, claims.kubernetes.serviceaccount.name);
        if account.subject() != claims.sub {
            return Err(self.malformed("its subject and its account differ".to_owned()));
        }
        Ok((account, claims.exp))
    }

    fn malformed(&self, why: String) -> Refusal {
        Refusal::Malformed {
            why,
            audience: self.service.audience(),
        }
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;
