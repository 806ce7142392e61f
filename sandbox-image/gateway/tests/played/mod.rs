//! A simulated API server that has pods and ConfigMaps, and reports pods as they change. The test decides where a pod
//! runs.

#![allow(dead_code)]

pub mod sandboxes;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use grpo_gateway::begin::Beginning;
use grpo_gateway::core::Core;
use grpo_gateway::index::Bounds;
use grpo_gateway::ledger::{Counters, LedgerError};
use grpo_gateway::pod::Template;
use grpo_sandbox_protocol::Signer;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The gateway's private key.
pub const SEED: [u8; 32] = [7; 32];

/// The place where pods run.
pub trait Nodes: Send + Sync + 'static {
    /// Starts the pod's process and returns its address.
    fn start(&self, pod: &str) -> String;
    fn stop(&self, pod: &str);
}

#[derive(Clone)]
pub struct Server {
    pub pods: Arc<Mutex<BTreeMap<String, Value>>>,
    pub maps: Arc<Mutex<BTreeMap<String, Value>>>,
    /// Every event of the watch, one line each.
    told: Arc<Mutex<Vec<Bytes>>>,
    length: Arc<watch::Sender<usize>>,
    pub writes: Arc<AtomicUsize>,
    /// Answers every deletion with an error.
    pub keeps_pods: Arc<AtomicBool>,
    /// Number of such errors.
    pub kept: Arc<AtomicUsize>,
    /// Refuses to label pods.
    pub keeps_labels: Arc<AtomicBool>,
    /// Pods get a node and no address.
    pub gives_no_address: Arc<AtomicBool>,
    /// The cluster's Events about pods.
    pub events: Arc<Mutex<Vec<Value>>>,
    nodes: Arc<dyn Nodes>,
    pub client: kube::Client,
    pub url: String,
    ledgers: Vec<String>,
}

impl Server {
    /// Serves, with empty ledger shards for `max` leases.
    pub async fn serve(nodes: Arc<dyn Nodes>, max: usize) -> Self {
        let ledgers: Vec<String> = (0..max.div_ceil(256)).map(|n| format!("ledger-{n}")).collect();
        let empty = |name: &String| {
            let object =
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "resourceVersion": "1"}});
            (name.clone(), object)
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = Self {
            pods: Arc::default(),
            maps: Arc::new(Mutex::new(ledgers.iter().map(empty).collect())),
            told: Arc::default(),
            length: Arc::new(watch::Sender::new(0)),
            writes: Arc::default(),
            keeps_pods: Arc::default(),
            kept: Arc::default(),
            keeps_labels: Arc::default(),
            gives_no_address: Arc::default(),
            events: Arc::default(),
            nodes,
            client: kube::Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap(),
            url,
            ledgers,
        };
        let router = Router::new()
            .route("/api/v1/namespaces/n/pods", post(make).get(list))
            .route("/api/v1/namespaces/n/pods/{name}", delete(unmake).patch(label))
            .route("/api/v1/namespaces/n/events", get(events))
            .route("/api/v1/namespaces/n/configmaps/{name}", get(map).put(replace_map))
            .with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        server
    }

    fn tell(&self, kind: &str, pod: &Value) {
        let line = format!("{}\n", json!({"type": kind, "object": pod}));
        let mut told = self.told.lock().unwrap();
        told.push(line.into());
        self.length.send_replace(told.len());
    }
}

async fn make(State(server): State<Server>, Json(mut pod): Json<Value>) -> Response {
    let nth = server.writes.fetch_add(1, Ordering::Relaxed);
    let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    pod["metadata"]["uid"] = json!(format!("uid-{nth}"));
    pod["metadata"]["resourceVersion"] = json!(nth.to_string());
    pod["status"] = match server.gives_no_address.load(Ordering::Relaxed) {
        false => json!({"phase": "Running", "podIP": server.nodes.start(&name)}),
        true => {
            pod["spec"]["nodeName"] = json!("node-1");
            json!({"phase": "Pending"})
        }
    };
    server.pods.lock().unwrap().insert(name, pod.clone());
    server.tell("ADDED", &pod);
    Json(pod).into_response()
}

fn refusal(code: StatusCode, reason: &str) -> Response {
    let status =
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code.as_u16()});
    (code, Json(status)).into_response()
}

async fn label(State(server): State<Server>, Path(name): Path<String>, Json(patch): Json<Value>) -> Response {
    if server.keeps_labels.load(Ordering::Relaxed) {
        return refusal(StatusCode::FORBIDDEN, "Forbidden");
    }
    server.writes.fetch_add(1, Ordering::Relaxed);
    let labelled = server.pods.lock().unwrap().get_mut(&name).map(|pod| {
        assert_eq!(pod["metadata"]["uid"], patch["metadata"]["uid"]);
        for field in ["labels", "annotations"] {
            for (key, value) in patch["metadata"][field].as_object().unwrap() {
                pod["metadata"][field][key] = value.clone();
            }
        }
        pod.clone()
    });
    let Some(pod) = labelled else {
        return refusal(StatusCode::NOT_FOUND, "NotFound");
    };
    server.tell("MODIFIED", &pod);
    Json(pod).into_response()
}

async fn unmake(State(server): State<Server>, Path(name): Path<String>) -> Response {
    if server.keeps_pods.load(Ordering::Relaxed) {
        server.kept.fetch_add(1, Ordering::Relaxed);
        return refusal(StatusCode::INTERNAL_SERVER_ERROR, "InternalError");
    }
    server.writes.fetch_add(1, Ordering::Relaxed);
    let Some(pod) = server.pods.lock().unwrap().remove(&name) else {
        return refusal(StatusCode::NOT_FOUND, "NotFound");
    };
    server.nodes.stop(&name);
    server.tell("DELETED", &pod);
    Json(pod).into_response()
}

async fn list(State(server): State<Server>, Query(query): Query<BTreeMap<String, String>>) -> Response {
    if query.get("watch").is_none_or(|watch| watch == "false") {
        let version = server.told.lock().unwrap().len().to_string();
        let items: Vec<Value> = server.pods.lock().unwrap().values().cloned().collect();
        let list =
            json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": version}, "items": items});
        return Json(list).into_response();
    }
    let from: usize = query["resourceVersion"].parse().unwrap();
    let told = futures::stream::unfold((from, server.length.subscribe()), move |(from, mut length)| {
        let told = server.told.clone();
        async move {
            length.wait_for(|length| *length > from).await.ok()?;
            let lines = told.lock().unwrap()[from..].concat();
            let next = from + lines.iter().filter(|byte| **byte == b'\n').count();
            Some((Ok::<_, std::io::Error>(Bytes::from(lines)), (next, length)))
        }
    });
    Body::from_stream(told).into_response()
}

/// Returns all Events for every pod.
async fn events(State(server): State<Server>) -> Response {
    let items = server.events.lock().unwrap().clone();
    Json(json!({"kind": "EventList", "apiVersion": "v1", "metadata": {}, "items": items})).into_response()
}

async fn map(State(server): State<Server>, Path(name): Path<String>) -> Json<Value> {
    Json(server.maps.lock().unwrap()[&name].clone())
}

async fn replace_map(
    State(server): State<Server>,
    Path(name): Path<String>,
    Json(mut map): Json<Value>,
) -> Json<Value> {
    let version = server.writes.fetch_add(1, Ordering::Relaxed);
    map["metadata"]["resourceVersion"] = json!(version.to_string());
    server.maps.lock().unwrap().insert(name, map.clone());
    Json(map)
}

pub fn bounds(max: usize) -> Bounds {
    Bounds {
        max,
        reserved: 0,
        warm_max: max,
        orders: 32,
        waiting: 10_000,
        per_node: None,
        max_ttl_millis: 600_000,
        idle_millis: 600_000,
    }
}

/// A gateway's working parts, and their tasks.
pub struct Gateway {
    pub core: Arc<Core>,
    pub counters: Counters,
    writer: JoinHandle<Result<(), LedgerError>>,
    pub tasks: Vec<JoinHandle<()>>,
}

impl Gateway {
    /// Begins like the process: from the ledger and the pods.
    pub async fn begin(server: &Server, bounds: Bounds, spec: &str) -> Self {
        let signer = Signer::from_seed(&SEED);
        let template = Template {
            pool: "p".into(),
            pool_uid: "u".into(),
            namespace: "n".into(),
            sandboxd_image: "sandboxd:1".into(),
            public_key: signer.public_key(),
            spec: serde_yaml_ng::from_str(spec).unwrap(),
            term: 0,
        };
        let beginning = Beginning {
            client: server.client.clone(),
            signer,
            template,
            bounds,
            ledgers: server.ledgers.clone(),
            holder: "holder".into(),
        };
        let begun = beginning.begin().await.unwrap();
        Self {
            core: begun.core,
            counters: begun.counters,
            writer: begun.writer,
            tasks: begun.tasks,
        }
    }

    /// Serves all routes of a gateway and returns the address.
    pub async fn listen(&mut self) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = grpo_gateway::http::router(self.core.clone());
        self.tasks
            .push(tokio::spawn(async move { drop(axum::serve(listener, router).await) }));
        address
    }

    /// Ends at once, like a killed process.
    pub async fn end(self) {
        self.writer.abort();
        let _ = self.writer.await;
        for task in self.tasks {
            task.abort();
            let _ = task.await;
        }
    }
}
