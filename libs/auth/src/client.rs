//! A caller's tokens: files that the kubelet replaces before the tokens in them expire.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use grpo_contracts::access::{Service, TOKENS};
use reqwest::RequestBuilder;
use reqwest::header::{AUTHORIZATION, HeaderValue};

/// How long a token is used before the file is read again.
const READ_AGAIN: Duration = Duration::from_secs(10);

/// The token for one service. Clones are cheap and share the token that was read.
#[derive(Clone, Debug)]
pub struct TokenFile {
    path: Arc<PathBuf>,
    read: Arc<Mutex<Read>>,
}

#[derive(Debug, Default)]
struct Read {
    at: Option<Instant>,
    header: Option<HeaderValue>,
    told: bool,
}

impl TokenFile {
    /// The token for a service in a folder of tokens.
    pub fn in_folder(folder: &Path, service: Service) -> Self {
        Self {
            path: Arc::new(folder.join(service.audience())),
            read: Arc::default(),
        }
    }

    /// The token for a service that the operator mounted into this pod.
    pub fn mounted(service: Service) -> Self {
        Self::in_folder(Path::new(TOKENS), service)
    }

    /// `Bearer <token>`. `None` if no token can be read: the service then says what is missing.
    pub fn header(&self) -> Option<HeaderValue> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if read.at.is_some_and(|at| at.elapsed() < READ_AGAIN) {
            return read.header.clone();
        }
        match std::fs::read_to_string(&*self.path) {
            Ok(token) => {
                read.header = HeaderValue::from_str(&format!("Bearer {}", token.trim())).ok();
                if let Some(header) = &mut read.header {
                    header.set_sensitive(true);
                }
                read.at = Some(Instant::now());
            }
            Err(error) => {
                // The token that was read before may still be valid.
                if !read.told {
                    read.told = true;
                    let path = self.path.display();
                    tracing::warn!(%error, %path, "no token to be read: the service will refuse calls");
                }
            }
        }
        read.header.clone()
    }

    /// Puts a token on a request, if the caller has one.
    pub fn authorize(token: Option<&Self>, request: RequestBuilder) -> RequestBuilder {
        match token {
            Some(token) => token.put_on(request),
            None => request,
        }
    }

    /// Puts the token on a request.
    pub fn put_on(&self, request: RequestBuilder) -> RequestBuilder {
        match self.header() {
            Some(header) => request.header(AUTHORIZATION, header),
            None => request,
        }
    }
}

#[cfg(test)]
mod tests;
