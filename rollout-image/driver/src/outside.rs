//! HTTP clients of servers outside of the cluster: trackers, collectors of traces, and the service of `reward.http`.
//!
//! They use the environment's proxies, and trust the authorities of `SSL_CERT_FILE` beside the public ones, as
//! downloads do. A redirect is an answer: reqwest would turn a POST into a GET without a body. Such a server also
//! decides how long its answer is, so [`body`] reads no more than its caller has a use for.

use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, ClientBuilder, Response, Url};
use std::time::Duration;

const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long an idle connection is kept: load balancers close one after a minute or later.
const IDLE: Duration = Duration::from_secs(30);

fn plain() -> ClientBuilder {
    Client::builder()
        .connect_timeout(CONNECT_WITHIN)
        .pool_idle_timeout(IDLE)
        .redirect(Policy::none())
}

/// A client; without further authorities if their file cannot be used, which is logged.
pub fn client() -> Client {
    let file = std::env::var_os("SSL_CERT_FILE").filter(|file| !file.is_empty());
    let with_authorities = file.and_then(|file| {
        let pem = std::fs::read(&file).map_err(|error| error.to_string());
        let read = pem.and_then(|pem| Certificate::from_pem_bundle(&pem).map_err(|error| error.to_string()));
        // Building the client reads the certificates themselves.
        let built = read.and_then(|read| {
            let builder = (read.into_iter()).fold(plain(), ClientBuilder::add_root_certificate);
            builder.build().map_err(|error| error.to_string())
        });
        let told = built.inspect_err(|error| tracing::warn!(error, file = %file.display(), "reading SSL_CERT_FILE"));
        told.ok()
    });
    // The other settings cannot fail.
    with_authorities.unwrap_or_else(|| plain().build().unwrap_or_default())
}

/// A server's URL as logs and records show it: without user, password and query, which may be secret.
pub fn shown(url: &str) -> String {
    let Ok(mut parsed) = Url::parse(url) else {
        return "a URL that cannot be read".to_owned();
    };
    // Only a URL without a host refuses these.
    let _ = parsed.set_username("");
    let _ = parsed.set_password(None);
    parsed.set_query(None);
    parsed.as_str().trim_end_matches('/').to_owned()
}

/// The body of an answer; `None` if it has more than `most` bytes. The rest is not read.
pub async fn body(mut answer: Response, most: usize) -> reqwest::Result<Option<Vec<u8>>> {
    let mut read = Vec::new();
    while let Some(piece) = answer.chunk().await? {
        if read.len() + piece.len() > most {
            return Ok(None);
        }
        read.extend_from_slice(&piece);
    }
    Ok(Some(read))
}

#[cfg(test)]
mod tests;
