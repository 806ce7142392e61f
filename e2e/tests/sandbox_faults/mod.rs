//! A working gateway under every fault of leased sandboxes: each holder gets the right cause, and no pod is left over.
//!
//! The API server is real, and so is the gateway, which runs in this process. The test simulates kubelet, controllers
//! and sandboxd: the statuses are those in `sandbox-image/gateway/src/cause/faults.yaml`, as clusters write them.
//! `GRPO_FAULT_ROUNDS` is the number of rounds of each fault, and `GRPO_OUTAGE_SECONDS` the time for which the API
//! server is down.
//!
//! Needs the programs that `make setup` builds: `make test-operator`, and with more rounds `make test-sandbox-faults`.

mod played;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::support::Result;
use futures::{StreamExt, stream};
use grpo_gateway::begin::Beginning;
use grpo_gateway::index::Bounds;
use grpo_gateway::pod::Template;
use grpo_sandbox_protocol::{ErrorBody, ErrorCode, FaultOrigin, SandboxCause, Signer};
use grpo_testing::control_plane::{ControlPlane, Options};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams, EvictParams, ListParams, Patch, PatchParams};
use played::{CUT, MISSING, Node, REJECTED};
use serde_json::{Value, json};

const NAMESPACE: &str = "faults";
const MAX: usize = 24;
const AT_ONCE: usize = 8;
/// Deadline until a sandbox's fault is known.
const TOLD_WITHIN: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(10);

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

fn faults() -> Vec<Value> {
    let file = grpo_testing::repository().join("sandbox-image/gateway/src/cause/faults.yaml");
    serde_yaml_ng::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

/// A gateway as its lease holders reach it.
struct World {
    pods: Api<Pod>,
    url: String,
    http: reqwest::Client,
}

impl World {
    async fn new(client: &Client) -> Result<Self> {
        let make = async |kind: &str, plural: &str, name: &str, more: Value| -> Result<()> {
            let mut object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}});
            object
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            let path = match kind {
                "Namespace" => "/api/v1/namespaces".to_owned(),
                _ => format!("/api/v1/namespaces/{NAMESPACE}/{plural}"),
            };
            let request = http::Request::post(path).header("content-type", "application/json");
            client
                .request::<Value>(request.body(serde_json::to_vec(&object)?)?)
                .await?;
            Ok(())
        };
        make("Namespace", "", NAMESPACE, json!({})).await?;
        make("ServiceAccount", "serviceaccounts", "default", json!({})).await?;
        make("ConfigMap", "configmaps", "ledger", json!({"data": {}})).await?;
        let signer = Signer::from_seed(&[7; 32]);
        let beginning = Beginning {
            client: client.clone(),
            template: Template {
                pool: "p".into(),
                pool_uid: "u".into(),
                namespace: NAMESPACE.into(),
                sandboxd_image: "grpo.dev/sandboxd:dev".into(),
                public_key: signer.public_key(),
                spec: serde_json::from_value(json!({"max": MAX, "allowUnenforced": true}))?,
                term: 0,
            },
            signer,
            bounds: Bounds {
                max: MAX,
                reserved: 0,
                warm_max: MAX,
                orders: 32,
                waiting: 1000,
                per_node: None,
                max_ttl_millis: 600_000,
                idle_millis: 600_000,
            },
            ledgers: vec!["ledger".to_owned()],
            holder: "holder".into(),
        };
        let core = beginning.begin().await?.core;
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let router = grpo_gateway::http::router(core);
        tokio::spawn(async move { axum::serve(listener, router).await });
        let http = reqwest::Client::builder().no_proxy().build()?;
        Ok(Self { pods, url, http })
    }

    /// Leases a sandbox; returns its pod.
    async fn lease(&self, id: &str, image: &str) -> Result<std::result::Result<String, ErrorBody>> {
        let request =
            json!({"id": id, "run": "r", "image": image, "ttlSeconds": 600, "waitSeconds": 300, "priority": "Agent"});
        let answer = self
            .http
            .post(format!("{}/v1/leases", self.url))
            .json(&request)
            .send()
            .await?;
        if answer.status() == 200 {
            let lease: Value = answer.json().await?;
            return Ok(Ok(lease["sandbox"].as_str().unwrap_or_default().to_owned()));
        }
        Ok(Err(answer.json().await?))
    }

    async fn release(&self, id: &str) -> Result<()> {
        self.http.delete(format!("{}/v1/leases/{id}", self.url)).send().await?;
        Ok(())
    }

    /// Waits for the loss of a lease; returns the cause.
    async fn lost(&self, id: &str) -> Result<ErrorBody> {
        let until = Instant::now() + TOLD_WITHIN;
        while Instant::now() < until {
            let answer = self.http.get(format!("{}/v1/leases/{id}", self.url)).send().await?;
            if answer.status() != 200 {
                return Ok(answer.json().await?);
            }
            tokio::time::sleep(PAUSE).await;
        }
        Err(format!("lease {id} still stands after {TOLD_WITHIN:?}").into())
    }

    /// Takes one step of a fault. It also succeeds if the gateway has already deleted the pod.
    async fn step(&self, pod: &str, step: &Value) -> Result<()> {
        let done = if let Some(status) = step.get("status") {
            let patch = Patch::Merge(json!({"status": status}));
            self.pods
                .patch_status(pod, &PatchParams::default(), &patch)
                .await
                .map(drop)
        } else if let Some(grace) = step.get("delete").and_then(Value::as_u64) {
            self.pods
                .delete(pod, &DeleteParams::default().grace_period(grace as u32))
                .await
                .map(drop)
        } else if step.get("evict").is_some() {
            self.pods.evict(pod, &EvictParams::default()).await.map(drop)
        } else {
            self.pods
                .delete(pod, &DeleteParams::default().grace_period(0))
                .await
                .map(drop)
        };
        match done {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => Ok(other?),
        }
    }

    /// Injects a fault; returns the holder's wrong answer, if it is wrong.
    async fn inject(&self, id: &str, fault: &Value) -> Result<Option<String>> {
        let pod = self.lease(id, "x").await??;
        for step in fault["steps"].as_array().unwrap() {
            self.step(&pod, step).await?;
        }
        let wanted: SandboxCause = serde_json::from_value(fault["cause"].clone())?;
        let heard = self.lost(id).await?;
        let is_right = (heard.code, heard.cause, heard.fault) == (ErrorCode::SandboxLost, Some(wanted), wanted.fault());
        Ok((!is_right).then(|| format!("{}: {heard:?}", fault["fault"])))
    }

    /// Faults without a status of a sandbox that ran.
    async fn others(&self, round: u64) -> Result<Vec<Option<String>>> {
        let named = |what: &str, is_right: bool, heard: String| (!is_right).then(|| format!("{what}: {heard}"));
        let missing = self
            .lease(&format!("missing-{round}"), &format!("{MISSING}{round}"))
            .await?;
        let is_right = missing.as_ref().err().map(|error| (error.code, error.fault))
            == Some((ErrorCode::ImageUnavailable, FaultOrigin::Infrastructure));
        let missing = named("image missing", is_right, format!("{missing:?}"));

        let id = format!("rejected-{round}");
        let rejected = self.lease(&id, &format!("{REJECTED}{round}")).await?;
        self.release(&id).await?;
        let rejected = named("refused by the kubelet", rejected.is_ok(), format!("{rejected:?}"));

        let id = format!("cut-{round}");
        self.lease(&id, CUT).await??;
        let command = json!({"id": "e", "argv": ["true"], "timeoutSeconds": 5});
        let answer = self
            .http
            .post(format!("{}/v1/leases/{id}/exec", self.url))
            .json(&command)
            .send()
            .await?;
        let heard: ErrorBody = answer.json().await?;
        let is_right = (heard.code, heard.fault) == (ErrorCode::SandboxUnreachable, FaultOrigin::Infrastructure);
        self.release(&id).await?;
        let cut = named("network cut", is_right, format!("{heard:?}"));
        Ok(vec![missing, rejected, cut])
    }

    /// Waits until no pod is there.
    async fn no_pod_is_left(&self) -> Result<()> {
        let until = Instant::now() + TOLD_WITHIN;
        loop {
            let left = self.pods.list_metadata(&ListParams::default()).await?.items.len();
            match left {
                0 => return Ok(()),
                _ if Instant::now() > until => return Err(format!("{left} pods are left").into()),
                _ => tokio::time::sleep(PAUSE).await,
            }
        }
    }
}

/// Figure 8.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a control plane: make test-operator"]
async fn under_every_fault_the_holder_hears_the_right_cause_and_no_pod_is_left_over() -> Result<()> {
    let mut control_plane = ControlPlane::start(Options::default()).await?;
    let client = control_plane.admin().await?;
    let world = &World::new(&client).await?;
    let node = Node::start(world.pods.clone()).await?;
    let (faults, rounds) = (faults(), number("GRPO_FAULT_ROUNDS", 2));
    let began = Instant::now();
    let (mut injected, mut wrong) = (BTreeMap::<String, u32>::new(), Vec::new());
    for round in 0..rounds {
        let injections = faults.iter().enumerate().map(|(nth, fault)| async move {
            let id = format!("lease-{round}-{nth}");
            let heard = world.inject(&id, fault).await;
            heard.unwrap_or_else(|error| Some(format!("{}: {error}", fault["fault"])))
        });
        let heard: Vec<Option<String>> = stream::iter(injections).buffer_unordered(AT_ONCE).collect().await;
        wrong.extend(heard.into_iter().flatten());
        wrong.extend(world.others(round).await?.into_iter().flatten());
        for fault in &faults {
            *injected
                .entry(fault["fault"].as_str().unwrap_or_default().to_owned())
                .or_default() += 1;
        }
        for fault in ["image missing", "refused by the kubelet", "network cut"] {
            *injected.entry(fault.to_owned()).or_default() += 1;
        }
    }

    // While the API server is down, existing leases keep working and requests for new leases wait.
    let outage = Duration::from_secs(number("GRPO_OUTAGE_SECONDS", 5));
    let held: Vec<String> = (0..4).map(|nth| format!("held-{nth}")).collect();
    for id in &held {
        world.lease(id, "x").await??;
    }
    control_plane.stop_apiserver().await?;
    let waits = tokio::time::timeout(outage, world.lease("during", "x")).await;
    if let Ok(answer) = waits {
        wrong.push(format!("API server away: a new lease was answered {answer:?}"));
    }
    control_plane.start_apiserver().await?;
    let since = Instant::now();
    world.lease("during", "x").await??;
    println!(
        "API server away for {outage:?}: who waited has a sandbox {:?} after it is back",
        since.elapsed()
    );
    for id in &held {
        let answer = world.http.get(format!("{}/v1/leases/{id}", world.url)).send().await?;
        if answer.status() != 200 {
            wrong.push(format!("API server away: {id} was answered {}", answer.text().await?));
        }
        *injected.entry("API server away".to_owned()).or_default() += 1;
        world.release(id).await?;
    }
    world.release("during").await?;

    for (fault, count) in &injected {
        println!("{count:>4} x {fault}");
    }
    let all: u32 = injected.values().sum();
    println!(
        "{all} injections of {} faults in {:?}; {} heard something wrong",
        injected.len(),
        began.elapsed(),
        wrong.len()
    );
    world
        .http
        .put(format!("{}/v1/demand", world.url))
        .json(&json!({"run": "r", "images": []}))
        .send()
        .await?;
    let left = world.no_pod_is_left().await;
    node.stop();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    left
}
