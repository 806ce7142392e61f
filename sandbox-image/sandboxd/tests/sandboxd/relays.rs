//! The relay, the reachable addresses, and the activity report.

use std::net::TcpListener;

use grpo_sandbox_protocol::{
    Activity, CloseRequest, ProbeReply, ProbeRequest, SessionInput, SessionReply, SessionRequest,
};
use reqwest::{Method, StatusCode};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::sandbox::{Sandbox, shell};

fn free_port() -> u16 {
    grpo_free_port::free_port().unwrap()
}

#[tokio::test]
async fn whoever_connects_to_a_relayed_port_talks_to_whoever_fetched_the_connection() {
    let sandbox = Sandbox::bound().await;
    let port = free_port();
    let opened = sandbox.upgrade(&format!("/relay?port={port}"), "l1").await;
    assert_eq!(opened.status(), StatusCode::NO_CONTENT, "there is no connection yet");
    for nth in 0..3u8 {
        let mut inside = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let fetched = sandbox
            .upgrade(&format!("/relay?port={port}&waitSeconds=20"), "l1")
            .await;
        assert_eq!(fetched.status(), StatusCode::SWITCHING_PROTOCOLS);
        let mut gateway = fetched.upgrade().await.unwrap();
        inside.write_all(&[nth; 100_000]).await.unwrap();
        inside.shutdown().await.unwrap();
        let mut heard = Vec::new();
        gateway.read_to_end(&mut heard).await.unwrap();
        assert_eq!(heard, [nth; 100_000]);
        gateway.write_all(b"answer").await.unwrap();
        gateway.shutdown().await.unwrap();
        let mut answer = String::new();
        inside.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "answer");
    }
}

#[tokio::test]
async fn only_the_gateway_opens_ports_and_not_those_of_the_system() {
    let sandbox = Sandbox::bound().await;
    let port = free_port();
    let stranger = sandbox.upgrade(&format!("/relay?port={port}"), "l2").await;
    assert_eq!(stranger.status(), StatusCode::CONFLICT);
    assert!(TcpStream::connect(("127.0.0.1", port)).await.is_err());
    for bad in ["port=80", "port=70000", "port=x", ""] {
        let answer = sandbox.upgrade(&format!("/relay?{bad}"), "l1").await;
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST, "{bad}");
    }
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let answer = sandbox.upgrade(&format!("/relay?port={port}"), "l1").await;
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    let plain = sandbox.send(Method::POST, "/relay?port=9000", Vec::new()).await;
    assert_eq!(plain.status(), StatusCode::BAD_REQUEST, "without an upgrade");
}

#[tokio::test]
async fn a_probe_answers_what_it_could_connect_to_and_nothing_else() {
    let sandbox = Sandbox::bound().await;
    let listening = TcpListener::bind("127.0.0.1:0").unwrap();
    let open = listening.local_addr().unwrap();
    let shut = format!("127.0.0.1:{}", free_port()).parse().unwrap();
    let request = ProbeRequest {
        addresses: vec![shut, open],
        timeout_millis: 500,
    };
    let reply: ProbeReply = sandbox.call("/probe", &request).await;
    assert_eq!(reply.reached, [open]);
}

#[tokio::test]
async fn what_nobody_waits_for_counts_as_activity_until_it_ends() {
    let sandbox = Sandbox::bound().await;
    let running = async || sandbox.look::<Activity>("/activity").await.running;
    assert_eq!(running().await, 0);
    let go = sandbox.path("go");
    let script = format!("while [ ! -e {go} ]; do sleep 0.01; done");
    let _: serde_json::Value = sandbox.call("/exec/start", &shell("b", &script)).await;
    assert_eq!(running().await, 1);
    std::fs::write(&go, "").unwrap();
    let _: serde_json::Value = sandbox.look("/exec?id=b&waitSeconds=20").await;
    assert_eq!(running().await, 0);
    let session = SessionRequest {
        id: "s".into(),
        argv: vec!["bash".into(), "--norc".into()],
        cwd: None,
        env: [("PS1".to_owned(), "$ ".to_owned())].into(),
        user: None,
        activate: None,
    };
    let begun = sandbox
        .send(Method::POST, "/sessions", json!(session).to_string().into())
        .await;
    assert_eq!(begun.status(), 204);
    // Milliseconds: how long the prompt stands, and how long the shell may take to start a program.
    let input = |id: &str, text: &str, prompt: Option<&str>| SessionInput {
        session: "s".into(),
        id: id.into(),
        text: text.into(),
        prompt: prompt.map(str::to_owned),
        idle_millis: Some(prompt.map_or(1500, |_| 100)),
        timeout_millis: 20_000,
    };
    let _: SessionReply = sandbox.call("/sessions/input", &input("1", "", Some(r"\$ "))).await;
    assert_eq!(running().await, 0, "a shell that waits for a line does nothing");
    let reply: SessionReply = sandbox.call("/sessions/input", &input("2", "sleep 1000\n", None)).await;
    assert!(reply.busy);
    assert_eq!(running().await, 1);
    let close = CloseRequest { id: "s".into() };
    let closed = sandbox
        .send(Method::POST, "/sessions/close", json!(close).to_string().into())
        .await;
    assert_eq!(closed.status(), 204);
    assert_eq!(running().await, 0);
}
