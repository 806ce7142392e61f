//! A simulated hub on a local socket: repositories from memory or from files, large files behind a redirect to another
//! host, listings in pages, and faults on demand.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use bytes::Bytes;
use futures::StreamExt as _;
use serde_json::{Value, json};
use sha1::Digest as _;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tokio::task::JoinHandle;

use crate::repository::{Commit, Repository};

mod content;

pub use content::Content;

/// Entries per page of a listing.
const PAGE: usize = 3;
const READ: usize = 256 << 10;

/// A fault in one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// This status; with `Retry-After: 0`.
    Status(u16),
    /// The connection is cut after this many bytes of the body.
    Cut(usize),
    /// No data arrives after this many bytes of the body.
    Stall(usize),
    /// The whole file instead of the requested range.
    IgnoreRange,
    /// One byte is changed.
    Spoil,
}

/// A received request: host (`hub` or `files`), path, range, and whether it had a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub host: &'static str,
    pub path: String,
    pub range: Option<String>,
    pub token: Option<String>,
}

#[derive(Default)]
struct Stored {
    branches: HashMap<String, Commit>,
    commits: HashMap<String, BTreeMap<String, Content>>,
    /// Reading requires this token and acceptance of the terms.
    gated: Option<String>,
}

#[derive(Default)]
struct Inner {
    /// Keyed by collection and name.
    repositories: HashMap<(String, String), Stored>,
    /// Faults for the next answers with a file's bytes, in order.
    of_files: VecDeque<Damage>,
    /// Faults for the next answers of the API, in order.
    of_api: VecDeque<Damage>,
    requests: Vec<Request>,
    files_at: String,
}

type Shared = Arc<Mutex<Inner>>;

/// Stops when this value is dropped.
pub struct PlayedHub {
    pub endpoint: String,
    inner: Shared,
    serving: [JoinHandle<io::Result<()>>; 2],
}

impl Drop for PlayedHub {
    fn drop(&mut self) {
        self.serving.iter().for_each(JoinHandle::abort);
    }
}

impl PlayedHub {
    pub async fn start() -> io::Result<Self> {
        Self::start_at("127.0.0.1").await
    }

    /// Listens on this local address, on free ports.
    pub async fn start_at(host: &str) -> io::Result<Self> {
        // The hub's own client compares hosts by name only.
        let other = if host == "127.0.0.1" { "127.0.0.2" } else { host };
        let [hub, files] = [
            tokio::net::TcpListener::bind((host, 0)).await?,
            tokio::net::TcpListener::bind((other, 0)).await?,
        ];
        let endpoint = format!("http://{}", hub.local_addr()?);
        let inner = Shared::default();
        lock(&inner).files_at = format!("http://{}", files.local_addr()?);
        let hub_routes = Router::new()
            .route("/api/{collection}/{owner}/{name}/revision/{revision}", get(revision))
            .route("/api/{collection}/{owner}/{name}/tree/{commit}", get(tree))
            .route("/datasets/{owner}/{name}/resolve/{commit}/{*path}", get(dataset_file))
            .route("/{owner}/{name}/resolve/{commit}/{*path}", get(model_file))
            .with_state(inner.clone());
        let file_routes = Router::new()
            .route("/{collection}/{owner}/{name}/{commit}/{*path}", get(large_file))
            .with_state(inner.clone());
        let serving = [
            tokio::spawn(axum::serve(hub, hub_routes).into_future()),
            tokio::spawn(axum::serve(files, file_routes).into_future()),
        ];
        Ok(Self {
            endpoint,
            inner,
            serving,
        })
    }

    /// Adds a commit with these files, and a branch that names it.
    pub fn push(&self, repository: &Repository, branch: &str, files: BTreeMap<String, Content>) -> Commit {
        let listed: Vec<Value> = files.iter().map(|(path, content)| content.entry(path)).collect();
        let hash = hex::encode(sha1::Sha1::digest(Value::from(listed).to_string()));
        let mut inner = self.lock();
        let stored = inner.repositories.entry(key(repository)).or_default();
        stored.commits.insert(hash.clone(), files);
        // A SHA-1 is a valid commit name.
        let commit = Commit::parse(&hash).unwrap_or_else(|| unreachable!("{hash}"));
        stored.branches.insert(branch.to_owned(), commit.clone());
        commit
    }

    /// Requires this token for reads.
    pub fn gate(&self, repository: &Repository, token: &str) {
        self.lock().repositories.entry(key(repository)).or_default().gated = Some(token.to_owned());
    }

    pub fn spoil_files(&self, faults: impl IntoIterator<Item = Damage>) {
        self.lock().of_files.extend(faults);
    }

    /// Cancels the remaining faults for answers with files.
    pub fn forgive(&self) {
        lock(&self.inner).of_files.clear();
    }

    pub fn spoil_api(&self, faults: impl IntoIterator<Item = Damage>) {
        self.lock().of_api.extend(faults);
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.lock().requests.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }
}

fn lock(inner: &Shared) -> MutexGuard<'_, Inner> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

fn key(repository: &Repository) -> (String, String) {
    (repository.collection().to_owned(), repository.name.clone())
}

impl Inner {
    fn note(&mut self, host: &'static str, path: String, headers: &HeaderMap) {
        let text = |name: HeaderName| {
            headers
                .get(name)
                .and_then(|value| value.to_str().ok())
                .map(str::to_owned)
        };
        let token = text(header::AUTHORIZATION).map(|value| value.trim_start_matches("Bearer ").to_owned());
        let range = text(header::RANGE);
        self.requests.push(Request {
            host,
            path,
            range,
            token,
        });
    }

    fn repository(&self, collection: &str, name: &str, headers: &HeaderMap) -> Result<&Stored, Refusal> {
        let found = self.repositories.get(&(collection.to_owned(), name.to_owned()));
        let found = found.ok_or(Refusal(StatusCode::UNAUTHORIZED, "RepoNotFound"))?;
        let sent = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        match &found.gated {
            Some(token) if sent != Some(&format!("Bearer {token}")) => Err(Refusal(StatusCode::FORBIDDEN, "GatedRepo")),
            _ => Ok(found),
        }
    }
}

impl Stored {
    fn files(&self, revision: &str) -> Result<(&str, &BTreeMap<String, Content>), Refusal> {
        let commit = self.branches.get(revision).map_or(revision, Commit::as_str);
        let found = self.commits.get_key_value(commit);
        let found = found.map(|(commit, files)| (commit.as_str(), files));
        found.ok_or(Refusal(StatusCode::NOT_FOUND, "RevisionNotFound"))
    }
}

struct Refusal(StatusCode, &'static str);

impl From<Refusal> for Response {
    fn from(Refusal(status, code): Refusal) -> Self {
        let name = HeaderName::from_static("x-error-code");
        (status, [(name, code)], code).into_response()
    }
}

fn failed(fault: Option<Damage>) -> Option<Response> {
    let Some(Damage::Status(status)) = fault else {
        return None;
    };
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    Some((status, [(header::RETRY_AFTER, "0")], "trouble").into_response())
}

async fn revision(
    State(inner): State<Shared>,
    Path((collection, owner, name, revision)): Path<(String, String, String, String)>,
    headers: HeaderMap,
) -> Response {
    let mut inner = lock(&inner);
    inner.note("hub", format!("revision {revision}"), &headers);
    if let Some(failed) = failed(inner.of_api.pop_front()) {
        return failed;
    }
    let repository = inner.repository(&collection, &format!("{owner}/{name}"), &headers);
    match repository.and_then(|stored| stored.files(&revision)) {
        Ok((commit, files)) => {
            let siblings: Vec<Value> = files.keys().map(|path| json!({"rfilename": path})).collect();
            let id = format!("{owner}/{name}");
            axum::Json(json!({"id": id, "sha": commit, "siblings": siblings})).into_response()
        }
        Err(refusal) => refusal.into(),
    }
}

async fn tree(
    State(inner): State<Shared>,
    Path((collection, owner, name, commit)): Path<(String, String, String, String)>,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
) -> Response {
    let mut inner = lock(&inner);
    inner.note("hub", format!("tree {commit}"), &headers);
    if let Some(failed) = failed(inner.of_api.pop_front()) {
        return failed;
    }
    let repository = inner.repository(&collection, &format!("{owner}/{name}"), &headers);
    let files = match repository.and_then(|stored| stored.files(&commit)) {
        Ok((_, files)) => files,
        Err(refusal) => return refusal.into(),
    };
    let from: usize = query.get("cursor").and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
    let entries: Vec<Value> = files
        .iter()
        .skip(from)
        .take(PAGE)
        .map(|(path, content)| content.entry(path))
        .collect();
    let more = from + PAGE < files.len();
    let mut response = axum::Json(entries).into_response();
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok())
        .unwrap_or_default();
    let at = format!("http://{host}/api/{collection}/{owner}/{name}/tree/{commit}");
    let next = format!("<{at}?recursive=true&cursor={}>; rel=\"next\"", from + PAGE);
    if let (true, Ok(link)) = (more, next.parse()) {
        response.headers_mut().insert(header::LINK, link);
    }
    response
}

/// Owner, name, revision and path.
type Named = (String, String, String, String);

async fn model_file(state: State<Shared>, Path(named): Path<Named>, method: Method, headers: HeaderMap) -> Response {
    file(state, "models", named, method, headers).await
}

async fn dataset_file(state: State<Shared>, Path(named): Path<Named>, method: Method, headers: HeaderMap) -> Response {
    file(state, "datasets", named, method, headers).await
}

async fn file(
    State(inner): State<Shared>,
    collection: &str,
    (owner, name, revision, path): Named,
    method: Method,
    headers: HeaderMap,
) -> Response {
    let name = format!("{owner}/{name}");
    let (content, commit, fault, files_at) = {
        let mut inner = lock(&inner);
        inner.note("hub", path.clone(), &headers);
        let found = inner
            .repository(collection, &name, &headers)
            .and_then(|stored| stored.files(&revision));
        let found = found.and_then(|(commit, files)| {
            let content = files
                .get(&path)
                .ok_or(Refusal(StatusCode::NOT_FOUND, "EntryNotFound"))?;
            Ok((content.clone(), commit.to_owned()))
        });
        let (content, commit) = match found {
            Ok(found) => found,
            Err(refusal) => return refusal.into(),
        };
        // Faults apply to answers with bytes.
        let small = matches!(content, Content::Small(_)) && method == Method::GET;
        let fault = if small { inner.of_files.pop_front() } else { None };
        (content, commit, fault, inner.files_at.clone())
    };
    let commit_header = (HeaderName::from_static("x-repo-commit"), commit.clone());
    if let Content::Small(_) = content {
        let etag = (header::ETAG, format!("\"{}\"", content.etag()));
        return ([commit_header, etag], part(content, &headers, fault).await).into_response();
    }
    let linked = [
        commit_header,
        (
            HeaderName::from_static("x-linked-etag"),
            format!("\"{}\"", content.etag()),
        ),
        (HeaderName::from_static("x-linked-size"), content.size().to_string()),
        (
            header::LOCATION,
            format!("{files_at}/{collection}/{name}/{commit}/{path}?signature=yes"),
        ),
    ];
    (StatusCode::FOUND, linked).into_response()
}

async fn large_file(
    State(inner): State<Shared>,
    Path((collection, owner, name, commit, path)): Path<(String, String, String, String, String)>,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
) -> Response {
    // A second redirect, on the same host: a client might wrongly send the token again.
    if query.get("signature").is_some_and(|signature| signature == "yes") {
        let again = format!("/{collection}/{owner}/{name}/{commit}/{path}?signature=checked");
        return (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, again)]).into_response();
    }
    let (content, fault) = {
        let mut inner = lock(&inner);
        inner.note("files", path.clone(), &headers);
        let stored = inner.repositories.get(&(collection, format!("{owner}/{name}")));
        let files = stored.and_then(|stored| stored.commits.get(&commit));
        let Some(content) = files.and_then(|files| files.get(&path)).cloned() else {
            return StatusCode::NOT_FOUND.into_response();
        };
        (content, inner.of_files.pop_front())
    };
    part(content, &headers, fault).await
}

/// The requested part of the content.
async fn part(content: Content, headers: &HeaderMap, fault: Option<Damage>) -> Response {
    if let Some(failed) = failed(fault) {
        return failed;
    }
    let asked = headers.get(header::RANGE).and_then(|value| value.to_str().ok());
    let bounds = asked.and_then(|asked| asked.strip_prefix("bytes=")?.split_once('-'));
    let size = content.size();
    let (from, to) = match bounds.filter(|_| fault != Some(Damage::IgnoreRange)) {
        Some((from, to)) => {
            let to = to.parse::<u64>().map_or(size, |last| size.min(last + 1));
            (from.parse::<u64>().unwrap_or(0), to)
        }
        None => (0, size),
    };
    if from >= size && size > 0 {
        return StatusCode::RANGE_NOT_SATISFIABLE.into_response();
    }
    let body = match content {
        Content::Small(bytes) | Content::Large(bytes) => damaged(bytes.slice(from as usize..to as usize), fault),
        Content::OnDisk { path, .. } => match from_disk(path, from, to).await {
            Ok(body) => body,
            Err(error) => return (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        },
    };
    let length = [(header::CONTENT_LENGTH, (to - from).to_string())];
    let ranged = bounds.is_some() && fault != Some(Damage::IgnoreRange);
    match ranged {
        true => {
            let range = [(
                header::CONTENT_RANGE,
                format!("bytes {from}-{}/{size}", to.saturating_sub(1)),
            )];
            (StatusCode::PARTIAL_CONTENT, length, range, body).into_response()
        }
        false => (StatusCode::OK, length, body).into_response(),
    }
}

fn damaged(bytes: Bytes, fault: Option<Damage>) -> Body {
    match fault {
        Some(Damage::Cut(after)) => {
            let first = Ok(bytes.slice(..after.min(bytes.len())));
            let cut = Err(io::Error::other("cut"));
            // The bytes before the cut must be sent first.
            let pause = futures::stream::once(async {
                tokio::task::yield_now().await;
                cut
            });
            Body::from_stream(futures::stream::iter([first]).chain(pause))
        }
        Some(Damage::Stall(after)) => {
            let first = futures::stream::iter([Ok::<_, io::Error>(bytes.slice(..after.min(bytes.len())))]);
            Body::from_stream(first.chain(futures::stream::pending()))
        }
        Some(Damage::Spoil) => {
            let mut spoilt = bytes.to_vec();
            if let Some(byte) = spoilt.last_mut() {
                *byte ^= 1;
            }
            Body::from(spoilt)
        }
        _ => Body::from(bytes),
    }
}

async fn from_disk(path: PathBuf, from: u64, to: u64) -> io::Result<Body> {
    let mut file = tokio::fs::File::open(path).await?;
    file.seek(io::SeekFrom::Start(from)).await?;
    let parts = futures::stream::unfold((file, to - from), |(mut file, left)| async move {
        let mut buffer = vec![0; READ.min(left as usize)];
        match file.read(&mut buffer).await {
            Ok(0) => None,
            Ok(count) => {
                buffer.truncate(count);
                Some((Ok(Bytes::from(buffer)), (file, left - count as u64)))
            }
            Err(error) => Some((Err(error), (file, 0))),
        }
    });
    Ok(Body::from_stream(parts))
}
