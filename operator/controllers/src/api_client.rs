//! Access to the API server: counts every request, sends writes only while this replica's write window is open, and
//! makes every time in an answer readable.
//!
//! Every client with write access to an object can write a time into its `metadata.managedFields`. The API server
//! accepts the last two days of the year 9999; jiff does not. One such object would make a whole list unreadable, and
//! the operator could serve no user. So answers pass with the times of these two days moved back by ten days; the name
//! of a field decides whether it holds a time.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use hyper::{
    Method, Request, Response,
    body::{Body as HttpBody, Bytes, Frame},
};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder},
};
use memchr::memmem;
use tower::{BoxError, Layer, Service};

use crate::{lease::WriteWindow, metrics::Metrics};

/// Creates a client from the environment: the kubeconfig, or the service account of the pod.
pub async fn connect(metrics: &Metrics, window: &Arc<WriteWindow>) -> Result<Client, kube::Error> {
    let config = Config::infer().await.map_err(kube::Error::InferConfig)?;
    client(config, metrics, window)
}

fn client(mut config: Config, metrics: &Metrics, window: &Arc<WriteWindow>) -> Result<Client, kube::Error> {
    // A built-in retry would bypass the doorkeeper, perhaps after the window has closed. Reconciles retry instead.
    config.default_retry = false;
    let doorkeeper = Doorkeeper {
        metrics: metrics.clone(),
        window: window.clone(),
    };
    Ok(ClientBuilder::try_from(config)?.with_layer(&doorkeeper).build())
}

/// A write was held back: another replica may be active.
#[derive(Debug, thiserror::Error)]
#[error("nothing is written while this replica cannot renew its Lease; it is tried again")]
struct WriteWindowClosed;

/// The layer between the operator and the API server.
#[derive(Clone)]
struct Doorkeeper {
    metrics: Metrics,
    window: Arc<WriteWindow>,
}

impl<S> Layer<S> for Doorkeeper {
    type Service = Kept<S>;

    fn layer(&self, inner: S) -> Kept<S> {
        let keeper = self.clone();
        Kept { inner, keeper }
    }
}

struct Kept<S> {
    inner: S,
    keeper: Doorkeeper,
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError>> + Send>>;

impl<S, B> Service<Request<Body>> for Kept<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<UnsyncBoxBody<Bytes, BoxError>>;
    type Error = BoxError;
    type Future = Answer;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let verb = verb(request.method(), request.uri().path(), request.uri().query());
        if !(self.keeper.window.is_open() || may_be_sent_by_anybody(&request)) {
            return Box::pin(std::future::ready(Err(WriteWindowClosed.into())));
        }
        let (metrics, begun) = (self.keeper.metrics.clone(), Instant::now());
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await.map_err(Into::into);
            let code = answer.as_ref().ok().map(|answer| answer.status().as_u16());
            metrics.requested(verb, code, begun.elapsed());
            let mut mended = Mended::default();
            Ok(answer?.map(|body| {
                body.map_frame(move |frame| mended.frame(frame))
                    .map_err(Into::into)
                    .boxed_unsync()
            }))
        })
    }
}

/// Whether a request may leave while the window is closed: reads, and requests for the Lease itself.
fn may_be_sent_by_anybody(request: &Request<Body>) -> bool {
    request.method() == Method::GET || request.uri().path().starts_with("/apis/coordination.k8s.io/")
}

/// The request's verb in RBAC rules.
fn verb(method: &Method, path: &str, query: Option<&str>) -> &'static str {
    if query.is_some_and(|query| query.split('&').any(|part| part == "watch=true" || part == "watch=1")) {
        return "watch";
    }
    match *method {
        Method::GET if names_one(path) => "get",
        Method::GET => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "other",
    }
}

/// Whether a path names one object rather than a list of a kind.
fn names_one(path: &str) -> bool {
    let mut parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    // /api/v1/… or /apis/group/version/…
    let prefix = if parts.first() == Some(&"api") { 2 } else { 3 };
    parts.drain(..prefix.min(parts.len()));
    if parts.first() == Some(&"namespaces") && parts.len() > 2 {
        parts.drain(..2);
    }
    parts.len() > 1
}

/// The beginning of a time that jiff cannot read, as the API server writes it. The last digit makes it unreadable;
/// another digit follows.
const LATE: &[u8] = b"\":\"9999-12-3";
/// The endings of the names of time fields.
const TIMES: [&[u8]; 4] = [b"time", b"Time", b"Timestamp", b"Before"];
/// Length of the longest of these endings.
const LOOK_BACK: usize = 9;

/// Changes times in passing data. Chunks of an answer end anywhere, so a possible beginning of a time at the end of a
/// chunk waits for the next chunk.
#[derive(Default)]
struct Mended {
    /// The possible beginning that waits.
    kept: Vec<u8>,
    /// The end of the data before it.
    before: Vec<u8>,
}

impl Mended {
    fn frame(&mut self, frame: Frame<Bytes>) -> Frame<Bytes> {
        match frame.into_data() {
            Ok(data) => Frame::data(self.data(data)),
            Err(frame) => frame,
        }
    }

    fn data(&mut self, mut data: Bytes) -> Bytes {
        if !self.kept.is_empty() {
            data = [std::mem::take(&mut self.kept).as_slice(), &data].concat().into();
        }
        // An answer is JSON: it never ends with the bytes that wait here.
        self.kept = data.split_off(data.len() - begun(&data)).to_vec();
        let late: Vec<usize> = memmem::find_iter(&data, LATE)
            .filter(|at| self.is_time(&data[..*at]))
            .collect();
        if !late.is_empty() {
            let mut mended = Vec::from(data);
            for at in late {
                mended[at + LATE.len() - 1] = b'2';
            }
            data = mended.into();
        }
        self.before
            .extend_from_slice(&data[data.len().saturating_sub(LOOK_BACK)..]);
        self.before.drain(..self.before.len().saturating_sub(LOOK_BACK));
        data
    }

    /// Whether the field name that ends here is the name of a time field.
    fn is_time(&self, until: &[u8]) -> bool {
        let name = [&self.before, &until[until.len().saturating_sub(LOOK_BACK)..]].concat();
        TIMES.iter().any(|end| name.ends_with(end))
    }
}

/// Number of bytes at the end that may be the beginning of a late time.
fn begun(data: &[u8]) -> usize {
    let longest = data.len().min(LATE.len() - 1);
    (1..=longest)
        .rev()
        .find(|length| data.ends_with(&LATE[..*length]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests;
