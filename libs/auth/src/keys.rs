//! The public keys of a cluster's issuer: their source and their refresh.
//!
//! The keys are fetched at the start, at intervals, and when a token names an unknown key, which happens after the
//! cluster rotates its keys. Fetched keys stay until newer ones replace them, no matter how long the API server is
//! away.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use grpo_contracts::access::API_SERVER_ACCESS;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Notify;

/// Pause between two fetches that no token asked for.
const REFRESH: Duration = Duration::from_secs(600);
/// Pause between two fetches that unknown keys caused. Any caller can name an unknown key.
const SOONEST: Duration = Duration::from_secs(5);
/// First and longest pause between fetches while there are no keys.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
const DEADLINE: Duration = Duration::from_secs(10);

/// Why there are no keys, or no newer ones.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    #[error("cannot read {path}: {cause}; {next}")]
    Read {
        path: PathBuf,
        cause: std::io::Error,
        next: &'static str,
    },
    #[error("{path} is no set of keys: {cause}; it must be {{\"issuer\": …, \"keys\": [JWK, …]}}")]
    File { path: PathBuf, cause: String },
    #[error(
        "this process is not in a pod (KUBERNETES_SERVICE_HOST is not set), so it cannot fetch the cluster's keys; name a file with --issuer-file"
    )]
    NoCluster,
    #[error("asking the API server for {url}: {cause}; trying again")]
    ApiServer { url: String, cause: String },
}

/// An issuer and its signing keys.
#[derive(Clone)]
pub struct IssuerKeys {
    pub issuer: String,
    keys: HashMap<String, (Algorithm, DecodingKey)>,
}

impl IssuerKeys {
    /// Takes the keys of a JSON Web Key Set that have an id and are for RS256 or ES256.
    pub fn new(issuer: impl Into<String>, keys: &[Value]) -> Self {
        let keys = keys.iter().filter_map(|key| {
            let key: Jwk = Jwk::deserialize(key).ok()?;
            let algorithm = match &key.algorithm {
                AlgorithmParameters::RSA(_) => Algorithm::RS256,
                AlgorithmParameters::EllipticCurve(curve) if curve.curve == EllipticCurve::P256 => Algorithm::ES256,
                _ => return None,
            };
            let stated = key.common.key_algorithm.map(|stated| stated.to_string());
            if stated.is_some_and(|stated| stated != format!("{algorithm:?}")) {
                return None;
            }
            Some((
                key.common.key_id.clone()?,
                (algorithm, DecodingKey::from_jwk(&key).ok()?),
            ))
        });
        Self {
            issuer: issuer.into(),
            keys: keys.collect(),
        }
    }

    pub(crate) fn key(&self, id: &str) -> Option<&(Algorithm, DecodingKey)> {
        self.keys.get(id)
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

#[derive(Deserialize)]
struct FileOfKeys {
    issuer: String,
    keys: Vec<Value>,
}

#[derive(Deserialize)]
struct Discovery {
    issuer: String,
}

/// The source of the keys.
#[derive(Clone, Debug)]
pub enum KeySource {
    /// The API server, which this pod reaches with its own service account.
    Cluster { url: String, access: PathBuf },
    /// A file, for processes that are started by hand.
    File(PathBuf),
}

impl KeySource {
    /// The API server of this pod's cluster.
    pub fn cluster() -> Result<Self, KeysError> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let host = variable("KUBERNETES_SERVICE_HOST").ok_or(KeysError::NoCluster)?;
        let port = variable("KUBERNETES_SERVICE_PORT").unwrap_or_else(|| "443".to_owned());
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        Ok(Self::Cluster {
            url: format!("https://{host}:{port}"),
            access: PathBuf::from(API_SERVER_ACCESS),
        })
    }

    pub async fn fetch(&self) -> Result<IssuerKeys, KeysError> {
        match self {
            Self::File(path) => from_file(path),
            Self::Cluster { url, access } => from_api_server(url, access).await,
        }
    }
}

/// Reads a small file synchronously, so that the process has its keys before its first caller arrives.
pub(crate) fn from_file(path: &Path) -> Result<IssuerKeys, KeysError> {
    let bytes = std::fs::read(path).map_err(|cause| KeysError::Read {
        path: path.to_owned(),
        cause,
        next: "name another file with --issuer-file",
    })?;
    let set: FileOfKeys = serde_json::from_slice(&bytes).map_err(|error| KeysError::File {
        path: path.to_owned(),
        cause: error.to_string(),
    })?;
    Ok(IssuerKeys::new(set.issuer, &set.keys))
}

async fn read(path: &Path, next: &'static str) -> Result<Vec<u8>, KeysError> {
    tokio::fs::read(path).await.map_err(|cause| KeysError::Read {
        path: path.to_owned(),
        cause,
        next,
    })
}

async fn from_api_server(url: &str, access: &Path) -> Result<IssuerKeys, KeysError> {
    let next = "the operator mounts it; look at the pod's volumes";
    let (authority, token) = (
        read(&access.join("ca.crt"), next).await?,
        read(&access.join("token"), next).await?,
    );
    let failed = |url: &str| {
        let url = url.to_owned();
        move |error: reqwest::Error| KeysError::ApiServer {
            url,
            cause: causes(&error),
        }
    };
    let mut client = reqwest::Client::builder()
        .tls_built_in_root_certs(false)
        .timeout(DEADLINE)
        .no_proxy();
    for certificate in reqwest::Certificate::from_pem_bundle(&authority).map_err(failed(url))? {
        client = client.add_root_certificate(certificate);
    }
    let client = client.build().map_err(failed(url))?;
    let token = String::from_utf8_lossy(&token).trim().to_owned();
    let ask = async |path: &str| {
        let url = format!("{url}{path}");
        let answer = client.get(&url).bearer_auth(&token).send().await;
        let answer = answer
            .and_then(reqwest::Response::error_for_status)
            .map_err(failed(&url))?;
        answer.json::<Value>().await.map_err(failed(&url))
    };
    let odd = |path: &str, error: serde_json::Error| KeysError::ApiServer {
        url: format!("{url}{path}"),
        cause: error.to_string(),
    };
    let (discovery, keys) = ("/.well-known/openid-configuration", "/openid/v1/jwks");
    let found = Discovery::deserialize(ask(discovery).await?).map_err(|error| odd(discovery, error))?;
    let set = KeySet::deserialize(ask(keys).await?).map_err(|error| odd(keys, error))?;
    Ok(IssuerKeys::new(found.issuer, &set.keys))
}

fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// The current keys. Cloning is cheap.
#[derive(Clone, Default)]
pub struct KeyStore {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    current: RwLock<Option<Arc<IssuerKeys>>>,
    wanted: Notify,
    changed: Notify,
}

impl KeyStore {
    /// A store that already has keys.
    pub fn of(keys: IssuerKeys) -> Self {
        let store = Self::default();
        store.set(keys);
        store
    }

    /// `None` until the first fetch has succeeded.
    pub fn current(&self) -> Option<Arc<IssuerKeys>> {
        let current = self.shared.current.read();
        current.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set(&self, keys: IssuerKeys) {
        *self.shared.current.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(keys));
        self.shared.changed.notify_waiters();
    }

    /// Asks for a fetch, because a token names an unknown key.
    pub(crate) fn want_newer(&self) {
        self.shared.wanted.notify_one();
    }

    /// Waits for the first keys.
    pub async fn filled(&self) {
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.current().is_some() {
                return;
            }
            changed.await;
        }
    }

    /// Fetches keys for as long as the process lives.
    pub async fn keep_fresh(self, source: KeySource) {
        let mut pause = FIRST_PAUSE;
        loop {
            match source.fetch().await {
                Ok(keys) if keys.is_empty() => {
                    tracing::warn!(
                        ?source,
                        "the issuer has no key for RS256 or ES256; keeping the keys known before"
                    );
                }
                Ok(keys) => {
                    tracing::debug!(issuer = keys.issuer, keys = keys.len(), "keys of the issuer");
                    self.set(keys);
                }
                Err(error) => tracing::warn!(%error, "the issuer's keys stay as they are"),
            }
            if self.current().is_none() {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
                continue;
            }
            tokio::time::sleep(SOONEST).await;
            let _ = tokio::time::timeout(REFRESH, self.shared.wanted.notified()).await;
        }
    }
}

#[cfg(test)]
mod tests;
