//! The bounds on connections and heads, over real sockets. Other pods are other addresses of the loopback network.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use grpo_auth::places::Limits;
use grpo_auth::serve::{Bounds, serve_within};
use grpo_auth::{Guard, KeyStore, LocalIssuer, Verifier};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Notify, oneshot};

use crate::{SERVICE, driver};

const PATIENCE: Duration = Duration::from_secs(30);
const WIDE: Limits = Limits {
    known: 100,
    known_of_one: 100,
    unknown: 100,
    unknown_of_one: 100,
};

/// Bounds with deadlines that no test reaches.
fn bounds(limits: Limits) -> Bounds {
    Bounds {
        limits,
        first_request: 10 * PATIENCE,
        between_requests: 10 * PATIENCE,
    }
}

struct Service {
    address: SocketAddr,
    issuer: LocalIssuer,
    /// Tells that `/held` was called.
    called: Arc<Notify>,
    /// Lets it answer, once.
    release: Arc<Notify>,
}

impl Service {
    async fn start(
        bounds: Bounds,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> (Self, oneshot::Receiver<()>) {
        let issuer = LocalIssuer::new().unwrap();
        let (called, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (calls, held) = (called.clone(), release.clone());
        let router = Router::new()
            .route("/healthz", get(async || "ok"))
            .route("/quick", get(async || "quick"))
            .route(
                "/held",
                get(async move || {
                    calls.notify_one();
                    held.notified().await;
                    "held"
                }),
            );
        let keys = KeyStore::of(issuer.keys());
        let guard = Guard::new(Verifier::new(SERVICE, vec![driver().into()], keys));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, ended) = oneshot::channel();
        let router = guard.before(router);
        tokio::spawn(async move {
            serve_within(bounds, listener, router, shutdown).await;
            let _ = tell.send(());
        });
        let service = Self {
            address,
            issuer,
            called,
            release,
        };
        (service, ended)
    }

    async fn forever(bounds: Bounds) -> Self {
        Self::start(bounds, pending()).await.0
    }

    /// A connection from another address of this host.
    async fn connect_from(&self, host: u8) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, host], 0))).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    /// Sends a request with the driver's token.
    async fn ask(&self, connection: &mut TcpStream, path: &str) {
        let token = self.issuer.token(&driver(), SERVICE).unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n");
        connection.write_all(head.as_bytes()).await.unwrap();
    }
}

/// What arrives, up to these words.
async fn until(connection: &mut TcpStream, words: &str) -> String {
    let mut said = String::new();
    let reading = async {
        while !said.contains(words) {
            let mut part = [0; 1024];
            let count = connection.read(&mut part).await.unwrap();
            assert!(count > 0, "the connection ended after {said:?}");
            said.push_str(&String::from_utf8_lossy(&part[..count]));
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.unwrap();
    said
}

/// Waits until the service has closed the connection.
async fn closed(connection: &mut TcpStream) {
    let reading = async {
        let mut part = [0; 1024];
        // A connection with unread bytes is reset.
        while connection.read(&mut part).await.is_ok_and(|count| count > 0) {}
    };
    tokio::time::timeout(PATIENCE, reading).await.unwrap();
}

#[tokio::test]
async fn a_connection_without_a_whole_request_is_closed_and_a_long_answer_is_not() {
    let short = Duration::from_secs(4);
    let service = Service::forever(Bounds {
        limits: WIDE,
        first_request: short,
        between_requests: short,
    })
    .await;
    let mut long = service.connect_from(1).await;
    service.ask(&mut long, "/held").await;
    let (mut silent, mut slow) = (service.connect_from(1).await, service.connect_from(1).await);
    slow.write_all(b"GET /quick HTTP/1.1\r\nhost: ").await.unwrap();
    closed(&mut silent).await;
    closed(&mut slow).await;
    // The deadlines of the first connection have passed as well.
    service.release.notify_one();
    let said = until(&mut long, "\r\n\r\nheld").await;
    assert!(said.starts_with("HTTP/1.1 200"), "{said}");
    // It serves another request, and is closed when none comes.
    service.ask(&mut long, "/quick").await;
    until(&mut long, "\r\n\r\nquick").await;
    closed(&mut long).await;
}

#[tokio::test]
async fn a_head_of_the_longest_path_and_the_longest_token_is_read_and_a_longer_one_is_not() {
    let service = Service::forever(bounds(WIDE)).await;
    let mut connection = service.connect_from(1).await;
    // Beside the token of the request, one of the greatest length.
    let (path, token) = ("%20".repeat(4096), "x".repeat(8 << 10));
    service
        .ask(&mut connection, &format!("/quick?path={path}&token={token}"))
        .await;
    until(&mut connection, "\r\n\r\nquick").await;
    let endless = format!("GET /quick HTTP/1.1\r\nhost: x\r\nfiller: {}", "x".repeat(40 << 10));
    // The service may close the connection before it has all bytes.
    let _ = connection.write_all(endless.as_bytes()).await;
    closed(&mut connection).await;
}

#[tokio::test]
async fn a_caller_with_a_token_finds_and_keeps_a_place_while_others_open_connections_without_end() {
    let service = Service::forever(bounds(Limits {
        known: 6,
        known_of_one: 5,
        unknown: 4,
        unknown_of_one: 2,
    }))
    .await;
    let (mut early, mut attackers) = (service.connect_from(2).await, Vec::new());
    for host in 2..8 {
        attackers.push(service.connect_from(host).await);
    }
    closed(&mut early).await;
    let mut driver = service.connect_from(1).await;
    service.ask(&mut driver, "/quick").await;
    until(&mut driver, "\r\n\r\nquick").await;
    service.ask(&mut driver, "/held").await;
    for host in 8..30 {
        attackers.push(service.connect_from(host).await);
    }
    // All but the last four gave way.
    for attacker in &mut attackers[..24] {
        closed(attacker).await;
    }
    let mut another = service.connect_from(1).await;
    service.ask(&mut another, "/quick").await;
    until(&mut another, "\r\n\r\nquick").await;
    service.release.notify_one();
    until(&mut driver, "\r\n\r\nheld").await;
}

#[tokio::test]
async fn a_caller_beyond_the_bound_is_told_and_an_address_beyond_its_own_is_closed() {
    let service = Service::forever(bounds(Limits {
        known: 2,
        known_of_one: 1,
        unknown: 4,
        unknown_of_one: 2,
    }))
    .await;
    let mut known = Vec::new();
    for host in 1..3 {
        let mut connection = service.connect_from(host).await;
        service.ask(&mut connection, "/quick").await;
        until(&mut connection, "\r\n\r\nquick").await;
        known.push(connection);
    }
    closed(&mut service.connect_from(1).await).await;
    let mut third = service.connect_from(3).await;
    service.ask(&mut third, "/quick").await;
    let said = until(&mut third, "}").await;
    assert!(said.starts_with("HTTP/1.1 503"), "{said}");
    assert!(
        said.contains("retry-after: 1") && said.contains("use fewer connections"),
        "{said}"
    );
    closed(&mut third).await;
    // Probes come from yet another address, without a token.
    let mut probe = service.connect_from(4).await;
    probe
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    until(&mut probe, "\r\n\r\nok").await;
    drop(known.pop());
    let freed = async {
        loop {
            let mut next = service.connect_from(5).await;
            service.ask(&mut next, "/quick").await;
            if until(&mut next, "\r\n\r\n").await.starts_with("HTTP/1.1 200") {
                break;
            }
        }
    };
    tokio::time::timeout(PATIENCE, freed).await.unwrap();
}

#[tokio::test]
async fn a_service_that_is_told_to_end_answers_the_requests_in_progress_first() {
    let (end, told) = oneshot::channel::<()>();
    let shutdown = async {
        let _ = told.await;
    };
    let (service, ended) = Service::start(bounds(WIDE), shutdown).await;
    let (mut idle, mut held) = (service.connect_from(1).await, service.connect_from(1).await);
    service.ask(&mut idle, "/quick").await;
    until(&mut idle, "\r\n\r\nquick").await;
    service.ask(&mut held, "/held").await;
    service.called.notified().await;
    end.send(()).unwrap();
    closed(&mut idle).await;
    service.release.notify_one();
    until(&mut held, "held").await;
    tokio::time::timeout(PATIENCE, ended).await.unwrap().unwrap();
    assert!(TcpStream::connect(service.address).await.is_err());
}
