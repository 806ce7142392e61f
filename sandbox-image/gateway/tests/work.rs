//! A holder's work in its sandbox, through the gateway and a real sandboxd.

use std::time::Duration;

use futures::StreamExt as _;
use grpo_gateway::core::now;
use grpo_gateway::index::Sandbox;
use grpo_sandbox_protocol::{MAX_FILE_BYTES, SandboxCause};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::leased::{Leased, SANDBOX, told};

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
