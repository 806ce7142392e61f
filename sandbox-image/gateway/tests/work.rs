//! A holder's work in its sandbox, through the gateway and a real sandboxd.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use futures::StreamExt as _;
use grpo_gateway::core::{Core, now};
use grpo_gateway::index::{ActiveLease, Bounds, Found, Index, Sandbox};
use grpo_gateway::ledger;
use grpo_gateway::pod::Template;
use grpo_gateway::sandbox::{Holder, Sandboxes};
use grpo_sandbox_protocol::{LedgerEntry, MAX_FILE_BYTES, Priority, SandboxCause, Signer};
use kube::api::Api;
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

use crate::played::sandboxes::Sandboxds;
use crate::played::{Nodes as _, SEED};

/// The one sandbox of a pool.
const SANDBOX: &str = "s";

/// A gateway with one lease, and a sandboxd in its sandbox.
struct Leased {
    core: Arc<Core>,
    sandboxds: Sandboxds,
    url: String,
    http: reqwest::Client,
}

impl Leased {
    async fn begin() -> Self {
        let (sandboxds, signer) = (Sandboxds::default(), Signer::from_seed(&SEED));
        let ip = sandboxds.start(SANDBOX);
        let bounds = Bounds {
            max: 2,
            reserved: 0,
            warm_max: 2,
            orders: 2,
            waiting: 100,
            per_node: None,
            max_ttl_millis: 100_000,
            idle_millis: 100_000,
        };
        let template = Template {
            pool: "p".into(),
            pool_uid: "u".into(),
            namespace: "n".into(),
            sandboxd_image: "sandboxd:1".into(),
            public_key: "key".into(),
            spec: serde_yaml_ng::from_str("max: 2").unwrap(),
            term: 1,
        };
        let no_server = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let pods = Api::namespaced(kube::Client::try_from(no_server).unwrap(), "n");
        let (changes, mut receiver) = ledger::channel();
        tokio::spawn(async move { while receiver.recv().await.is_some() {} });
        let (index, sandboxes) = (Index::new(bounds), Sandboxes::new(signer));
        let core = Core::new(index, pods, changes, sandboxes, template, Default::default());
        let entry = LedgerEntry {
            lease: "l/1".into(),
            run: "r".into(),
            sandbox: SANDBOX.into(),
            pod_uid: "u".into(),
            restarts: 0,
            image: "x".into(),
            epoch: 7,
            expires_at: now() + 100_000,
            ttl_millis: 100_000,
            priority: Priority::Agent,
        };
        let found = Found { ip, ..Found::default() };
        let held = ActiveLease::restored(entry, found, now());
        core.sandboxes.bind(Holder::of(&held), 100).await.unwrap();
        core.look(|index| index.leases.insert("l/1".into(), held));
        let url = serve(grpo_gateway::http::router(core.clone())).await;
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        Self {
            core,
            sandboxds,
            url,
            http,
        }
    }

    fn at(&self, path: &str) -> String {
        format!("{}/v1/leases/l%2F1/{path}", self.url)
    }

    async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        told(self.http.post(self.at(path)).json(&body)).await
    }

    async fn put(&self, path: &str, body: Value) -> (StatusCode, Value) {
        told(self.http.put(self.at(path)).json(&body)).await
    }

    async fn get(&self, path: &str) -> (StatusCode, Value) {
        told(self.http.get(self.at(path))).await
    }

    fn running(&self) -> u32 {
        self.core.look(|index| index.leases["l/1"].running)
    }
}

async fn told(request: reqwest::RequestBuilder) -> (StatusCode, Value) {
    let answer = request.send().await.unwrap();
    let status = answer.status();
    let text = answer.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

async fn serve(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

fn free_port() -> u16 {
    grpo_free_port::free_port().unwrap()
}

fn shell(id: &str, script: &str) -> Value {
    json!({"id": id, "argv": ["sh", "-c", script], "timeoutSeconds": 30})
}

#[tokio::test]
async fn a_command_in_the_background_is_started_read_killed_and_asked_for_through_the_gateway() {
    let leased = Leased::begin().await;
    let (status, state) = leased.post("exec/start", shell("b", "echo one; sleep 1000")).await;
    assert_eq!((status, state["result"].is_null()), (StatusCode::OK, true));
    let (_, part) = leased.get("exec/output?id=b&waitSeconds=20").await;
    assert_eq!((&part["data"], &part["next"]), (&json!("b25lCg=="), &json!(4)));
    let (_, state) = leased.post("exec/kill", json!({"id": "b"})).await;
    assert_eq!(state["result"]["killed"], "Request");
    let (_, again) = leased.get("exec?id=b").await;
    assert_eq!(again, state);
    assert_eq!(leased.running(), 0);
    let (status, error) = leased.get("exec?id=never").await;
    assert_eq!((status, &error["code"]), (StatusCode::NOT_FOUND, &json!("NoSuchExec")));
    let (status, error) = leased
        .post("exec/start", json!({"id": "", "argv": ["x"], "timeoutSeconds": 1}))
        .await;
    assert_eq!(
        (status, &error["code"]),
        (StatusCode::BAD_REQUEST, &json!("BadRequest"))
    );
}

#[tokio::test]
async fn a_lease_is_in_use_while_somebody_waits_for_a_command_and_no_longer() {
    let leased = Leased::begin().await;
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let script = format!("while [ ! -e {} ]; do sleep 0.01; done", go.display());
    let waiting = leased.post("exec", shell("e", &script));
    let (_, ()) = tokio::join!(waiting, async {
        while leased.running() == 0 {
            tokio::task::yield_now().await;
        }
        std::fs::write(&go, "").unwrap();
    });
    assert_eq!(leased.running(), 0);
}

/// Nothing closes the connections of a node without power. Here the sandbox works on, and only the watch says so.
#[tokio::test]
async fn a_command_ends_when_its_sandbox_is_known_to_be_lost() {
    let leased = Leased::begin().await;
    let waiting = leased.post("exec", shell("e", "sleep 1000"));
    let ((status, error), ()) = tokio::join!(waiting, async {
        while leased.running() == 0 {
            tokio::task::yield_now().await;
        }
        leased.core.look(|index| {
            let mut sandbox = Sandbox::ordered("x", None);
            sandbox.lease = Some("l/1".into());
            index.sandboxes.insert(SANDBOX.into(), sandbox);
            index.discard(SANDBOX, SandboxCause::NodeLost, now());
        });
    });
    assert!(!status.is_success(), "{error}");
    assert_eq!(error["code"], "SandboxLost");
    assert_eq!(error["cause"], "NodeLost");
}

#[tokio::test]
async fn a_session_is_talked_to_through_the_gateway() {
    let leased = Leased::begin().await;
    let session = json!({"id": "s", "argv": ["bash", "--norc"], "env": {"PS1": "$ "}});
    assert_eq!(leased.post("sessions", session).await.0, StatusCode::NO_CONTENT);
    let input = |id: &str, text: &str| json!({"session": "s", "id": id, "text": text, "prompt": "\\$ ", "timeoutMillis": 20_000});
    leased.post("sessions/input", input("0", "")).await;
    let (_, reply) = leased
        .post("sessions/input", input("1", "cd /tmp; x=5; echo $x$x\n"))
        .await;
    assert_eq!(
        (&reply["output"], &reply["until"]),
        (&json!("55\n$ "), &json!("Prompt"))
    );
    assert_eq!(
        leased.post("sessions/close", json!({"id": "s"})).await.0,
        StatusCode::NO_CONTENT
    );
}

#[tokio::test]
async fn files_and_trees_go_in_and_out_and_what_is_too_large_is_refused_before_it_is_read() {
    let leased = Leased::begin().await;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let large = vec![b'x'; 20 << 20];
    let put = leased.http.put(leased.at(&format!("files?path={}", path("in/large"))));
    let (status, said) = told(put.body(large.clone())).await;
    assert_eq!(status, StatusCode::NO_CONTENT, "{said}");
    let got = leased.http.get(leased.at(&format!("files?path={}", path("in/large"))));
    assert_eq!(got.send().await.unwrap().bytes().await.unwrap(), large);
    let tree = leased.http.get(leased.at(&format!("tree?path={}", path("in"))));
    let tree = tree.send().await.unwrap().bytes().await.unwrap();
    let put = leased.http.put(leased.at(&format!("tree?path={}", path("copy"))));
    assert_eq!(told(put.body(tree)).await.0, StatusCode::NO_CONTENT);
    assert_eq!(std::fs::read(path("copy/large")).unwrap(), large);
    let put = leased.http.put(leased.at("files?path=/no/matter"));
    let never = futures::stream::pending::<Result<Vec<u8>, std::io::Error>>();
    let declared = put
        .header("content-length", MAX_FILE_BYTES + 1)
        .body(reqwest::Body::wrap_stream(never));
    let answer = tokio::time::timeout(Duration::from_secs(60), declared.send())
        .await
        .unwrap();
    assert_eq!(answer.unwrap().status(), StatusCode::PAYLOAD_TOO_LARGE);
}

/// A body that stops in the middle and reports that it has arrived there.
fn half_a_body(arrived: tokio::sync::oneshot::Sender<()>) -> reqwest::Body {
    let first = futures::stream::iter(0..32).map(|_| Ok::<_, std::io::Error>(vec![0_u8; 1 << 20]));
    // More than socket buffers hold, so the gateway must read it.
    let then = futures::stream::once(async move {
        let _ = arrived.send(());
        std::future::pending().await
    });
    reqwest::Body::wrap_stream(first.chain(then))
}

#[tokio::test]
async fn bodies_for_other_systems_take_room_of_their_own_and_give_it_back() {
    let leased = Leased::begin().await;
    let mut uploads = Vec::new();
    for _ in 0..2 {
        let (arrived, half) = tokio::sync::oneshot::channel();
        let upload = leased.http.post(format!("{}/compat/swerex/l%2F1/upload", leased.url));
        let upload = upload
            .header("content-length", MAX_FILE_BYTES)
            .body(half_a_body(arrived));
        uploads.push(tokio::spawn(upload.send()));
        half.await.unwrap();
    }
    let call = json!({"lease_id": "x", "patch": "x".repeat(100_000)});
    let waits = leased
        .http
        .post(format!("{}/compat/pool/heartbeat", leased.url))
        .json(&call);
    let waits = tokio::spawn(waits.send());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own");
    let put = leased.http.put(leased.at(&format!("files?path={}", path.display())));
    let (status, said) = told(put.body(vec![b'x'; 1 << 20])).await;
    assert_eq!(status, StatusCode::NO_CONTENT, "the own API has room: {said}");
    assert!(!waits.is_finished(), "the others have taken the room");
    uploads.into_iter().for_each(|upload| upload.abort());
    let answer = tokio::time::timeout(Duration::from_secs(60), waits).await.unwrap();
    assert_eq!(
        answer.unwrap().unwrap().status(),
        StatusCode::INTERNAL_SERVER_ERROR,
        "no such lease"
    );
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
    leased
        .put("relay", json!({"port": port, "to": "http://127.0.0.1:1"}))
        .await;
    let (status, error) = told(leased.http.get(&inside)).await;
    assert_eq!(
        (status, &error["error"]["type"]),
        (StatusCode::BAD_GATEWAY, &json!("relay_error"))
    );
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
    let (status, error) = told(leased.http.get(format!("http://127.0.0.1:{port}"))).await;
    let wanted = (StatusCode::BAD_GATEWAY, &json!("relay_error"));
    assert_eq!((status, &error["error"]["type"]), wanted);
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
