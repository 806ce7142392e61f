//! Requests to a hub: pin a revision, list a commit, download a file from a given byte.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use reqwest::header::{AUTHORIZATION, CONTENT_RANGE, HeaderMap, HeaderValue, LINK, LOCATION, RANGE};
use reqwest::redirect::Policy;
use reqwest::{Response, StatusCode, Url};
use serde::Deserialize;

use crate::error::HubError;
use crate::repository::{Commit, RemoteFile, Repository, TreeEntry};
use crate::retry::{ATTEMPTS, asked_for, pause, text};
use crate::source::{ByteStream, FileSource, Refused};

/// The public hub.
pub const PUBLIC: &str = "https://huggingface.co";

const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// Maximum pause within an answer.
const SILENCE: Duration = Duration::from_secs(30);
const REDIRECTS: usize = 10;
/// Limits against a server that sends without end: a page of a listing, the files of all pages, the text of an error.
const PAGE_BYTES: usize = 32 << 20;
const FILES: usize = 200_000;
const ERROR_LENGTH: usize = 500;

/// The address of a hub, and the identity that is sent to it.
#[derive(Clone, Default)]
pub struct HubSettings {
    /// Default: the public hub.
    pub endpoint: Option<String>,
    pub token: Option<String>,
    /// A PEM file with additional certificate authorities.
    pub ca_bundle: Option<PathBuf>,
}

impl fmt::Debug for HubSettings {
    /// Omits the token: settings are logged.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = self.token.as_ref().map(|_| "...");
        let mut shown = f.debug_struct("HubSettings");
        shown.field("endpoint", &self.endpoint).field("token", &token);
        shown.field("ca_bundle", &self.ca_bundle).finish()
    }
}

impl HubSettings {
    /// From the variables of the hub's own tools: `HF_ENDPOINT`, `HF_TOKEN`, and `SSL_CERT_FILE`. Proxies come from
    /// `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`.
    pub fn from_env() -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        Self {
            endpoint: variable("HF_ENDPOINT"),
            token: variable("HF_TOKEN").map(|token| token.trim().to_owned()),
            ca_bundle: variable("SSL_CERT_FILE").map(PathBuf::from),
        }
    }

    /// The same settings with the token from a file, if one is given.
    pub fn with_token_file(mut self, file: Option<&Path>) -> Result<Self, HubError> {
        if let Some(file) = file {
            let unreadable = |error| HubError::Settings(format!("reading the token {}: {error}", file.display()));
            let read = std::fs::read_to_string(file).map_err(unreadable)?;
            self.token = Some(read.trim().to_owned());
        }
        Ok(self)
    }
}

/// A hub. Cloning is cheap.
#[derive(Clone)]
pub struct Hub {
    http: reqwest::Client,
    endpoint: Url,
    /// Sent only to the endpoint, never to the host that stores its files.
    authorization: Option<HeaderValue>,
}

impl Hub {
    pub fn new(settings: &HubSettings) -> Result<Self, HubError> {
        let text = settings.endpoint.as_deref().unwrap_or(PUBLIC);
        let endpoint = Url::parse(text)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https"));
        let endpoint = endpoint
            .ok_or_else(|| HubError::Settings(format!("HF_ENDPOINT is {text:?}, not a URL such as {PUBLIC}")))?;
        let mut http = reqwest::Client::builder()
            .connect_timeout(CONNECT_WITHIN)
            .read_timeout(SILENCE)
            // Redirects are followed in `ask`: on two redirects to one other host, reqwest sends the token again with
            // the second.
            .redirect(Policy::none())
            .user_agent(concat!("grpo-operator/", env!("CARGO_PKG_VERSION")));
        if let Some(file) = &settings.ca_bundle {
            let pem = std::fs::read(file).map_err(HubError::disk("reading the certificates", file))?;
            let certificates = reqwest::Certificate::from_pem_bundle(&pem)
                .map_err(|error| HubError::Settings(format!("{} is no PEM file: {error}", file.display())))?;
            for certificate in certificates {
                http = http.add_root_certificate(certificate);
            }
        }
        let http = http.build();
        let http = http.map_err(|error| HubError::Settings(format!("building a client: {}", causes(&error))))?;
        let authorization = match &settings.token {
            Some(token) if token.is_empty() => return Err(HubError::Settings("the token is empty".into())),
            Some(token) => {
                let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
                    .map_err(|_| HubError::Settings("the token holds characters that no header can carry".into()))?;
                value.set_sensitive(true);
                Some(value)
            }
            None => None,
        };
        Ok(Self {
            http,
            endpoint,
            authorization,
        })
    }

    /// The commit that a branch or tag names now. A commit is returned unchanged.
    pub async fn pin(&self, repository: &Repository, revision: Option<&str>) -> Result<Commit, HubError> {
        #[derive(Deserialize)]
        struct Revision {
            sha: String,
        }
        let revision = revision.unwrap_or("main");
        if let Some(commit) = Commit::parse(revision) {
            return Ok(commit);
        }
        let url = self.api(repository, &["revision", revision])?;
        let (body, _) = self.page(&url, repository, Some(revision)).await?;
        let answer: Revision = serde_json::from_slice(&body).map_err(malformed(&url))?;
        Commit::parse(&answer.sha).ok_or_else(|| HubError::Malformed {
            request: asking(&url),
            what: format!("sha is {:?}", answer.sha),
        })
    }

    /// All files of a commit.
    pub async fn list(&self, repository: &Repository, commit: &Commit) -> Result<Vec<RemoteFile>, HubError> {
        let mut url = self.api(repository, &["tree", commit.as_str()])?;
        url.set_query(Some("recursive=true"));
        let mut files = Vec::new();
        loop {
            let (body, next) = self.page(&url, repository, Some(commit.as_str())).await?;
            let entries: Vec<TreeEntry> = serde_json::from_slice(&body).map_err(malformed(&url))?;
            for entry in entries {
                let file = entry.file().map_err(|what| HubError::Malformed {
                    request: asking(&url),
                    what,
                })?;
                files.extend(file);
            }
            let Some(next) = next else { return Ok(files) };
            // A mirror's link may name the original hub, so only its query is used for the next page.
            let query = url.join(&next).ok().and_then(|next| next.query().map(str::to_owned));
            let query = query.filter(|query| url.query() != Some(query) && files.len() <= FILES);
            let query = query.ok_or_else(|| HubError::Malformed {
                request: asking(&url),
                what: format!(
                    "after {} files the link to the next page leads nowhere new",
                    files.len()
                ),
            })?;
            url.set_query(Some(&query));
        }
    }

    /// A small file, as text.
    pub async fn text(&self, repository: &Repository, commit: &Commit, path: &str) -> Result<String, HubError> {
        let url = self.file(repository, commit, path)?;
        let (body, _) = self.page(&url, repository, None).await?;
        String::from_utf8(body.into()).map_err(malformed(&url))
    }

    /// A whole answer, and the link to the next page. Retried on transient errors of the hub.
    async fn page(
        &self,
        url: &Url,
        repository: &Repository,
        revision: Option<&str>,
    ) -> Result<(Bytes, Option<String>), HubError> {
        let mut failed = 0;
        loop {
            let refused = match self.page_once(url, repository, revision).await {
                Ok(page) => return Ok(page),
                Err(refused) => refused,
            };
            failed += 1;
            if !refused.error.is_transient() || failed >= ATTEMPTS {
                return Err(refused.error);
            }
            tokio::time::sleep(pause(failed, refused.asked)).await;
        }
    }

    async fn page_once(
        &self,
        url: &Url,
        repository: &Repository,
        revision: Option<&str>,
    ) -> Result<(Bytes, Option<String>), Refused> {
        let response = self.ask(url, None).await?;
        let headers = response.headers().clone();
        if !response.status().is_success() {
            let error = self.refusal(url, response, repository, revision, None).await;
            let asked = asked_for(&headers);
            return Err(Refused { error, asked });
        }
        let body = body(response, PAGE_BYTES).await.map_err(transport(url))?;
        let Some(body) = body else {
            return Err(Refused::from(HubError::Malformed {
                request: asking(url),
                what: format!("more than {PAGE_BYTES} bytes"),
            }));
        };
        Ok((body, next_page(&headers)))
    }

    /// Follows redirects to the host that stores the files. Never from HTTPS to HTTP.
    async fn ask(&self, url: &Url, range: Option<&str>) -> Result<Response, HubError> {
        let (mut at, mut at_the_hub) = (url.clone(), true);
        for _ in 0..=REDIRECTS {
            at_the_hub &= at.origin() == self.endpoint.origin();
            // A compressed file would have another length and no ranges.
            let mut request = self.http.get(at.clone()).header("Accept-Encoding", "identity");
            if let Some(value) = self.authorization.as_ref().filter(|_| at_the_hub) {
                request = request.header(AUTHORIZATION, value);
            }
            if let Some(range) = range {
                request = request.header(RANGE, range);
            }
            let response = request.send().await.map_err(transport(&at))?;
            if !response.status().is_redirection() {
                return Ok(response);
            }
            let location = text(response.headers(), LOCATION.as_str());
            let next = location.and_then(|location| at.join(location).ok());
            let next = next.filter(|next| next.scheme() == "https" || next.scheme() == "http" && at.scheme() == "http");
            at = next.ok_or_else(|| HubError::Malformed {
                request: asking(&at),
                what: "a redirect to nowhere, or from https to http".to_owned(),
            })?;
        }
        Err(HubError::Malformed {
            request: asking(url),
            what: format!("more than {REDIRECTS} redirects"),
        })
    }

    /// Turns an unsuccessful answer into an error.
    async fn refusal(
        &self,
        url: &Url,
        response: Response,
        repository: &Repository,
        revision: Option<&str>,
        path: Option<&str>,
    ) -> HubError {
        let header = |name| text(response.headers(), name).map(str::to_owned);
        let (status, code, message) = (response.status(), header("X-Error-Code"), header("X-Error-Message"));
        let repository = repository.clone();
        match (status.as_u16(), code.as_deref(), revision, path) {
            (_, Some("GatedRepo"), ..) => HubError::Gated { repository },
            (_, Some("RevisionNotFound"), Some(revision), _) => HubError::NoRevision {
                revision: revision.to_owned(),
                repository,
            },
            (_, Some("EntryNotFound"), Some(commit), Some(path)) => HubError::NoFile {
                repository,
                commit: commit.to_owned(),
                path: path.to_owned(),
            },
            (401, ..) if self.authorization.is_some() => HubError::TokenRefused {
                repository,
                message: message.unwrap_or_default(),
            },
            (_, Some("RepoNotFound"), ..) | (401 | 404, None, ..) => HubError::NoRepository { repository },
            (status, ..) => {
                let told = body(response, PAGE_BYTES).await.ok().flatten().unwrap_or_default();
                let told = String::from_utf8_lossy(&told);
                let body = message.unwrap_or_else(|| told.chars().take(ERROR_LENGTH).collect());
                HubError::Status {
                    request: asking(url),
                    status,
                    body,
                }
            }
        }
    }

    fn api(&self, repository: &Repository, below: &[&str]) -> Result<Url, HubError> {
        let name = repository.name.split('/');
        let parts = ["api", repository.collection()].into_iter().chain(name);
        self.url(parts.chain(below.iter().copied()))
    }

    fn file(&self, repository: &Repository, commit: &Commit, path: &str) -> Result<Url, HubError> {
        let collection = Some(repository.collection()).filter(|collection| *collection != "models");
        let parts = collection.into_iter().chain(repository.name.split('/'));
        self.url(parts.chain(["resolve", commit.as_str()]).chain(path.split('/')))
    }

    /// Each part is one segment: a slash in it is escaped, as in the branch name `refs/convert/parquet`.
    fn url<'a>(&self, parts: impl IntoIterator<Item = &'a str>) -> Result<Url, HubError> {
        let mut url = self.endpoint.clone();
        let no_path = |()| HubError::Settings(format!("HF_ENDPOINT {} has no path", self.endpoint));
        url.path_segments_mut().map_err(no_path)?.pop_if_empty().extend(parts);
        Ok(url)
    }
}

/// A hub repository as a source of files.
#[derive(Clone, Copy)]
pub struct HubFiles<'a> {
    pub hub: &'a Hub,
    pub repository: &'a Repository,
}

impl fmt::Display for HubFiles<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.repository.fmt(f)
    }
}

impl FileSource for HubFiles<'_> {
    fn folder(&self) -> String {
        self.repository.folder()
    }

    async fn bytes(&self, commit: &Commit, file: &RemoteFile, from: u64) -> Result<(u64, ByteStream), Refused> {
        let Self { hub, repository } = *self;
        let url = hub.file(repository, commit, &file.path)?;
        let range = (from > 0).then(|| format!("bytes={from}-"));
        let response = hub.ask(&url, range.as_deref()).await?;
        let begins = match response.status() {
            StatusCode::PARTIAL_CONTENT => Some(from).filter(|from| {
                let told = text(response.headers(), CONTENT_RANGE.as_str());
                told.is_some_and(|told| told.starts_with(&format!("bytes {from}-")))
            }),
            StatusCode::OK => Some(0),
            _ => {
                let asked = asked_for(response.headers());
                let (revision, path) = (Some(commit.as_str()), Some(file.path.as_str()));
                let error = hub.refusal(&url, response, repository, revision, path).await;
                return Err(Refused { error, asked });
            }
        };
        let request = asking(&url);
        let begins = begins.ok_or_else(|| HubError::Malformed {
            request: request.clone(),
            what: format!("another part of the file than that from byte {from}"),
        })?;
        let stream = response.bytes_stream().map(move |part| {
            part.map_err(|error| HubError::Transport {
                request: request.clone(),
                cause: causes(&error),
            })
        });
        Ok((begins, stream.boxed()))
    }
}

/// `None` if the body is longer.
async fn body(response: Response, most: usize) -> Result<Option<Bytes>, reqwest::Error> {
    let (mut stream, mut all) = (response.bytes_stream(), BytesMut::new());
    while let Some(part) = stream.next().await {
        all.extend_from_slice(&part?);
        if all.len() > most {
            return Ok(None);
        }
    }
    Ok(Some(all.freeze()))
}

/// `Link: <https://...>; rel="next"`.
fn next_page(headers: &HeaderMap) -> Option<String> {
    let links = text(headers, LINK.as_str())?;
    let mut links = links.split('<').skip(1).filter_map(|link| link.split_once('>'));
    let next = links.find(|(_, relation)| relation.contains("rel=\"next\""))?;
    Some(next.0.to_owned())
}

/// A request without credentials: without signatures in the query, and without a password.
fn asking(url: &Url) -> String {
    let mut shown = url.clone();
    shown.set_query(None);
    let _ = shown.set_username("");
    let _ = shown.set_password(None);
    format!("GET {shown}")
}

fn transport(url: &Url) -> impl FnOnce(reqwest::Error) -> HubError {
    let request = asking(url);
    move |error| HubError::Transport {
        request,
        cause: causes(&error.without_url()),
    }
}

fn malformed<E: std::fmt::Display>(url: &Url) -> impl FnOnce(E) -> HubError {
    let request = asking(url);
    move |error| HubError::Malformed {
        request,
        what: error.to_string(),
    }
}

/// reqwest's own message says only that sending failed; the cause is in its sources.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
