//! Relays: programs in a sandbox call the service that the lease's holder named, through the gateway and a real
//! sandboxd.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use futures::StreamExt as _;
use reqwest::StatusCode;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

use crate::leased::{Leased, SANDBOX, serve, told};
use crate::played::Nodes as _;

fn free_port() -> u16 {
    grpo_free_port::free_port().unwrap()
}

/// Echoes the request and its lease; streams for the path `/stream`.
async fn service(request: Request) -> Response {
    let (head, body) = request.into_parts();
    if head.uri.path().ends_with("/stream") {
        let first = futures::stream::once(async { Ok::<_, std::io::Error>("data: 1\n\n".to_owned()) });
        // The stream never ends, so only bytes that are forwarded at once arrive.
        return Body::from_stream(first.chain(futures::stream::pending())).into_response();
    }
    let of = |name: &str| {
        let values = head.headers.get_all(name).iter();
        values
            .map(|value| value.to_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let asked = json!({"path": head.uri.to_string(), "lease": of("x-grpo-lease"), "epoch": of("x-grpo-epoch")});
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    Json(json!({"asked": asked, "body": String::from_utf8_lossy(&body)})).into_response()
}

#[tokio::test]
async fn what_runs_in_a_sandbox_reaches_the_named_service_as_its_lease_and_nothing_beside_it() {
    let leased = Leased::begin().await;
    let (port, to) = (free_port(), serve(Router::new().fallback(service)).await);
    let relay = json!({"port": port, "to": format!("{to}/episode")});
    for _ in 0..2 {
        assert_eq!(
            leased.put("relay", relay.clone()).await,
            (StatusCode::NO_CONTENT, json!(""))
        );
    }
    let inside = format!("http://127.0.0.1:{port}");
    let asked = leased
        .http
        .post(format!("{inside}/v1/chat?x=1"))
        .header("x-grpo-lease", "another");
    let (status, said) = told(asked.header("x-grpo-epoch", "9").body("question")).await;
    assert_eq!(status, StatusCode::OK);
    let wanted = json!({"path": "/episode/v1/chat?x=1", "lease": ["l/1"], "epoch": []});
    assert_eq!((&said["asked"], &said["body"]), (&wanted, &json!("question")));

    let streamed = leased.http.get(format!("{inside}/stream")).send().await.unwrap();
    let first = tokio::time::timeout(Duration::from_secs(60), streamed.bytes_stream().next())
        .await
        .unwrap();
    assert_eq!(first.unwrap().unwrap(), "data: 1\n\n");

    // Many at once, each on its own connection.
    let many = (0..50).map(|nth| {
        let asked = reqwest::Client::builder()
            .no_proxy()
            .build()
            .unwrap()
            .post(&inside)
            .body(nth.to_string());
        async move { told(asked).await.1["body"].clone() }
    });
    let answers = futures::future::join_all(many).await;
    assert_eq!(answers, (0..50).map(|nth| json!(nth.to_string())).collect::<Vec<_>>());

    let elsewhere = serve(Router::new().fallback(|| async { "elsewhere" })).await;
    leased.put("relay", json!({"port": port, "to": elsewhere})).await;
    assert_eq!(told(leased.http.get(&inside)).await.1, "elsewhere");
    let (status, error) = leased.put("relay", json!({"port": port, "to": "ftp://x"})).await;
    assert_eq!(
        (status, &error["code"]),
        (StatusCode::BAD_REQUEST, &json!("BadRequest"))
    );
}

#[tokio::test]
async fn a_relay_ends_with_its_lease() {
    let leased = Leased::begin().await;
    let (port, to) = (free_port(), serve(Router::new().fallback(service)).await);
    leased.put("relay", json!({"port": port, "to": to})).await;
    let streamed = leased
        .http
        .get(format!("http://127.0.0.1:{port}/stream"))
        .send()
        .await
        .unwrap();
    let mut frames = streamed.bytes_stream();
    assert!(frames.next().await.unwrap().is_ok());
    assert_eq!(leased.core.relays.count(), 1);
    leased.core.look(|index| index.leases.remove("l/1"));
    let end = tokio::time::timeout(Duration::from_secs(60), frames.next())
        .await
        .unwrap();
    assert!(end.is_none_or(|frame| frame.is_err()), "the connection is cut");
    tokio::time::timeout(Duration::from_secs(60), async {
        while leased.core.relays.count() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
}

/// Reports when the caller of a stream has gone.
struct Gone(mpsc::UnboundedSender<()>);

impl Drop for Gone {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

/// A service that streams one line and never ends, and a receiver that reports when a caller has gone.
async fn endless() -> (String, mpsc::UnboundedReceiver<()>) {
    let (tell, told) = mpsc::unbounded_channel();
    let answer = move || {
        let gone = Gone(tell.clone());
        let first = futures::stream::once(async { Ok::<_, std::io::Error>("data: 1\n\n") });
        let never = futures::stream::once(async move {
            let _gone = gone;
            std::future::pending().await
        });
        async move { Body::from_stream(first.chain(never)) }
    };
    (serve(Router::new().fallback(answer)).await, told)
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), what).await.unwrap()
}

/// An agent's connection after the first part of a stream has arrived.
async fn in_mid_stream(port: u16) -> impl futures::Stream<Item = reqwest::Result<bytes::Bytes>> + Unpin {
    let agent = reqwest::Client::builder().no_proxy().build().unwrap();
    let streamed = agent.get(format!("http://127.0.0.1:{port}/stream")).send();
    let mut frames = Box::pin(soon(streamed).await.unwrap().bytes_stream());
    soon(frames.next()).await.unwrap().unwrap();
    frames
}

#[tokio::test]
async fn an_agent_that_is_killed_in_mid_stream_ends_its_request_and_leaves_its_place_to_the_next() {
    let leased = Leased::begin().await;
    let (to, mut gone) = endless().await;
    let port = free_port();
    leased.put("relay", json!({"port": port, "to": to})).await;
    // More than a port serves at one time.
    for _ in 0..40 {
        drop(in_mid_stream(port).await);
        soon(gone.recv()).await.unwrap();
    }
    assert_eq!(leased.core.relays.count(), 1);
}

#[tokio::test]
async fn a_service_that_is_killed_in_mid_stream_is_an_error_for_the_agent_and_no_end() {
    let leased = Leased::begin().await;
    let service = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, to) = (free_port(), format!("http://{}", service.local_addr().unwrap()));
    leased.put("relay", json!({"port": port, "to": to})).await;
    let killed = tokio::spawn(async move {
        let (mut connection, _) = service.accept().await.unwrap();
        let mut asked = [0; 1024];
        assert!(connection.read(&mut asked).await.unwrap() > 0);
        let half = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n";
        connection.write_all(half).await.unwrap();
        connection
    });
    let mut frames = in_mid_stream(port).await;
    drop(killed.await.unwrap());
    let end = soon(frames.next()).await;
    assert!(
        end.is_some_and(|end| end.is_err()),
        "half a stream is not taken for a whole one"
    );
}

/// A driver restarts: its address answers nothing, until the next driver leads the relay to its own.
#[tokio::test]
async fn a_request_whose_service_is_away_waits_for_the_next_one_and_reaches_it_whole() {
    let leased = Leased::begin().await;
    let port = free_port();
    let away = json!({"port": port, "to": "http://127.0.0.1:1/first"});
    leased.put("relay", away).await;
    let question = "x".repeat(1 << 19);
    let asked = leased.http.post(format!("http://127.0.0.1:{port}/v1/chat"));
    let mut waiting = tokio::spawn(told(asked.body(question.clone())));
    let early = tokio::time::timeout(Duration::from_secs(1), &mut waiting).await;
    assert!(early.is_err(), "it has an answer: {early:?}");
    let to = serve(Router::new().fallback(service)).await;
    leased
        .put("relay", json!({"port": port, "to": format!("{to}/next")}))
        .await;
    let (status, said) = soon(waiting).await.unwrap();
    assert_eq!(
        (status, &said["asked"]["path"]),
        (StatusCode::OK, &json!("/next/v1/chat"))
    );
    assert_eq!(said["body"], json!(question));
}

#[tokio::test]
async fn a_request_that_a_service_took_and_did_not_answer_is_to_be_repeated() {
    let leased = Leased::begin().await;
    let service = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, to) = (free_port(), format!("http://{}", service.local_addr().unwrap()));
    leased.put("relay", json!({"port": port, "to": to})).await;
    tokio::spawn(async move {
        let (mut connection, _) = service.accept().await.unwrap();
        assert!(connection.read(&mut [0; 1024]).await.unwrap() > 0);
    });
    let answer = soon(leased.http.get(format!("http://127.0.0.1:{port}")).send()).await;
    let answer = answer.unwrap();
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.headers()["retry-after"], "5");
    let told: serde_json::Value = answer.json().await.unwrap();
    assert_eq!(told["error"]["type"], "relay_error");
}

#[tokio::test]
async fn a_sandbox_that_is_killed_in_mid_stream_ends_the_request_at_the_service_and_leaves_nothing() {
    let leased = Leased::begin().await;
    let (to, mut gone) = endless().await;
    let port = free_port();
    leased.put("relay", json!({"port": port, "to": to})).await;
    let mut frames = in_mid_stream(port).await;
    leased.sandboxds.stop(SANDBOX);
    let end = soon(frames.next()).await;
    assert!(end.is_none_or(|end| end.is_err()), "the connection is cut");
    soon(gone.recv()).await.unwrap();
    leased.core.look(|index| index.leases.remove("l/1"));
    soon(async {
        while leased.core.relays.count() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_port_that_the_workload_has_taken_is_the_workloads_fault() {
    let leased = Leased::begin().await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let relay = json!({"port": port, "to": "http://127.0.0.1:9"});
    let (status, told) = leased.put("relay", relay).await;
    assert_eq!(
        (status, &told["fault"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("Workload")),
        "{told}"
    );
}
