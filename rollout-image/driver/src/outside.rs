//! HTTP clients of servers outside of the cluster: trackers and collectors of traces.
//!
//! They use the environment's proxies, and trust the authorities of `SSL_CERT_FILE` beside the public ones, as
//! downloads do. A redirect is an answer: reqwest would turn a POST into a GET without a body.

use reqwest::redirect::Policy;
use reqwest::{Certificate, Client};
use std::time::Duration;

const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// A client; without further authorities if their file cannot be used, which is logged.
pub fn client() -> Client {
    let builder = || {
        Client::builder()
            .connect_timeout(CONNECT_WITHIN)
            .redirect(Policy::none())
    };
    let file = std::env::var_os("SSL_CERT_FILE").filter(|file| !file.is_empty());
    let certificates = file.map(|file| {
        let pem = std::fs::read(&file).map_err(|error| error.to_string());
        let read = pem.and_then(|pem| Certificate::from_pem_bundle(&pem).map_err(|error| error.to_string()));
        read.inspect_err(|error| tracing::warn!(error, file = %file.display(), "reading SSL_CERT_FILE"))
    });
    let certificates = certificates.and_then(Result::ok).unwrap_or_default();
    let with_all = certificates
        .into_iter()
        .fold(builder(), reqwest::ClientBuilder::add_root_certificate);
    // Neither setting can fail; the default client is the same without them.
    with_all.build().or_else(|_| builder().build()).unwrap_or_default()
}
