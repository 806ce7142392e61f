//! A simulated bucket on a local socket, for tests: the part of S3 that reading needs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use grpo_crds::sources::ObjectStoreSource;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// The access key that the bucket accepts. The secret key is not checked.
pub const ACCESS_KEY: &str = "key";

/// A server with one bucket. It ends when this value is dropped.
pub struct PlayedBucket {
    pub endpoint: String,
    name: String,
    shared: Arc<Mutex<Objects>>,
    serving: JoinHandle<()>,
}

#[derive(Default)]
struct Objects {
    bucket: String,
    /// Bytes and ETag, by key.
    objects: BTreeMap<String, (Bytes, String)>,
    versions: u32,
    requests: Vec<String>,
}

impl Drop for PlayedBucket {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl PlayedBucket {
    pub async fn start(name: &str) -> io::Result<Self> {
        let objects = Objects {
            bucket: name.to_owned(),
            ..Objects::default()
        };
        let shared = Arc::new(Mutex::new(objects));
        let router = Router::new()
            .route("/{bucket}", get(list))
            .route("/{bucket}/{*key}", get(object))
            .with_state(shared.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let serving = tokio::spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self {
            endpoint,
            name: name.to_owned(),
            shared,
            serving,
        })
    }

    /// Stores a new version of an object.
    pub fn put(&self, key: &str, bytes: impl Into<Bytes>) {
        let mut shared = lock(&self.shared);
        shared.versions += 1;
        let tag = format!("\"{:032x}\"", shared.versions);
        shared.objects.insert(key.to_owned(), (bytes.into(), tag));
    }

    /// The source of a folder or an object, as a manifest names it.
    pub fn source(&self, path: &str) -> ObjectStoreSource {
        ObjectStoreSource {
            url: format!("s3://{}/{path}", self.name),
            endpoint: Some(self.endpoint.clone()),
            region: None,
            credentials_secret_ref: None,
        }
    }

    /// Method and path of all requests.
    pub fn requests(&self) -> Vec<String> {
        lock(&self.shared).requests.clone()
    }
}

type Shared = State<Arc<Mutex<Objects>>>;

fn lock(shared: &Mutex<Objects>) -> MutexGuard<'_, Objects> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refusal(status: StatusCode, code: &str) -> Response {
    let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>Played.</Message></Error>");
    (status, body).into_response()
}

/// The error for a refused request.
fn refused(objects: &Objects, headers: &HeaderMap, bucket: &str) -> Option<Response> {
    let signed = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    if !signed.is_some_and(|signed| signed.contains(&format!("Credential={ACCESS_KEY}/"))) {
        return Some(refusal(StatusCode::FORBIDDEN, "InvalidAccessKeyId"));
    }
    (bucket != objects.bucket).then(|| refusal(StatusCode::NOT_FOUND, "NoSuchBucket"))
}

async fn list(
    State(shared): Shared,
    Path(bucket): Path<String>,
    Query(query): Query<BTreeMap<String, String>>,
    headers: HeaderMap,
) -> Response {
    let mut shared = lock(&shared);
    shared.requests.push(format!("GET /{bucket}"));
    if let Some(refused) = refused(&shared, &headers, &bucket) {
        return refused;
    }
    let prefix = query.get("prefix").map(String::as_str).unwrap_or_default();
    let mut body = String::from("<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>false</IsTruncated>");
    for (key, (bytes, tag)) in shared.objects.iter().filter(|(key, _)| key.starts_with(prefix)) {
        let (size, tag) = (bytes.len(), tag.replace('"', "&quot;"));
        let _ = write!(
            body,
            "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>{tag}</ETag>\
             <Size>{size}</Size></Contents>"
        );
    }
    body.push_str("</ListBucketResult>");
    body.into_response()
}

async fn object(State(shared): Shared, Path((bucket, key)): Path<(String, String)>, request: Request) -> Response {
    let mut shared = lock(&shared);
    let headers = request.headers();
    shared.requests.push(format!("{} /{bucket}/{key}", request.method()));
    if let Some(refused) = refused(&shared, headers, &bucket) {
        return refused;
    }
    let Some((bytes, tag)) = shared.objects.get(&key).cloned() else {
        return refusal(StatusCode::NOT_FOUND, "NoSuchKey");
    };
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    if text(header::IF_MATCH).is_some_and(|wanted| wanted != tag) {
        return refusal(StatusCode::PRECONDITION_FAILED, "PreconditionFailed");
    }
    let range = text(header::RANGE).and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
    let from: Option<usize> = range.and_then(|from| from.parse().ok());
    let answer = Response::builder()
        .header(header::ETAG, tag)
        .header(header::LAST_MODIFIED, "Thu, 01 Jan 2026 00:00:00 GMT");
    let answer = match from {
        _ if request.method() == Method::HEAD => answer.header(header::CONTENT_LENGTH, bytes.len()).body(Body::empty()),
        Some(from) if from < bytes.len() => {
            let range = format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len());
            let answer = answer
                .status(StatusCode::PARTIAL_CONTENT)
                .header(header::CONTENT_RANGE, range);
            answer.body(Body::from(bytes.slice(from..)))
        }
        Some(_) => return refusal(StatusCode::RANGE_NOT_SATISFIABLE, "InvalidRange"),
        None => answer.body(Body::from(bytes)),
    };
    answer.unwrap_or_else(|_| refusal(StatusCode::INTERNAL_SERVER_ERROR, "InternalError"))
}
