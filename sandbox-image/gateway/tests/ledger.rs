//! The ledger against an API server that compares resource versions, as the real one does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use grpo_gateway::ledger::{self, Change, Counters, Ledger, LedgerError};
use grpo_sandbox_protocol::{EgressReport, LedgerEntry, PoolReport, Priority};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Api;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// ConfigMaps by name, and a gate before the handling of each update.
#[derive(Clone)]
struct Server {
    stored: Arc<Mutex<BTreeMap<String, Value>>>,
    gate: Arc<tokio::sync::Semaphore>,
    /// Number of updates that are carried out but not answered.
    unanswered: Arc<Mutex<usize>>,
}

fn status(code: StatusCode, reason: &str) -> Response {
    let status =
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code.as_u16()});
    (code, Json(status)).into_response()
}

async fn read(State(server): State<Server>, Path(name): Path<String>) -> Response {
    match server.stored.lock().unwrap().get(&name) {
        Some(found) => Json(found.clone()).into_response(),
        None => status(StatusCode::NOT_FOUND, "NotFound"),
    }
}

async fn replace(State(server): State<Server>, Path(name): Path<String>, Json(mut new): Json<Value>) -> Response {
    drop(server.gate.acquire().await.unwrap());
    let mut stored = server.stored.lock().unwrap();
    let Some(current) = stored.get_mut(&name) else {
        return status(StatusCode::NOT_FOUND, "NotFound");
    };
    let version = |value: &Value| value["metadata"]["resourceVersion"].clone();
    if version(&new) != version(current) {
        return status(StatusCode::CONFLICT, "Conflict");
    }
    let next = version(current).as_str().unwrap().parse::<u64>().unwrap() + 1;
    new["metadata"]["resourceVersion"] = json!(next.to_string());
    *current = new;
    let mut unanswered = server.unanswered.lock().unwrap();
    if *unanswered > 0 {
        *unanswered -= 1;
        return status(StatusCode::INTERNAL_SERVER_ERROR, "InternalError");
    }
    Json(current.clone()).into_response()
}

impl Server {
    async fn start(shards: usize) -> (Self, Api<ConfigMap>, Vec<String>) {
        let names: Vec<String> = (0..shards).map(|n| format!("ledger-{n}")).collect();
        let empty = |name: &String| {
            let object =
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "resourceVersion": "1"}});
            (name.clone(), object)
        };
        let server = Self {
            stored: Arc::new(Mutex::new(names.iter().map(empty).collect())),
            gate: Arc::new(tokio::sync::Semaphore::new(1)),
            unanswered: Arc::default(),
        };
        let router = Router::new()
            .route("/api/v1/namespaces/n/configmaps/{name}", get(read).put(replace))
            .with_state(server.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let client = kube::Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
        (server, Api::namespaced(client, "n"), names)
    }

    /// Leases by shard, as stored.
    fn leases(&self) -> Vec<Vec<String>> {
        let stored = self.stored.lock().unwrap();
        let keys = |shard: &Value| shard["data"].as_object().map(|data| data.keys().cloned().collect());
        stored.values().map(|shard| keys(shard).unwrap_or_default()).collect()
    }
}

fn entry(lease: &str, epoch: u64) -> LedgerEntry {
    LedgerEntry {
        lease: lease.into(),
        run: "r".into(),
        sandbox: "s".into(),
        pod_uid: "u".into(),
        restarts: 0,
        image: "x".into(),
        epoch,
        expires_at: 1,
        ttl_millis: 1,
        priority: Priority::Agent,
    }
}

fn put(lease: &str, epoch: u64) -> (Change, oneshot::Receiver<()>) {
    let (done, committed) = oneshot::channel();
    let entry = entry(lease, epoch);
    (Change::Put { entry, done }, committed)
}

fn extend(lease: &str, epoch: u64) -> (Change, oneshot::Receiver<()>) {
    let (done, committed) = oneshot::channel();
    let entry = LedgerEntry {
        ttl_millis: 1000,
        ..entry(lease, epoch)
    };
    (Change::Extend { entry, done }, committed)
}

fn remove(lease: &str, epoch: u64) -> Change {
    let lease = lease.to_owned();
    Change::Remove { lease, epoch }
}

/// A gateway's running ledger.
struct Office {
    changes: mpsc::Sender<Change>,
    counters: Counters,
    writer: JoinHandle<Result<(), LedgerError>>,
    found: Vec<LedgerEntry>,
    report: PoolReport,
}

impl Office {
    async fn open(api: &Api<ConfigMap>, names: &[String], holder: &str) -> Self {
        let (ledger, found, known) = Ledger::open(api.clone(), names, holder).await.unwrap();
        let (changes, receiver) = ledger::channel();
        let (counters, report) = (known.counters, known.report);
        let writer = tokio::spawn(ledger.run(receiver));
        Self {
            changes,
            counters,
            writer,
            found,
            report,
        }
    }

    async fn put(&self, lease: &str, epoch: u64) -> oneshot::Receiver<()> {
        let (change, committed) = put(lease, epoch);
        self.changes.send(change).await.unwrap();
        committed
    }

    async fn remove(&self, lease: &str, epoch: u64) {
        self.changes.send(remove(lease, epoch)).await.unwrap();
    }

    async fn extend(&self, lease: &str, epoch: u64) -> oneshot::Receiver<()> {
        let (change, committed) = extend(lease, epoch);
        self.changes.send(change).await.unwrap();
        committed
    }

    /// Waits until the writer has received every sent change.
    async fn heard(&self) {
        while self.changes.capacity() < self.changes.max_capacity() {
            tokio::task::yield_now().await;
        }
    }

    async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        self.changes.send(Change::Flush { done }).await.unwrap();
        flushed.await.unwrap();
    }
}

#[tokio::test]
async fn a_gateway_that_begins_finds_the_leases_of_the_one_before_and_puts_it_out_of_office() {
    let (_server, api, names) = Server::start(3).await;
    let first = Office::open(&api, &names, "first").await;
    assert_eq!(first.found, []);
    first.put("a", 1).await.await.unwrap();

    let second = Office::open(&api, &names, "second").await;
    assert_eq!(second.found, [entry("a", 1)]);

    let committed = first.put("b", 2).await;
    assert!(committed.await.is_err(), "what is not in the ledger is not granted");
    let ended = first.writer.await.unwrap();
    assert!(matches!(ended, Err(LedgerError::Fenced { .. })), "{ended:?}");
    second.put("c", 3).await.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_writes_nothing_notices_too_that_it_was_replaced() {
    let (_server, api, names) = Server::start(1).await;
    let first = Office::open(&api, &names, "first").await;
    let _second = Office::open(&api, &names, "second").await;
    let ended = first.writer.await.unwrap();
    assert!(matches!(ended, Err(LedgerError::Fenced { .. })), "{ended:?}");
}

#[tokio::test]
async fn of_two_that_take_hold_at_once_the_later_one_has_every_shard() {
    let (server, api, names) = Server::start(4).await;
    let (earlier, later) = (
        Ledger::open(api.clone(), &names, "x"),
        Ledger::open(api.clone(), &names, "y"),
    );
    let opened = tokio::join!(earlier, later);
    let terms = [opened.0.map(|o| o.0.term()), opened.1.map(|o| o.0.term())];
    assert!(terms.iter().any(|term| matches!(term, Ok(2))), "{terms:?}");
    let stored = server.stored.lock().unwrap();
    let marks: Vec<&Value> = stored.values().map(|s| &s["metadata"]["annotations"]).collect();
    assert!(marks.iter().all(|mark| *mark == marks[0]), "{marks:?}");
    assert_eq!(marks[0]["grpo.dev/ledger-term"], "2");
}

#[tokio::test]
async fn what_gathers_while_an_update_is_under_way_is_one_update() {
    let (server, api, names) = Server::start(2).await;
    let office = Office::open(&api, &names, "a").await;
    let shut = server.gate.acquire().await.unwrap();
    let first = office.put("first", 1).await;
    office.heard().await;
    let mut others = Vec::new();
    for nth in 0..100 {
        others.push(office.put(&format!("l{nth}"), 2).await);
    }
    office.heard().await;
    drop(shut);
    first.await.unwrap();
    for committed in others {
        committed.await.unwrap();
    }
    assert_eq!(office.counters.writes.get(), 2);
    assert_eq!(office.counters.leases.get(), 101);
    assert_eq!(server.leases().concat().len(), 101);
}

#[tokio::test]
async fn leases_one_after_the_other_with_their_releases_are_one_update_each() {
    let (server, api, names) = Server::start(2).await;
    let office = Office::open(&api, &names, "a").await;
    for nth in 0..50 {
        let lease = format!("l{nth}");
        office.put(&lease, nth).await.await.unwrap();
        office.remove(&lease, nth).await;
    }
    assert!(office.counters.writes.get() <= 51, "{:?}", office.counters);
    office.flush().await;
    assert!(office.counters.writes.get() <= 52, "{:?}", office.counters);
    assert!(server.leases().concat().is_empty());
}

#[tokio::test]
async fn a_shard_holds_no_more_than_it_should_and_several_are_filled() {
    let (server, api, names) = Server::start(3).await;
    let office = Office::open(&api, &names, "a").await;
    let mut waiting = Vec::new();
    for nth in 0..700 {
        waiting.push(office.put(&format!("l{nth}"), nth).await);
    }
    for committed in waiting {
        committed.await.unwrap();
    }
    let mut sizes: Vec<usize> = server.leases().iter().map(Vec::len).collect();
    sizes.sort();
    assert_eq!(sizes.iter().sum::<usize>(), 700);
    assert!(
        sizes
            .iter()
            .all(|size| *size <= grpo_contracts::names::LEASES_PER_SHARD),
        "{sizes:?}"
    );
    let next = Office::open(&api, &names, "b").await;
    assert_eq!(next.found.len(), 700);
}

#[tokio::test]
async fn a_longer_time_needs_no_room_in_a_full_ledger() {
    let (server, api, names) = Server::start(1).await;
    let office = Office::open(&api, &names, "a").await;
    for nth in 0..grpo_contracts::names::LEASES_PER_SHARD as u64 {
        office.put(&format!("l{nth}"), nth).await.await.unwrap();
    }
    office.extend("l7", 7).await.await.unwrap();
    let extended = server.leases().concat();
    assert_eq!(extended.len(), grpo_contracts::names::LEASES_PER_SHARD);
}

#[tokio::test]
async fn what_is_removed_late_does_not_take_a_later_lease_of_the_same_id_along() {
    let (server, api, names) = Server::start(2).await;
    let office = Office::open(&api, &names, "a").await;
    office.put("l", 1).await.await.unwrap();
    office.remove("l", 1).await;
    office.put("l", 2).await.await.unwrap();
    office.remove("l", 1).await;
    office.flush().await;
    assert_eq!(server.leases().concat(), ["l"]);
    let next = Office::open(&api, &names, "b").await;
    assert_eq!(next.found, [entry("l", 2)]);
    office.writer.abort();
}

#[tokio::test]
async fn a_longer_time_that_waits_to_be_written_does_not_bring_a_removed_lease_back() {
    let (server, api, names) = Server::start(1).await;
    let office = Office::open(&api, &names, "a").await;
    office.put("l", 1).await.await.unwrap();
    let shut = server.gate.acquire().await.unwrap();
    // The shard is being written, so the other changes wait.
    let other = office.put("other", 2).await;
    office.heard().await;
    let extended = office.extend("l", 1).await;
    office.heard().await;
    office.remove("l", 1).await;
    office.heard().await;
    drop(shut);
    other.await.unwrap();
    office.flush().await;
    assert!(extended.await.is_err(), "the lease is gone");
    assert_eq!(server.leases(), [["other"]]);
}

#[tokio::test]
async fn a_longer_time_that_comes_after_the_removal_is_refused_and_one_before_it_is_kept() {
    let (server, api, names) = Server::start(2).await;
    let office = Office::open(&api, &names, "a").await;
    office.put("l", 1).await.await.unwrap();
    office.extend("l", 1).await.await.unwrap();
    assert!(office.extend("l", 9).await.await.is_err(), "that is another lease");
    let next = Office::open(&api, &names, "b").await;
    assert_eq!(next.found[0].ttl_millis, 1000);
    next.remove("l", 1).await;
    assert!(next.extend("l", 1).await.await.is_err());
    next.flush().await;
    assert!(server.leases().concat().is_empty());
    office.writer.abort();
}

#[tokio::test]
async fn an_update_whose_answer_was_lost_is_done_and_not_done_twice() {
    let (server, api, names) = Server::start(1).await;
    let office = Office::open(&api, &names, "a").await;
    *server.unanswered.lock().unwrap() = 1;
    office.put("a", 1).await.await.unwrap();
    office.put("b", 2).await.await.unwrap();
    assert_eq!(server.leases(), [["a", "b"]]);
    assert_eq!(office.counters.leases.get(), 2);
}

#[tokio::test]
async fn what_is_told_of_the_pool_is_kept_with_the_ledger_and_goes_along_with_leases() {
    let (server, api, names) = Server::start(2).await;
    let office = Office::open(&api, &names, "a").await;
    assert_eq!(office.report, PoolReport::default());
    let report = PoolReport {
        egress: Some(EgressReport {
            at: 7,
            tried: vec!["the API server".into()],
            reached: Vec::new(),
            blocked_after_seconds: None,
            failed: None,
        }),
        limits: None,
        ..PoolReport::default()
    };
    let before = office.counters.writes.get();
    office
        .changes
        .send(Change::Report(Box::new(report.clone())))
        .await
        .unwrap();
    office.put("l", 1).await.await.unwrap();
    office.flush().await;
    office
        .changes
        .send(Change::Report(Box::new(report.clone())))
        .await
        .unwrap();
    office.flush().await;
    assert_eq!(
        office.counters.writes.get(),
        before + 1,
        "with the lease, and never again"
    );
    // A foreign change of labels makes the next update a conflict.
    server.stored.lock().unwrap().get_mut("ledger-0").unwrap()["metadata"]["resourceVersion"] = json!("100");
    office.put("m", 2).await.await.unwrap();
    let next = Office::open(&api, &names, "b").await;
    assert_eq!((next.report, next.found.len()), (report, 2));
}

#[tokio::test(start_paused = true)]
async fn releases_alone_are_written_together_before_long() {
    let (server, api, names) = Server::start(1).await;
    let office = Office::open(&api, &names, "a").await;
    for nth in 0..10 {
        office.put(&format!("l{nth}"), nth).await.await.unwrap();
    }
    let before = office.counters.writes.get();
    for nth in 0..10 {
        office.remove(&format!("l{nth}"), nth).await;
    }
    tokio::time::timeout(Duration::from_secs(4), async {
        while !server.leases().concat().is_empty() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await
    .unwrap();
    assert_eq!(office.counters.writes.get(), before + 1);
}
