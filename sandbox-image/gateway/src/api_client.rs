//! The client of the API server, which always gets an answer or an error within a time.
//!
//! A server that is gone without closing its connections answers nothing, and a request without a deadline would hold
//! up leases and deletions for ever.

use kube::client::ClientBuilder;
use kube::{Client, Config};
use std::time::Duration;
use tower::timeout::TimeoutLayer;

/// Longest silence within an answer: a watch ends by itself after 290 seconds.
const SILENCE: Duration = Duration::from_secs(300);

/// `answer`: the deadline until an answer begins. That of a watch begins at once.
pub fn of(mut config: Config, answer: Duration) -> Result<Client, kube::Error> {
    // A built-in retry would hide that an earlier try may have succeeded. Each caller repeats by its own rules.
    config.default_retry = false;
    config.read_timeout = Some(SILENCE);
    config.reset_reader_on_write = true;
    Ok(ClientBuilder::try_from(config)?
        .with_layer(&TimeoutLayer::new(answer))
        .build())
}

#[cfg(test)]
mod tests;
