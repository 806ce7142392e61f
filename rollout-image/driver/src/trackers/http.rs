//! Requests to the server of a tracker: the value of the mounted Secret goes out, JSON comes back.

use super::TrackerError;
use crate::outside;
use crate::retry::asked_pause;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::{Client, RequestBuilder};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

/// Of one request.
const REQUEST: Duration = Duration::from_secs(10);
/// Longest answer that is read, in bytes: MLflow describes a run with all of its curves.
const LONGEST_ANSWER: usize = 8 << 20;
/// Characters of an answer that a message quotes.
const QUOTED: usize = 300;

pub(super) struct Server {
    pub http: Client,
    /// Without a slash at its end.
    pub url: String,
    /// Of what it is, for messages: "MLflow's".
    whose: &'static str,
    /// The file with the token or key.
    secret: Option<PathBuf>,
}

impl Server {
    pub fn new(url: &str, whose: &'static str, secret: Option<PathBuf>) -> Self {
        Self {
            http: outside::client(),
            url: url.trim_end_matches('/').to_owned(),
            whose,
            secret,
        }
    }

    #[cfg(test)]
    pub fn use_secret(&mut self, file: PathBuf) {
        self.secret = Some(file);
    }

    /// The token or key; `None` if the run names none. It is read each time, because a Secret may be replaced.
    pub fn secret(&self) -> Result<Option<String>, TrackerError> {
        let Some(file) = &self.secret else {
            return Ok(None);
        };
        let read = std::fs::read_to_string(file).map_err(|source| TrackerError::Token {
            path: file.display().to_string(),
            source,
        })?;
        Ok(Some(read.trim().to_owned()))
    }

    /// Sends a request, and returns the JSON of its answer. `doing` is for messages.
    pub async fn send(&self, doing: &str, request: RequestBuilder) -> Result<Value, TrackerError> {
        let unreachable = |source: reqwest::Error| TrackerError::Unreachable {
            doing: self.at(doing),
            source: source.without_url(),
        };
        let answer = request.timeout(REQUEST).send().await.map_err(unreachable)?;
        let status = answer.status();
        let wait = wait_asked(answer.headers(), jiff::Timestamp::now());
        let body = outside::body(answer, LONGEST_ANSWER).await.map_err(unreachable)?;
        let body = body.ok_or_else(|| TrackerError::TooLong {
            doing: self.at(doing),
            most: LONGEST_ANSWER,
        })?;
        let body = String::from_utf8_lossy(&body);
        if !status.is_success() {
            return Err(TrackerError::Refused {
                doing: self.at(doing),
                status: status.as_u16(),
                says: quoted(&body),
                wait: wait.unwrap_or_default(),
            });
        }
        serde_json::from_str(&body).map_err(|_| self.foreign(doing, &body))
    }

    /// The error for an answer of another server, such as a page with a login.
    pub fn foreign(&self, doing: &str, says: &str) -> TrackerError {
        TrackerError::Foreign {
            doing: self.at(doing),
            whose: self.whose,
            says: quoted(says),
        }
    }

    /// An action with the server's address.
    pub fn at(&self, doing: &str) -> String {
        format!("{doing} at {}", outside::shown(&self.url))
    }
}

/// How long the header `Retry-After` asks its reader to wait, within bounds: it has seconds, or a date.
fn wait_asked(headers: &HeaderMap, now: jiff::Timestamp) -> Option<Duration> {
    let header = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let seconds = match header.parse::<f64>() {
        Ok(seconds) if seconds >= 0.0 => seconds.ceil() as u64,
        Ok(_) => return None,
        Err(_) => {
            let date = jiff::fmt::rfc2822::parse(header).ok()?.timestamp();
            u64::try_from(date.as_second() - now.as_second()).unwrap_or(0)
        }
    };
    Some(asked_pause(seconds))
}

/// The beginning of an answer.
pub(super) fn quoted(says: &str) -> String {
    says.chars().take(QUOTED).collect()
}

#[cfg(test)]
mod tests;
