//! The HTTP client of an engine's server.
//!
//! Loopback and services of the cluster are called directly. A server outside of the cluster is called as downloads
//! are: through the environment's proxies, trusting the authorities of `SSL_CERT_FILE` beside the public ones.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::header::HeaderMap;
use reqwest::{Certificate, Client, Url};

const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// How long an idle connection is kept. vLLM and SGLang close theirs after five seconds, and a request that is sent at
/// that moment is lost: the replica would look as if it did not answer.
const IDLE: Duration = Duration::from_secs(4);

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("reading the certificates in {file} (SSL_CERT_FILE): {cause}; name a PEM file of the agent's image")]
    Certificates { file: String, cause: String },
    #[error("making an HTTP client: {0}")]
    Build(#[from] reqwest::Error),
}

/// A client that sends these headers with each request.
pub fn client_of(server: &Url, headers: HeaderMap) -> Result<Client, ClientError> {
    let authorities = std::env::var_os("SSL_CERT_FILE").filter(|file| !file.is_empty());
    client(server, headers, authorities.map(PathBuf::from).as_deref())
}

fn client(server: &Url, headers: HeaderMap, authorities: Option<&Path>) -> Result<Client, ClientError> {
    let builder = Client::builder()
        .connect_timeout(CONNECT_WITHIN)
        .pool_idle_timeout(IDLE)
        .default_headers(headers);
    if is_near(server) {
        return Ok(builder.no_proxy().build()?);
    }
    let certificates = authorities.map(certificates).transpose()?.unwrap_or_default();
    let builder = certificates
        .into_iter()
        .fold(builder, reqwest::ClientBuilder::add_root_certificate);
    Ok(builder.build()?)
}

fn certificates(file: &Path) -> Result<Vec<Certificate>, ClientError> {
    let unreadable = |cause: String| ClientError::Certificates {
        file: file.display().to_string(),
        cause,
    };
    let pem = std::fs::read(file).map_err(|error| unreadable(error.to_string()))?;
    Certificate::from_pem_bundle(&pem).map_err(|error| unreadable(error.to_string()))
}

/// Whether a URL names this pod or a service of the cluster, which no proxy can reach.
fn is_near(server: &Url) -> bool {
    let host = server.host_str().unwrap_or_default();
    let host = host.trim_matches(['[', ']']).trim_end_matches('.');
    if let Ok(address) = host.parse::<IpAddr>() {
        return address.is_loopback();
    }
    let is_of_cluster = host.ends_with(".svc") || host.contains(".svc.") || host.ends_with(".cluster.local");
    !host.contains('.') || is_of_cluster
}

#[cfg(test)]
mod tests;
