//! The ledger against an API server that compares resource versions, as the real one does.

#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use grpo_gateway::ledger::{self, Change, Ledger, LedgerError};
use grpo_sandbox_protocol::{LedgerEntry, Priority};
use kube::api::Api;
use serde_json::{Value, json};
use tokio::sync::oneshot;

type Stored = Arc<Mutex<Value>>;

async fn read(State(stored): State<Stored>) -> Json<Value> {
    Json(stored.lock().unwrap().clone())
}

async fn replace(State(stored): State<Stored>, Json(mut new): Json<Value>) -> Response {
    let mut stored = stored.lock().unwrap();
    let version = |value: &Value| value["metadata"]["resourceVersion"].clone();
    if version(&new) != version(&stored) {
        let status =
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Conflict", "code": 409});
        return (StatusCode::CONFLICT, Json(status)).into_response();
    }
    let next = version(&stored).as_str().unwrap().parse::<u64>().unwrap() + 1;
    new["metadata"]["resourceVersion"] = json!(next.to_string());
    *stored = new;
    Json(stored.clone()).into_response()
}

async fn api() -> Api<k8s_openapi::api::core::v1::ConfigMap> {
    let empty =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ledger", "resourceVersion": "1"}});
    let router = Router::new()
        .route("/api/v1/namespaces/n/configmaps/ledger", get(read).put(replace))
        .with_state(Arc::new(Mutex::new(empty)));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    let client = kube::Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
    Api::namespaced(client, "n")
}

fn put(lease: &str) -> (Change, oneshot::Receiver<()>) {
    let (done, committed) = oneshot::channel();
    let entry = LedgerEntry {
        lease: lease.into(),
        run: "r".into(),
        sandbox: "s".into(),
        pod_uid: "u".into(),
        image: "x".into(),
        epoch: 1,
        expires_at: 1,
        priority: Priority::Agent,
    };
    (Change::Put { entry, done }, committed)
}

#[tokio::test]
async fn a_gateway_that_begins_finds_the_leases_of_the_one_before_and_puts_it_out_of_office() {
    let api = api().await;
    let (first, found) = Ledger::open(api.clone(), "ledger", "first").await.unwrap();
    assert_eq!(found, []);
    let (changes, receiver) = ledger::channel();
    let first = tokio::spawn(first.run(receiver));
    let (change, committed) = put("a");
    changes.send(change).await.unwrap();
    committed.await.unwrap();

    let (_second, found) = Ledger::open(api, "ledger", "second").await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].lease, "a");

    let (change, committed) = put("b");
    changes.send(change).await.unwrap();
    assert!(committed.await.is_err(), "what is not in the ledger is not promised");
    let ended = first.await.unwrap();
    assert!(matches!(ended, Err(LedgerError::Fenced { .. })), "{ended:?}");
}
