//! How many leases a second the gateway itself gives out: everything that it talks to is played, over loopback. Pods run at once, and sandboxd
//! believes everybody. Prints figures; `cargo test -p grpo-gateway --release --test lease_rate -- --ignored --nocapture`.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use grpo_gateway::core::{Core, Watched, now};
use grpo_gateway::index::{Bounds, Index};
use grpo_gateway::ledger::{self, Counters, Ledger};
use grpo_gateway::pod::Template;
use grpo_gateway::sandbox::Sandboxes;
use grpo_sandbox_protocol::{LeaseRequest, Priority, SANDBOXD_PORT, Signer};
use kube::api::Api;
use serde_json::{Value, json};
use tokio::sync::watch;

/// Addresses of sandboxds; many pods share one.
const SANDBOXDS: usize = 64;
const MAX: usize = 600;
const CLIENTS: usize = 64;
const MEASURED: Duration = Duration::from_secs(5);

/// An API server that has pods and ConfigMaps, and tells of pods as they change.
#[derive(Clone)]
struct Server {
    pods: Arc<Mutex<BTreeMap<String, Value>>>,
    maps: Arc<Mutex<BTreeMap<String, Value>>>,
    /// Everything that the watch has told, a line each.
    told: Arc<Mutex<Vec<Bytes>>>,
    length: Arc<watch::Sender<usize>>,
    writes: Arc<AtomicUsize>,
}

impl Server {
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
    pod["status"] = json!({"phase": "Running", "podIP": format!("127.77.0.{}", 1 + nth % SANDBOXDS)});
    server.pods.lock().unwrap().insert(name, pod.clone());
    server.tell("ADDED", &pod);
    Json(pod).into_response()
}

async fn unmake(State(server): State<Server>, Path(name): Path<String>) -> Response {
    server.writes.fetch_add(1, Ordering::Relaxed);
    let Some(pod) = server.pods.lock().unwrap().remove(&name) else {
        let gone =
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404});
        return (axum::http::StatusCode::NOT_FOUND, Json(gone)).into_response();
    };
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

async fn serve(address: &str, router: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// A gateway at work, its API server, and what its ledger counts.
async fn gateway() -> (Arc<Core>, Server, Counters) {
    let names: Vec<String> = (0..MAX.div_ceil(256)).map(|n| format!("ledger-{n}")).collect();
    let empty = |name: &String| {
        let object =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "resourceVersion": "1"}});
        (name.clone(), object)
    };
    let server = Server {
        pods: Arc::default(),
        maps: Arc::new(Mutex::new(names.iter().map(empty).collect())),
        told: Arc::default(),
        length: Arc::new(watch::Sender::new(0)),
        writes: Arc::default(),
    };
    let router = Router::new()
        .route("/api/v1/namespaces/n/pods", post(make).get(list))
        .route("/api/v1/namespaces/n/pods/{name}", delete(unmake))
        .route("/api/v1/namespaces/n/configmaps/{name}", get(map).put(replace_map))
        .with_state(server.clone());
    let url = format!("http://{}", serve("127.0.0.1:0", router).await);
    for nth in 1..=SANDBOXDS {
        let sandboxd = Router::new()
            .route("/healthz", get(|| async { "ok" }))
            .route("/bind", post(|| async { "{}" }));
        serve(&format!("127.77.0.{nth}:{SANDBOXD_PORT}"), sandboxd).await;
    }
    let client = kube::Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
    let maps = Api::namespaced(client.clone(), "n");
    let (ledger, ..) = Ledger::open(maps, &names, "holder").await.unwrap();
    let counters = ledger.counters();
    let template = Template {
        pool: "p".into(),
        pool_uid: "u".into(),
        namespace: "n".into(),
        sandboxd_image: "sandboxd:1".into(),
        public_key: "key".into(),
        spec: serde_yaml_ng::from_str(&format!("max: {MAX}")).unwrap(),
        term: ledger.term(),
    };
    let (changes, receiver) = ledger::channel();
    let sandboxes = Sandboxes::new(Signer::from_seed(&[7; 32]));
    let pods = Api::namespaced(client.clone(), "n");
    let (watched, listed) = Watched::begin(client, "n", "p").await.unwrap();
    let core = Core::new(
        Index::new(bounds(MAX)),
        pods,
        changes,
        sandboxes,
        template,
        counters.clone(),
        Default::default(),
    );
    tokio::spawn(ledger.run(receiver));
    core.take_in(listed);
    tokio::spawn(core.clone().follow(watched));
    tokio::spawn(core.clone().schedule());
    (core, server, counters)
}

fn bounds(max: usize) -> Bounds {
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

fn request(id: String) -> LeaseRequest {
    LeaseRequest {
        id,
        run: "r".into(),
        image: "x".into(),
        ttl_seconds: 60,
        wait_seconds: 60,
        priority: Priority::Agent,
    }
}

async fn until_ready(core: &Arc<Core>, count: u32) {
    while core.look(|index| index.state().ready) < count {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn at(sorted: &[Duration], share: f64) -> Duration {
    sorted[((sorted.len() - 1) as f64 * share) as usize]
}

#[test]
#[ignore = "measures"]
fn plans_of_a_large_pool() {
    let max = 10_000;
    let bounds = Bounds {
        orders: max,
        ..bounds(max)
    };
    let (mut index, mut made) = (Index::new(bounds), 0);
    let mut plan = |index: &mut Index| {
        let began = Instant::now();
        let actions = index.plan(1, || {
            made += 1;
            format!("p{made}")
        });
        (began.elapsed(), actions.len())
    };
    index.want("r", (0..50).map(|n| (format!("image-{n}"), max / 50)).collect(), 1);
    println!("{max} ordered: {:?}", plan(&mut index));
    let names: Vec<String> = index.sandboxes.keys().cloned().collect();
    for name in &names {
        index.created(name, 1);
        index.seen(name, "u", "10.0.0.1", "n", 1);
        index.ready(name);
    }
    for nth in 0..max / 2 {
        let image = format!("image-{}", nth % 50);
        let request = LeaseRequest {
            image,
            run: format!("r{}", nth % 7),
            ..request(format!("l{nth}"))
        };
        index.wait(request, 1).unwrap();
    }
    println!("{} leased at once: {:?}", max / 2, plan(&mut index));
    println!("nothing to do: {:?}", plan(&mut index));
    let began = Instant::now();
    println!("next deadline: {:?} {:?}", index.next_deadline(1), began.elapsed());
    let began = Instant::now();
    index.wait(request("one".into()), 1).unwrap();
    println!("one comes: {:?}", began.elapsed());
    println!("one waits: {:?}", plan(&mut index));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures, and takes port 7070 of 64 loopback addresses"]
async fn leases_a_second() {
    let (core, server, counters) = gateway().await;
    let warm = 500;
    let began = Instant::now();
    core.with(|index| index.want("r", vec![("x".into(), warm)], now()));
    until_ready(&core, warm as u32).await;
    println!("refill: {warm} pods in {:?}", began.elapsed());

    let began = Instant::now();
    let burst = (0..300).map(|nth| core.lease(request(format!("burst-{nth}"))));
    let leased = futures::future::join_all(burst).await;
    assert!(leased.iter().all(Result::is_ok));
    println!(
        "300 at once: all leased after {:?}, {} ledger writes",
        began.elapsed(),
        counters.writes.get()
    );
    for nth in 0..300 {
        core.apply(|index| index.release(&format!("burst-{nth}"), now()));
    }
    until_ready(&core, warm as u32).await;

    let (writes, leases) = (counters.writes.get(), counters.leases.get());
    let requests = server.writes.load(Ordering::Relaxed);
    let began = Instant::now();
    let clients = (0..CLIENTS).map(|client| {
        let core = core.clone();
        tokio::spawn(async move {
            let mut waits = Vec::new();
            while began.elapsed() < MEASURED {
                let id = format!("c{client}-{}", waits.len());
                let asked = Instant::now();
                core.lease(request(id.clone())).await.unwrap();
                waits.push(asked.elapsed());
                core.apply(|index| index.release(&id, now()));
            }
            waits
        })
    });
    let mut waits: Vec<Duration> = futures::future::join_all(clients)
        .await
        .into_iter()
        .flat_map(Result::unwrap)
        .collect();
    let took = began.elapsed();
    waits.sort();
    let per_lease = (counters.writes.get() - writes) as f64 / (counters.leases.get() - leases) as f64;
    println!(
        "{CLIENTS} clients, {warm} warm: {:.0} leases/s with a pod made and deleted for each; p50 {:?}, p99 {:?}; \
         {per_lease:.3} ledger writes and {:.2} writes in all per lease",
        waits.len() as f64 / took.as_secs_f64(),
        at(&waits, 0.5),
        at(&waits, 0.99),
        (server.writes.load(Ordering::Relaxed) - requests) as f64 / waits.len() as f64,
    );
    println!("{:?}", core.look(|index| index.state()));
}
