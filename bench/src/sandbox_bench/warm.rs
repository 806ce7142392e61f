//! Figure 1: from the request for a lease to the first output of a command in it, on a real kubelet, with a warm
//! sandbox.

use std::time::{Duration, Instant};

use grpo_crds::SandboxPool;
use grpo_sandbox_protocol::{Demand, ExecRequest, ExecResult, ImageDemand, Lease, LeaseRequest, PoolState, Priority};
use hyper::Method;
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use kube::{
    Client,
    api::{Api, DeleteParams, ListParams, PostParams},
};
use serde_json::json;

use super::{
    SandboxBenchError,
    caller::{Caller, RUN, read},
    percentile,
};
use crate::operator_bench::rig::{parsed, until};
use grpo_bench_report::Row;
use grpo_contracts::access::{Service as Called, account};
use grpo_testing::cluster::{api, connect, token::service_token, wait::is_ready};

const NAMESPACE: &str = "bench-sandbox";
const POOL: &str = "warm";

/// The size of the measurement.
#[derive(Clone, Debug)]
pub struct Scale {
    pub leases: usize,
    /// The number of warm sandboxes.
    pub warm: u32,
    /// An image that the cluster has, or can pull.
    pub image: String,
}

/// Needs a cluster with the operator running, whose services this machine can reach: `make cluster`.
pub async fn measure(scale: &Scale) -> Result<Vec<Row>, SandboxBenchError> {
    let client = connect().await?;
    let measured = in_a_pool(&client, scale).await;
    let namespaces: Api<Namespace> = Api::all(client);
    let removed = namespaces.delete(NAMESPACE, &DeleteParams::default()).await;
    let rows = measured?;
    removed.map_err(api("deleting namespace", NAMESPACE))?;
    Ok(rows)
}

async fn in_a_pool(client: &Client, scale: &Scale) -> Result<Vec<Row>, SandboxBenchError> {
    let caller = gateway(client, scale).await?;
    let (mut firsts, mut leases) = (Vec::new(), Vec::new());
    quiet(client, scale).await?;
    // The gateway's own probe took two.
    let cold_before = pool(&caller).await?.cold_leases;
    for number in 0..scale.leases {
        quiet(client, scale).await?;
        let name = format!("warm-{number}");
        let asked = Instant::now();
        let lease: Lease = read(&caller.ask(Method::POST, "/v1/leases", request(&name, scale)).await?)?;
        leases.push(asked.elapsed());
        let path = format!("/v1/leases/{}/exec", lease.id);
        let said: ExecResult = read(&caller.ask(Method::POST, &path, echo()).await?)?;
        firsts.push(asked.elapsed());
        if said.output != "here\n" {
            return Err(SandboxBenchError::Wrong(format!("a sandbox said {:?}", said.output)));
        }
        caller.release(&name).await?;
    }
    let state = pool(&caller).await?;
    let what = format!(
        "1: warm lease on a real kubelet until its first command's output, 1 caller, {} leases",
        scale.leases
    );
    Ok(vec![
        Row::new(
            format!("{what}: p50"),
            percentile(&mut firsts, 50.0),
            "ms",
            Some("<= 15"),
        ),
        Row::new(
            format!("{what}: p99"),
            percentile(&mut firsts, 99.0),
            "ms",
            Some("<= 50"),
        ),
        Row::new(
            "1: of it, until the lease is there: p50",
            percentile(&mut leases, 50.0),
            "ms",
            None,
        ),
        Row::new(
            "1: of it, until the lease is there: p99",
            percentile(&mut leases, 99.0),
            "ms",
            None,
        ),
        Row::new(
            "1: leases that found no warm sandbox",
            Some((state.cold_leases - cold_before) as f64),
            "leases",
            Some("= 0"),
        ),
    ])
}

/// Waits until the kubelet has no work for the pool: pods that start and end take processor time from the measured
/// lease.
async fn quiet(client: &Client, scale: &Scale) -> Result<(), SandboxBenchError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let sandboxes = ListParams::default().labels("grpo.dev/role=sandbox");
    loop {
        let all = pods.list(&sandboxes).await.map_err(api("listing", "pods"))?;
        if all.items.len() == scale.warm as usize && all.items.iter().all(is_ready) {
            // Gives the consequences of the last event time to finish.
            tokio::time::sleep(Duration::from_millis(200)).await;
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn pool(caller: &Caller) -> Result<PoolState, SandboxBenchError> {
    caller.pool().await
}

fn request(id: &str, scale: &Scale) -> LeaseRequest {
    LeaseRequest {
        id: id.to_owned(),
        run: RUN.into(),
        image: scale.image.clone(),
        ttl_seconds: 300,
        wait_seconds: 60,
        priority: Priority::Agent,
    }
}

fn echo() -> ExecRequest {
    ExecRequest {
        id: "first".into(),
        argv: vec!["/bin/echo".into(), "here".into()],
        cwd: None,
        env: Default::default(),
        user: None,
        activate: None,
        stdin: None,
        timeout_seconds: 30,
        max_output_bytes: None,
    }
}

/// The pool of this bench, warm. The operator creates its gateway.
async fn gateway(client: &Client, scale: &Scale) -> Result<Caller, SandboxBenchError> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = parsed(json!({"metadata": {"name": NAMESPACE}}));
    namespaces
        .create(&PostParams::default(), &namespace)
        .await
        .map_err(api("creating namespace", NAMESPACE))?;
    let pools: Api<SandboxPool> = Api::namespaced(client.clone(), NAMESPACE);
    let spec = serde_json::from_value(json!({"max": 2 * scale.warm, "allowUnenforced": true}));
    let spec = spec.map_err(|error| SandboxBenchError::Wrong(error.to_string()))?;
    pools
        .create(&PostParams::default(), &SandboxPool::new(POOL, spec))
        .await
        .map_err(api("creating SandboxPool", POOL))?;
    let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
    let name = format!("{POOL}-gateway");
    let address = until(Duration::from_secs(60), "the gateway's service", async || {
        let service = services.get_opt(&name).await.map_err(api("reading service", &name))?;
        let address = service.and_then(|service| service.spec?.cluster_ip);
        Ok(address.ok_or_else(|| "none".to_owned()))
    })
    .await?;
    let token = service_token(client, NAMESPACE, &account::sandbox_client(POOL), Called::Gateway).await?;
    let caller = Caller::new(format!("http://{address}:8080")).with_token(&token);
    let warm = scale.warm;
    until(
        Duration::from_secs(120),
        "the gateway to serve and its sandboxes to be warm",
        async || {
            if let Err(error) = caller.ask(Method::PUT, "/v1/demand", demand(scale)).await {
                return Ok(Err(error.to_string()));
            }
            Ok(match caller.pool().await {
                Ok(pool) if pool.ready >= warm => Ok(()),
                Ok(pool) => Err(format!("{pool:?}")),
                Err(error) => Err(error.to_string()),
            })
        },
    )
    .await?;
    Ok(caller)
}

fn demand(scale: &Scale) -> Demand {
    Demand {
        run: RUN.into(),
        images: vec![ImageDemand {
            image: scale.image.clone(),
            count: scale.warm,
        }],
    }
}
