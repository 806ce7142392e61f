//! Logs of two pods, from a simulated API server on a socket. The driver's log is complete.

use super::*;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use grpo_contracts::names::{ATTEMPT, ROLE, RUN};
use serde_json::{Value, json};

const RUN_PATH: &str = "/apis/grpo.dev/v1alpha1/namespaces/team/grporuns/demo";
const LINE: &str = "2026-01-01T00:00:00Z ready\n";

/// How the node of the trainer answers.
#[derive(Clone, Copy, Debug)]
enum Node {
    Answers,
    Refuses(u16),
    BreaksOff,
}

fn status(code: u16) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": "", "message": "no"})
}

async fn run() -> Json<Value> {
    Json(json!({
        "apiVersion": "grpo.dev/v1alpha1", "kind": "GrpoRun", "metadata": {"name": "demo", "namespace": "team"},
        "spec": {
            "model": {"image": {"reference": "m"}}, "tasks": {}, "agent": {"bash": {}},
            "inference": {"poolRef": {"name": "p"}}, "sandboxes": {"poolRef": {"name": "p"}},
            "store": {"persistentVolumeClaim": {"claimName": "c"}},
        },
    }))
}

async fn pods() -> Json<Value> {
    let pod = |role: &str| {
        let container = json!({
            "name": role, "image": "i", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}},
        });
        json!({
            "metadata": {"name": role, "uid": role, "labels": {RUN: "demo", ROLE: role, ATTEMPT: "1"}},
            "status": {"phase": "Running", "containerStatuses": [container]},
        })
    };
    let items = [pod("driver"), pod("trainer")];
    Json(json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}))
}

async fn log(State(node): State<Node>, Path(pod): Path<String>) -> Response {
    match node {
        Node::Refuses(code) if pod == "trainer" => {
            (StatusCode::from_u16(code).unwrap(), Json(status(code))).into_response()
        }
        Node::BreaksOff if pod == "trainer" => {
            let parts = [Ok(LINE), Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset))];
            Body::from_stream(futures::stream::iter(parts)).into_response()
        }
        _ => LINE.into_response(),
    }
}

async fn logs_with(node: Node) -> Result<(), Error> {
    let router = Router::new()
        .route(RUN_PATH, get(run))
        .route("/api/v1/namespaces/team/pods", get(pods))
        .route("/api/v1/namespaces/team/pods/{name}/log", get(log))
        .with_state(node);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let cluster = Cluster {
        client: kube::Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap(),
        namespace: "team".into(),
        given: None,
    };
    let wanted = Logs {
        run: "demo".into(),
        follow: false,
        since: None,
        tail: None,
        part: Vec::new(),
    };
    logs(&cluster, &wanted).await
}

#[tokio::test]
async fn logs_that_all_nodes_give_are_a_success() {
    for node in [Node::Answers, Node::Refuses(404), Node::Refuses(400)] {
        let ended = logs_with(node).await;
        assert!(ended.is_ok(), "{node:?}: {ended:?}");
    }
}

#[tokio::test]
async fn a_log_that_cannot_be_read_is_counted_after_the_others_were_printed() {
    for node in [Node::Refuses(500), Node::BreaksOff] {
        let error = logs_with(node).await.unwrap_err();
        assert!(
            matches!(error, Error::LogsUnread { unread: 1, all: 2 }),
            "{node:?}: {error}"
        );
        assert_eq!(error.exit_code(), 1);
    }
}

#[tokio::test]
async fn logs_that_may_not_be_read_end_the_command() {
    let error = logs_with(Node::Refuses(403)).await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::Forbidden {
                resource: "pods/log",
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn while_following_only_a_refusal_or_the_end_of_the_container_ends_a_log() {
    let asking = Asking {
        verb: "get",
        resource: "pods/log",
        namespace: Some("team"),
        name: "driver",
    };
    for (code, ends) in [(400, true), (403, true), (404, true), (500, false), (502, false)] {
        let answer = kube::core::Status::failure("no", "").with_code(code).boxed();
        let end = end_after(kube::Error::Api(answer), true, asking);
        assert_eq!(end.is_some(), ends, "{code}");
    }
}
