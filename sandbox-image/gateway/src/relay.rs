//! Relays out of sandboxes: serves connections to a port inside as HTTP, and forwards their requests to the one service
//! that the driver named.
//!
//! A request over such a connection comes from the sandbox: the gateway sets the header with its lease and removes a
//! value from the sandbox itself. Only paths below the named path of the service can be reached.
//!
//! A request that no service takes waits: a driver that restarts comes back, or the next one leads the relay elsewhere.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use grpo_sandbox_protocol::{RELAY_LEASE_HEADER, RELAY_TARGET};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode, Uri, Version};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use regex_lite::Regex;
use tokio::sync::watch;
use tokio::time::Instant;

/// Maximum ports of one lease.
pub(crate) const PORTS: usize = 8;
const LONGEST_TARGET: usize = 2048;
/// How long a request waits for a service. A new driver holds it further, and clients give up a request without headers
/// after two minutes.
const HOLD: Duration = Duration::from_secs(60);
/// Pause before the service is tried again.
const PAUSE: Duration = Duration::from_secs(1);
/// A service whose node is lost closes no connection, and answers of models take minutes. So a silent service is asked
/// after this time, and given up after three questions without an answer: the request would wait for the lease's end.
const SERVICE_SILENT: Duration = Duration::from_secs(30);
const ASK_AGAIN: Duration = Duration::from_secs(10);
const QUESTIONS: u32 = 3;
/// When a client may repeat a request that no service answered, in seconds. It has waited before.
const AGAIN_AFTER: &str = "5";

type ByteStream = BoxBody<Bytes, hyper::Error>;
type Answer = Response<ByteStream>;

/// The open relays, and the client for services.
pub struct Relays {
    client: Client<HttpConnector, Lent>,
    open: Mutex<HashMap<(String, u16), Relay>>,
}

struct Relay {
    epoch: u64,
    to: watch::Sender<Uri>,
}

/// The state of a port after a request for it.
pub(crate) enum Noted {
    /// Its connections are to be fetched, for the service that the receiver names.
    New(watch::Receiver<Uri>),
    /// Another request has opened it; it leads to the new service.
    IsOpen,
    TooMany,
}

impl Default for Relays {
    fn default() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(Duration::from_secs(5)));
        connector.set_keepalive(Some(SERVICE_SILENT));
        connector.set_keepalive_interval(Some(ASK_AGAIN));
        connector.set_keepalive_retries(Some(QUESTIONS));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .build(connector);
        Self {
            client,
            open: Mutex::default(),
        }
    }
}

impl Relays {
    /// How many ports are open.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<(String, u16), Relay>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the target of an open port. False if it is not open.
    pub(crate) fn led_elsewhere(&self, lease: &str, epoch: u64, port: u16, to: &Uri) -> bool {
        let open = self.lock();
        let relay = open.get(&(lease.to_owned(), port)).filter(|relay| relay.epoch == epoch);
        relay.is_some_and(|relay| {
            relay.to.send_replace(to.clone());
            true
        })
    }

    /// Adds a port, if the lease may have another. Two calls may open the same port at one time: the later one only
    /// leads it elsewhere, or the connections of the first would go to its own service for ever.
    pub(crate) fn note(&self, lease: &str, epoch: u64, port: u16, to: Uri) -> Noted {
        let mut open = self.lock();
        let key = (lease.to_owned(), port);
        if let Some(relay) = open.get(&key).filter(|relay| relay.epoch == epoch) {
            relay.to.send_replace(to);
            return Noted::IsOpen;
        }
        let of_lease = open
            .iter()
            .filter(|((of, _), relay)| of == lease && relay.epoch == epoch);
        if of_lease.count() >= PORTS {
            return Noted::TooMany;
        }
        let (sender, receiver) = watch::channel(to);
        open.insert(key, Relay { epoch, to: sender });
        Noted::New(receiver)
    }

    pub(crate) fn forget(&self, lease: &str, epoch: u64, port: u16) {
        let mut open = self.lock();
        let key = (lease.to_owned(), port);
        if open.get(&key).is_some_and(|relay| relay.epoch == epoch) {
            open.remove(&key);
        }
    }
}

impl Relays {
    /// Passes a request on to the service that `to` names, also if it names another one while the request waits.
    pub(crate) async fn pass_on(&self, request: Request<ByteStream>, lease: &str, to: &watch::Receiver<Uri>) -> Answer {
        let (mut head, body) = request.into_parts();
        let Ok(name) = HeaderValue::from_str(lease) else {
            return refusal(StatusCode::BAD_REQUEST, "the lease's name cannot be sent in a header");
        };
        head.version = Version::HTTP_11;
        strip(&mut head.headers);
        head.headers.remove(header::HOST);
        head.headers.insert(HeaderName::from_static(RELAY_LEASE_HEADER), name);
        let (asked, body, mut to) = (std::mem::take(&mut head.uri), Lent::new(body), to.clone());
        let until = Instant::now() + HOLD;
        loop {
            let service = to.borrow_and_update().clone();
            let Some(uri) = below(&service, &asked) else {
                return refusal(StatusCode::BAD_REQUEST, "the path leads out of what is relayed");
            };
            head.uri = uri;
            match self
                .client
                .request(Request::from_parts(head.clone(), body.clone()))
                .await
            {
                Ok(answer) => {
                    let (mut head, body) = answer.into_parts();
                    strip(&mut head.headers);
                    return Response::from_parts(head, body.boxed());
                }
                // Nothing of the request was sent.
                Err(error) if error.is_connect() && Instant::now() < until => {
                    tracing::debug!(%error, lease, "a service behind a relay does not answer; it is tried again");
                    tokio::select! {
                        Ok(()) = to.changed() => {}
                        () = tokio::time::sleep(PAUSE) => {}
                    }
                }
                Err(error) => return unanswered(&error),
            }
        }
    }
}

/// A request's body. A connection that could not be made has not read it, so the next one can.
#[derive(Clone)]
struct Lent(Arc<Mutex<ByteStream>>);

impl Lent {
    fn new(body: ByteStream) -> Self {
        Self(Arc::new(Mutex::new(body)))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ByteStream> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Body for Lent {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut *self.lock()).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.lock().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.lock().size_hint()
    }
}

/// Parses the address of a service for a relay.
pub(crate) fn service(text: &str) -> Result<Uri, String> {
    if text.len() > LONGEST_TARGET {
        return Err(format!("to has more than {LONGEST_TARGET} bytes"));
    }
    static TARGET: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(RELAY_TARGET).ok());
    let uri: Uri = text
        .parse()
        .map_err(|e| format!("to is {text:?}, which is no URL: {e}"))?;
    let is_plain = TARGET.as_ref().is_some_and(|target| target.is_match(text));
    match is_plain && clean(uri.path()) {
        true => Ok(uri),
        false => Err(format!(
            "to is {text:?}; it must be http://host[:port][/path], as {RELAY_TARGET}"
        )),
    }
}

/// Whether the relay of a driver leads to its own service. Relayed requests come from the gateway, which may reach what
/// the driver may not: other pods of the gateway's namespace, and the API server.
pub(crate) fn is_of_driver(to: &Uri, service: &str) -> bool {
    to.authority().is_some_and(|authority| authority.as_str() == service)
}

/// Whether no segment leads upwards, in any encoding.
fn clean(path: &str) -> bool {
    path.split('/').all(|segment| {
        let plain = segment.to_ascii_lowercase().replace("%2e", ".");
        plain != ".." && plain != "." && !plain.contains("%2f") && !plain.contains('\\') && !plain.contains("%5c")
    })
}

/// The target of a request: its path below the service's.
fn below(to: &Uri, asked: &Uri) -> Option<Uri> {
    if !clean(asked.path()) {
        return None;
    }
    let path = format!("{}{}", to.path().trim_end_matches('/'), asked.path());
    let path = match asked.query() {
        Some(query) => format!("{path}?{query}"),
        None => path,
    };
    let uri = Uri::builder().scheme("http").authority(to.authority()?.clone());
    uri.path_and_query(path).build().ok()
}

/// Removes hop-by-hop headers (RFC 9110, section 7.6.1), and headers that only the gateway may set.
fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|names| names.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let fixed = [
        header::CONNECTION,
        header::PROXY_AUTHENTICATE,
        header::PROXY_AUTHORIZATION,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        HeaderName::from_static("keep-alive"),
    ];
    for name in named.into_iter().chain(fixed) {
        headers.remove(name);
    }
    let ours: Vec<HeaderName> = headers
        .keys()
        .filter(|name| name.as_str().starts_with("x-grpo-"))
        .cloned()
        .collect();
    for name in ours {
        headers.remove(name);
    }
}

/// The response to a request that no service answered. Clients of models repeat it.
fn unanswered(error: &hyper_util::client::legacy::Error) -> Answer {
    let message = format!("the service behind the relay does not answer: {error}; repeat the request");
    let mut answer = refusal(StatusCode::SERVICE_UNAVAILABLE, &message);
    let after = HeaderValue::from_static(AGAIN_AFTER);
    answer.headers_mut().insert(header::RETRY_AFTER, after);
    answer
}

/// A refusal in the form of OpenAI's API.
fn refusal(status: StatusCode, message: &str) -> Answer {
    let body = serde_json::json!({"error": {"message": message, "type": "relay_error"}}).to_string();
    let body = Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed();
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static("application/json");
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}

#[cfg(test)]
mod tests;
