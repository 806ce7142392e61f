//! A service behind the check, over real sockets, with an API server that comes and goes.

#![allow(clippy::unwrap_used)]

mod serve;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use grpo_auth::keys::KeySource;
use grpo_auth::{Guard, KeyStore, LocalIssuer, ServiceAccount, TokenFile, Verifier};
use grpo_contracts::access::Service;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

const SERVICE: Service = Service::EngineAgent;

fn driver() -> ServiceAccount {
    ServiceAccount::new("team", "demo-driver")
}

async fn listen(router: Router) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    (address, served)
}

/// Serves the API server's two documents and counts the requests for the keys.
async fn api_server(issuer: &LocalIssuer, asked: Arc<AtomicUsize>) -> (SocketAddr, JoinHandle<()>) {
    let discovery = json!({"issuer": issuer.issuer, "jwks_uri": "https://elsewhere/jwks"});
    let keys = json!({"keys": [issuer.public_key()]});
    listen(
        Router::new()
            .route("/.well-known/openid-configuration", get(async || Json(discovery)))
            .route(
                "/openid/v1/jwks",
                get(async move || {
                    asked.fetch_add(1, Ordering::Relaxed);
                    Json(keys)
                }),
            ),
    )
    .await
}

/// A pod's access to the API server.
fn source(folder: &Path, address: SocketAddr) -> KeySource {
    std::fs::write(folder.join("ca.crt"), "").unwrap();
    std::fs::write(folder.join("token"), "its own").unwrap();
    KeySource::Cluster {
        url: format!("http://{address}"),
        access: folder.to_owned(),
    }
}

async fn service(keys: KeyStore) -> String {
    let router = Router::new()
        .route("/healthz", get(async || "ok"))
        .route(
            "/who",
            get(async |Extension(caller): Extension<ServiceAccount>| caller.to_string()),
        )
        .route("/take", post(async |body: String| body.len().to_string()));
    let guard = Guard::new(Verifier::new(SERVICE, vec![driver().into()], keys));
    format!("http://{}", listen(guard.before(router)).await.0)
}

async fn ask(url: &str, token: Option<&str>) -> (u16, String) {
    let request = client().get(format!("{url}/who"));
    let request = match token {
        Some(token) => request.bearer_auth(token),
        None => request,
    };
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

#[tokio::test]
async fn tokens_are_checked_while_the_api_server_is_away() {
    let issuer = LocalIssuer::new().unwrap();
    let (address, api_server) = api_server(&issuer, Arc::default()).await;
    let folder = tempfile::tempdir().unwrap();
    let keys = KeyStore::default();
    let url = service(keys.clone()).await;
    let token = issuer.token(&driver(), SERVICE).unwrap();
    let (status, answer) = ask(&url, Some(&token)).await;
    assert_eq!(status, 503, "{answer}");

    let fresh = tokio::spawn(keys.clone().keep_fresh(source(folder.path(), address)));
    keys.filled().await;
    api_server.abort();
    let _ = api_server.await;
    assert!(TcpStream::connect(address).await.is_err());
    for _ in 0..3 {
        assert_eq!(ask(&url, Some(&token)).await, (200, driver().to_string()));
        let late = issuer.token(&driver(), SERVICE).unwrap();
        assert_eq!(ask(&url, Some(&late)).await.0, 200);
    }
    let (status, answer) = ask(&url, None).await;
    assert_eq!(status, 401, "{answer}");
    fresh.abort();
}

#[tokio::test]
async fn a_service_that_starts_before_the_api_server_fetches_its_keys_later() {
    let issuer = LocalIssuer::new().unwrap();
    let held = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = held.local_addr().unwrap();
    drop(held);
    let folder = tempfile::tempdir().unwrap();
    let keys = KeyStore::default();
    let fresh = tokio::spawn(keys.clone().keep_fresh(source(folder.path(), address)));
    let listener = TcpListener::bind(address).await.unwrap();
    let (keys_of, discovery) = (json!({"keys": [issuer.public_key()]}), json!({"issuer": issuer.issuer}));
    let router = Router::new()
        .route("/.well-known/openid-configuration", get(async || Json(discovery)))
        .route("/openid/v1/jwks", get(async || Json(keys_of)));
    tokio::spawn(async move { axum::serve(listener, router).await });
    tokio::time::timeout(Duration::from_secs(20), keys.filled())
        .await
        .unwrap();
    fresh.abort();
}

#[tokio::test]
async fn a_key_that_is_not_known_is_looked_up_and_not_with_every_request() {
    let issuer = LocalIssuer::new().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let (address, _api_server) = api_server(&issuer, asked.clone()).await;
    let folder = tempfile::tempdir().unwrap();
    let keys = KeyStore::default();
    let url = service(keys.clone()).await;
    let fresh = tokio::spawn(keys.clone().keep_fresh(source(folder.path(), address)));
    keys.filled().await;
    let other = issuer.token(&driver(), SERVICE).unwrap().replacen(
        &header_of(&issuer.token(&driver(), SERVICE).unwrap()),
        &base64_url(r#"{"alg":"ES256","kid":"new"}"#),
        1,
    );
    for _ in 0..50 {
        let (status, answer) = ask(&url, Some(&other)).await;
        assert_eq!(status, 401, "{answer}");
        assert!(answer.contains("ask again"), "{answer}");
    }
    assert!(asked.load(Ordering::Relaxed) <= 2);
    fresh.abort();
}

fn header_of(token: &str) -> String {
    token.split('.').next().unwrap().to_owned()
}

fn base64_url(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text)
}

#[tokio::test]
async fn every_wrong_token_is_refused_with_the_next_step() {
    let issuer = LocalIssuer::new().unwrap();
    let url = service(KeyStore::of(issuer.keys())).await;
    let until = |account: &ServiceAccount, audience: &str, end| issuer.token_until(account, audience, end).unwrap();
    let later = SystemTime::now() + Duration::from_secs(60);
    let other_run = ServiceAccount::new("team", "other-driver");
    let cases = [
        (None, 401, "engine-agent.grpo.dev"),
        (
            Some(until(&driver(), "gateway.grpo.dev", later)),
            401,
            "another audience",
        ),
        (
            Some(until(&driver(), "https://kubernetes.default.svc", later)),
            401,
            "another audience",
        ),
        (
            Some(until(
                &driver(),
                SERVICE.audience(),
                SystemTime::now() - Duration::from_secs(60),
            )),
            401,
            "expired",
        ),
        (
            Some(until(&other_run, SERVICE.audience(), later)),
            403,
            "team/other-driver",
        ),
        (Some("garbage".to_owned()), 401, "no service-account token"),
        (
            Some(until(&driver(), SERVICE.audience(), later)),
            200,
            "team/demo-driver",
        ),
    ];
    for (token, wanted, words) in cases {
        let (status, answer) = ask(&url, token.as_deref()).await;
        assert_eq!(status, wanted, "{answer}");
        assert!(answer.contains(words), "{answer}");
        if status != 200 {
            let body: Value = serde_json::from_str(&answer).unwrap();
            assert_eq!(body["fault"], "Client");
        }
    }
    let healthz = client().get(format!("{url}/healthz")).send().await.unwrap();
    assert_eq!(healthz.status(), 200);
}

#[tokio::test]
async fn a_body_is_not_read_before_its_token_is_known() {
    let issuer = LocalIssuer::new().unwrap();
    let url = service(KeyStore::of(issuer.keys())).await;
    let mut socket = TcpStream::connect(url.strip_prefix("http://").unwrap()).await.unwrap();
    // The body is announced and never sent.
    let head = "POST /take HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000000\r\n\r\n";
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 12];
    let read = tokio::time::timeout(Duration::from_secs(10), socket.read_exact(&mut answer));
    read.await.unwrap().unwrap();
    assert_eq!(String::from_utf8_lossy(&answer), "HTTP/1.1 401");
}

#[tokio::test]
async fn a_caller_with_a_token_file_is_let_in() {
    let issuer = LocalIssuer::new().unwrap();
    let url = service(KeyStore::of(issuer.keys())).await;
    let folder = tempfile::tempdir().unwrap();
    issuer.write_tokens(folder.path(), &driver(), &[SERVICE]).unwrap();
    let token = TokenFile::in_folder(folder.path(), SERVICE);
    let request = client().get(format!("{url}/who"));
    assert_eq!(token.put_on(request).send().await.unwrap().status(), 200);
}

fn client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().unwrap()
}
