//! Ways out of sandboxes: what connects to a port inside is served here as HTTP, and passed on to the one service that
//! the driver named.
//!
//! For each port one keeper fetches connections from sandboxd, one at a time, as long as the lease lasts. A request
//! that comes over such a connection is the sandbox's own: its lease is put into a header, and what it says about that
//! itself is taken out. Nothing else of the service's host can be reached than what lies below the path that was named.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use grpo_sandbox_protocol::{ErrorBody, ErrorCode, FaultOrigin, RELAY_LEASE_HEADER, RelayRequest};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::Upgraded;
use hyper::{Request, Response, StatusCode, Uri, Version};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::sync::{Semaphore, watch};

use crate::core::Core;
use crate::index::ActiveLease;
use crate::sandbox::Holder;

/// Connections of one port that are served at one time; others wait in the sandbox.
const CONNECTIONS: usize = 16;
/// Ports of one lease.
const PORTS: usize = 8;
/// How long sandboxd waits for a connection before it is asked again.
const WAIT: Duration = Duration::from_secs(45);
/// How often it is looked whether the lease is still there.
const LOOK: Duration = Duration::from_secs(1);
/// Before sandboxd is asked again that did not answer; it doubles.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A connection on which no request begins for so long is closed.
const IDLE: Duration = Duration::from_secs(300);
const LONGEST_TARGET: usize = 2048;

type Answer = Response<BoxBody<Bytes, hyper::Error>>;

/// The relays there are, and how services are reached.
pub struct Relays {
    client: Client<HttpConnector, Incoming>,
    open: Mutex<HashMap<(String, u16), Relay>>,
}

struct Relay {
    epoch: u64,
    to: watch::Sender<Uri>,
}

impl Default for Relays {
    fn default() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(Duration::from_secs(5)));
        let client = Client::builder(TokioExecutor::new()).build(connector);
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

    /// Where an open port leads from now on. False if it is not open.
    fn led_elsewhere(&self, lease: &str, epoch: u64, port: u16, to: &Uri) -> bool {
        let open = self.lock();
        let relay = open.get(&(lease.to_owned(), port)).filter(|relay| relay.epoch == epoch);
        relay.is_some_and(|relay| {
            relay.to.send_replace(to.clone());
            true
        })
    }

    /// Notes a new port, if the lease may have another.
    fn note(&self, lease: &str, epoch: u64, port: u16, to: Uri) -> Option<watch::Receiver<Uri>> {
        let mut open = self.lock();
        let of_lease = open
            .iter()
            .filter(|((of, _), relay)| of == lease && relay.epoch == epoch);
        if of_lease.count() >= PORTS {
            return None;
        }
        let (sender, receiver) = watch::channel(to);
        open.insert((lease.to_owned(), port), Relay { epoch, to: sender });
        Some(receiver)
    }

    fn forget(&self, lease: &str, epoch: u64, port: u16) {
        let mut open = self.lock();
        let key = (lease.to_owned(), port);
        if open.get(&key).is_some_and(|relay| relay.epoch == epoch) {
            open.remove(&key);
        }
    }
}

impl Core {
    /// Opens a port of a sandbox to a service, or leads an open one elsewhere. The port listens when this answers.
    pub async fn relay(self: &Arc<Self>, held: &ActiveLease, request: &RelayRequest) -> Result<(), ErrorBody> {
        let to = service(&request.to).map_err(|why| ErrorBody::new(ErrorCode::BadRequest, FaultOrigin::Client, why))?;
        let (lease, epoch, port) = (&held.entry.lease, held.entry.epoch, request.port);
        if self.relays.led_elsewhere(lease, epoch, port, &to) {
            return Ok(());
        }
        let first = self.sandboxes.relayed(Holder::of(held), port, Duration::ZERO).await;
        let first = first.map_err(|error| self.why_unreachable(lease, &error))?;
        let Some(to) = self.relays.note(lease, epoch, port, to) else {
            let message = format!("lease {lease} has {PORTS} relays already");
            return Err(ErrorBody::new(ErrorCode::BadRequest, FaultOrigin::Client, message));
        };
        let keeper = Keeper {
            core: self.clone(),
            held: held.clone(),
            port,
            to,
        };
        tokio::spawn(keeper.keep(first));
        Ok(())
    }
}

/// Fetches one port's connections until the lease ends.
struct Keeper {
    core: Arc<Core>,
    held: ActiveLease,
    port: u16,
    to: watch::Receiver<Uri>,
}

impl Keeper {
    async fn keep(self, mut next: Option<Upgraded>) {
        let (lease, epoch) = (self.held.entry.lease.as_str(), self.held.entry.epoch);
        // Dropped with this: then all connections end.
        let (_lasting, over) = watch::channel(());
        tokio::select! {
            () = self.lease_ends() => {}
            () = async {
                let places = Arc::new(Semaphore::new(CONNECTIONS));
                let mut pause = PAUSE;
                loop {
                    let Ok(place) = places.clone().acquire_owned().await else { return };
                    let fetched = match next.take() {
                        Some(first) => Ok(Some(first)),
                        None => self.core.sandboxes.relayed(Holder::of(&self.held), self.port, WAIT).await,
                    };
                    match fetched {
                        Ok(connection) => {
                            pause = PAUSE;
                            let Some(connection) = connection else { continue };
                            let (core, lease, to) = (self.core.clone(), lease.to_owned(), self.to.clone());
                            let mut over = over.clone();
                            tokio::spawn(async move {
                                tokio::select! {
                                    () = serve(&core, connection, &lease, &to) => {}
                                    _ = over.changed() => {}
                                }
                                drop(place);
                            });
                        }
                        Err(error) => {
                            tracing::debug!(%error, lease, port = self.port, "fetching a relayed connection");
                            tokio::time::sleep(pause).await;
                            pause = (pause * 2).min(LONGEST_PAUSE);
                        }
                    }
                }
            } => {}
        }
        self.core.relays.forget(lease, epoch, self.port);
    }

    async fn lease_ends(&self) {
        let entry = &self.held.entry;
        let is_there = || {
            self.core.look(|index| {
                let held = index.leases.get(&entry.lease);
                held.is_some_and(|held| held.entry.epoch == entry.epoch)
            })
        };
        while is_there() {
            tokio::time::sleep(LOOK).await;
        }
    }
}

async fn serve(core: &Arc<Core>, connection: Upgraded, lease: &str, to: &watch::Receiver<Uri>) {
    let service = service_fn(|request| async move {
        let to = to.borrow().clone();
        Ok::<_, Infallible>(core.relays.pass_on(request, lease, &to).await)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(IDLE);
    let _ = http.serve_connection(connection, service).await;
}

impl Relays {
    async fn pass_on(&self, request: Request<Incoming>, lease: &str, to: &Uri) -> Answer {
        let (mut head, body) = request.into_parts();
        let Some(uri) = below(to, &head.uri) else {
            return refusal(StatusCode::BAD_REQUEST, "the path leads out of what is relayed");
        };
        let Ok(name) = HeaderValue::from_str(lease) else {
            return refusal(StatusCode::BAD_REQUEST, "the lease's name cannot be sent in a header");
        };
        head.uri = uri;
        head.version = Version::HTTP_11;
        strip(&mut head.headers);
        head.headers.remove(header::HOST);
        head.headers.insert(HeaderName::from_static(RELAY_LEASE_HEADER), name);
        match self.client.request(Request::from_parts(head, body)).await {
            Ok(answer) => {
                let (mut head, body) = answer.into_parts();
                strip(&mut head.headers);
                Response::from_parts(head, body.boxed())
            }
            Err(error) => refusal(
                StatusCode::BAD_GATEWAY,
                &format!("the service behind the relay does not answer: {error}"),
            ),
        }
    }
}

/// The address of a service that may be relayed to.
fn service(text: &str) -> Result<Uri, String> {
    if text.len() > LONGEST_TARGET {
        return Err(format!("to has more than {LONGEST_TARGET} bytes"));
    }
    let uri: Uri = text
        .parse()
        .map_err(|e| format!("to is {text:?}, which is no URL: {e}"))?;
    let is_plain = uri.scheme_str() == Some("http") && uri.query().is_none() && clean(uri.path());
    match uri.authority().filter(|_| is_plain) {
        Some(authority) if !authority.as_str().contains('@') => Ok(uri),
        _ => Err(format!("to is {text:?}; it must be http://host[:port][/path]")),
    }
}

/// No segment that leads upwards, however it is written.
fn clean(path: &str) -> bool {
    path.split('/').all(|segment| {
        let plain = segment.to_ascii_lowercase().replace("%2e", ".");
        plain != ".." && plain != "." && !plain.contains("%2f") && !plain.contains('\\') && !plain.contains("%5c")
    })
}

/// Where a request goes: its path below the service's.
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

/// What is between two neighbours only (RFC 9110, section 7.6.1), and what only the gateway may say.
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

/// In the form that clients of OpenAI's API can read.
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
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_below_the_service_can_be_reached() {
        let to = service("http://driver:8080/agent/e1/").unwrap();
        let reached = |path: &str| below(&to, &path.parse().unwrap()).map(|uri| uri.to_string());
        let completions = "http://driver:8080/agent/e1/v1/chat/completions?x=1";
        assert_eq!(reached("/v1/chat/completions?x=1").as_deref(), Some(completions));
        assert_eq!(
            reached("http://elsewhere/v1").as_deref(),
            Some("http://driver:8080/agent/e1/v1")
        );
        for out in [
            "/../secret",
            "/v1/%2e%2E/secret",
            "/v1/.%2e/x",
            "/a%2f..%2fb",
            "/a\\..\\b",
        ] {
            if let Ok(asked) = out.parse() {
                assert_eq!(below(&to, &asked), None, "{out}");
            }
        }
    }

    #[test]
    fn a_service_is_a_plain_http_address() {
        for good in ["http://driver:8080", "http://10.0.0.7/v1", "http://[fd00::1]:80/x/"] {
            assert!(service(good).is_ok(), "{good}");
        }
        for bad in [
            "driver:8080",
            "https://driver",
            "http://u:p@driver",
            "http://driver/../x",
            "file:///etc",
            "/x",
            "http://d/?q=1",
        ] {
            assert!(service(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn headers_of_the_connection_and_the_gateways_own_are_not_passed_on() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, x-secret"),
            ("x-secret", "1"),
            ("transfer-encoding", "chunked"),
            ("x-grpo-lease", "another"),
            ("authorization", "Bearer none"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        strip(&mut headers);
        assert_eq!(
            headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(),
            ["authorization"]
        );
    }
}
