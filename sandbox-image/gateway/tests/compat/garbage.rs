//! All kinds of requests to a gateway, damaged at random.

use std::time::Duration;

use grpo_gateway::index::Bounds;
use grpo_sandbox_protocol::Lease;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::World;
use crate::dice::{Dice, rounds};
use crate::played::{bounds, sandboxes::Sandboxds};

/// Longest time that a caller may wait for an answer, except in the queue.
const WITHIN: Duration = Duration::from_secs(20);
/// Maximum growth of memory, the simulated cluster included, in kibibytes.
const GROWTH: u64 = 256 << 10;

fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

async fn world() -> World {
    // Leases of unknown callers expire soon.
    let bounds = Bounds {
        max_ttl_millis: 60_000,
        ..bounds(8)
    };
    World::on(Sandboxds::confined(), bounds, "allowUnenforced: true").await
}

async fn still_serves(world: &World, id: &str, before: u64) {
    let request =
        json!({"id": id, "run": "r", "image": "task:1", "ttlSeconds": 60, "waitSeconds": 90, "priority": "Grader"});
    let url = format!("{}/v1/leases", world.url);
    let asked = world.http.post(&url).json(&request).send().await.unwrap();
    assert_eq!(asked.status(), 200, "{}", asked.text().await.unwrap());
    let released = world.http.delete(format!("{url}/{id}")).send().await.unwrap();
    assert_eq!(released.status(), 204);
    let growth = memory().saturating_sub(before);
    assert!(growth < GROWTH, "{growth} KiB more than before");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_are_no_request_are_refused_or_dropped() {
    let world = world().await;
    let address = world.url.strip_prefix("http://").unwrap().to_owned();
    let before = memory();
    let mut dice = Dice::new(4);
    let requests: [&[u8]; 4] = [
        b"GET /v1/pool HTTP/1.1\r\nhost: g\r\n\r\n",
        b"POST /v1/leases HTTP/1.1\r\nhost: g\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n{\"id\": \"a\"}",
        b"PUT /v1/leases/a/files?path=/none HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"GET /v1/leases/a/exec/output?id=e&from=1&limit=2 HTTP/1.1\r\nhost: g\r\nx-grpo-lease: a\r\n\r\n",
    ];
    for round in rounds(600) {
        let bytes = dice.spoil(requests[round % requests.len()]);
        let exchange = async {
            let mut stream = TcpStream::connect(&address).await.unwrap();
            // The gateway may close the connection before all is sent.
            let _ = stream.write_all(&bytes).await;
            let _ = stream.shutdown().await;
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
        };
        let ended = tokio::time::timeout(WITHIN, exchange).await;
        assert!(ended.is_ok(), "held by {:?}", String::from_utf8_lossy(&bytes));
    }
    still_serves(&world, "after-bytes", before).await;
}

/// Every call with a body, for the lease `a` of the gateway's own API, and for the leases of the others.
fn calls(pooled: &str, container: &str) -> Vec<(Method, String, Value)> {
    let post = |path: &str, body: Value| (Method::POST, path.to_owned(), body);
    let exec = json!({"id": "e1", "argv": ["true"], "env": {"A": "b"}, "cwd": "/", "stdin": "x", "timeoutSeconds": 1, "maxOutputBytes": 99});
    vec![
        post(
            "/v1/leases",
            json!({"id": "b", "run": "r", "image": "task:1", "ttlSeconds": 9, "waitSeconds": 1, "priority": "Agent"}),
        ),
        post("/v1/leases/a/renew", json!({"ttlSeconds": 600})),
        (
            Method::PUT,
            "/v1/demand".to_owned(),
            json!({"run": "r", "images": [{"image": "task:1", "count": 2}]}),
        ),
        post("/v1/leases/a/exec", exec.clone()),
        post("/v1/leases/a/exec/start", exec),
        post("/v1/leases/a/exec/kill", json!({"id": "e1", "signal": 15})),
        post(
            "/v1/leases/a/sessions",
            json!({"id": "s1", "argv": ["timeout", "2", "cat"], "cwd": "/", "env": {"A": "b"}}),
        ),
        post(
            "/v1/leases/a/sessions/input",
            json!({"session": "s1", "id": "i1", "text": "x\n", "prompt": "[xy]+(a|b)*", "idleMillis": 5, "timeoutMillis": 9}),
        ),
        post("/v1/leases/a/sessions/close", json!({"id": "s1"})),
        (
            Method::PUT,
            "/v1/leases/a/files?path=/nowhere/file".to_owned(),
            json!("text"),
        ),
        (Method::PUT, "/v1/leases/a/tree?path=/nowhere".to_owned(), json!("text")),
        (
            Method::PUT,
            "/v1/leases/a/relay".to_owned(),
            json!({"port": 9, "url": "http://127.0.0.1:9/v1"}),
        ),
        post("/compat/pool/allocate", json!({"image": "task:1", "instance_id": "x"})),
        post("/compat/pool/heartbeat", json!({"lease_id": pooled})),
        post(
            "/compat/pool/exec",
            json!({"lease_id": pooled, "command": "true", "cwd": "/", "timeout": 1, "env": {}}),
        ),
        post("/compat/pool/diff", json!({"lease_id": pooled, "cwd": "/"})),
        post(
            "/compat/pool/evaluate",
            json!({"lease_id": pooled, "cwd": "/", "patch": "", "eval_script": "true", "timeout": 1}),
        ),
        post(
            "/compat/exec/container/exec",
            json!({"container_id": container, "command": "true", "cwd": "/", "timeout": "1"}),
        ),
        post(
            "/compat/exec/container/diff",
            json!({"container_id": container, "cwd": "/"}),
        ),
        post(
            "/compat/swerex/a/execute",
            json!({"command": ["true"], "timeout": 1.0, "shell": false}),
        ),
        post(
            "/compat/swerex/a/create_session",
            json!({"session_type": "bash", "session": "default", "startup_timeout": 0.1}),
        ),
        post(
            "/compat/swerex/a/run_in_session",
            json!({"action_type": "bash", "session": "default", "command": "true", "timeout": 0.2}),
        ),
        post("/compat/swerex/a/read_file", json!({"path": "/etc/hostname"})),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_with_a_spoilt_body_is_answered() {
    let world = world().await;
    let leased =
        json!({"id": "a", "run": "r", "image": "task:1", "ttlSeconds": 600, "waitSeconds": 60, "priority": "Agent"});
    let leased = world
        .http
        .post(format!("{}/v1/leases", world.url))
        .json(&leased)
        .send()
        .await
        .unwrap();
    let _: Lease = leased.json().await.unwrap();
    let allocated = world
        .pool("/allocate", json!({"image": "task:1", "instance_id": "x"}))
        .await;
    let (_, created) = world
        .post("/compat/exec/container/create", json!({"image": "task:1"}))
        .await;
    let calls = calls(
        allocated["lease_id"].as_str().unwrap(),
        created["container_id"].as_str().unwrap(),
    );
    let before = memory();
    let mut dice = Dice::new(5);
    for round in rounds(920) {
        // At most one call of ten waits in the queue; several together may wait for longer than the lease lasts.
        if round % 10 == 0 {
            let request = json!({"ttlSeconds": 600});
            let renewed = world
                .http
                .post(format!("{}/v1/leases/a/renew", world.url))
                .json(&request);
            assert_eq!(renewed.send().await.unwrap().status(), 200);
        }
        let (method, path, body) = &calls[round % calls.len()];
        let spoilt = dice.spoil(body.to_string().as_bytes());
        let shown = String::from_utf8_lossy(&spoilt).into_owned();
        let request = world.http.request(method.clone(), format!("{}{path}", world.url));
        let request = request.header("content-type", "application/json").body(spoilt);
        // A lease request may wait as long as the damaged text says.
        let is_queue = ["/v1/leases", "/compat/pool/allocate"].contains(&path.as_str());
        match tokio::time::timeout(WITHIN, request.send()).await {
            Err(_) if is_queue => continue,
            Err(_) => panic!("{path} held by {shown}"),
            Ok(answer) => {
                let (status, text) = (answer.as_ref().unwrap().status(), answer.unwrap().text().await.unwrap());
                // These contracts answer every failure with 500.
                let is_foreign = path.starts_with("/compat/") && !text.is_empty();
                let is_right = status.is_success() || status.is_client_error() || [502, 503].contains(&status.as_u16());
                assert!(is_right || is_foreign, "{path} {status} {text}: {shown}");
            }
        }
    }
    still_serves(&world, "after-bodies", before).await;
}
