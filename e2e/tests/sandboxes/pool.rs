//! A pool of sandboxes in a namespace of its own, and the driver's own client for its gateway.

use std::time::Duration;

use grpo_crds::SandboxPool;
use grpo_driver::sandbox::Gateway;
use grpo_sandbox_protocol::{ErrorBody, ErrorCode, ExecRequest, ExecResult, SandboxCause};
use grpo_testing::cluster::wait;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams, PostParams};
use serde_json::{Value, json};
use tokio::io::copy_bidirectional;
use tokio::net::TcpListener;

use crate::support::{Result, SOON, Scene, rows};

pub const NAME: &str = "pool";
pub const SANDBOXES: &str = "grpo.dev/role=sandbox";
const PATIENCE: Duration = Duration::from_secs(60);
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// A pool whose gateway serves.
pub struct Pool {
    pub scene: Scene,
    pub url: String,
    pub http: reqwest::Client,
}

impl Pool {
    pub async fn new(name: &str, spec: Value) -> Result<Self> {
        let scene = Scene::new(name).await?;
        let pool =
            json!({"apiVersion": "grpo.dev/v1alpha1", "kind": "SandboxPool", "metadata": {"name": NAME}, "spec": spec});
        let pools: Api<SandboxPool> = Api::namespaced(scene.client.clone(), &scene.namespace);
        pools
            .create(&PostParams::default(), &serde_json::from_value(pool)?)
            .await?;
        let deployments: Api<Deployment> = Api::namespaced(scene.client.clone(), &scene.namespace);
        let serves = |there: &wait::Objects<Deployment>| {
            let status = there.values().next()?.status.as_ref()?;
            (status.ready_replicas? > 0).then_some(())
        };
        wait::until(
            deployments,
            wait::named(&format!("{NAME}-gateway")),
            SOON,
            "a gateway that serves",
            serves,
        )
        .await?;
        let url = door(&scene).await?;
        let http = reqwest::Client::builder()
            .no_proxy()
            .timeout(Duration::from_secs(180))
            .build()?;
        Ok(Self { scene, url, http })
    }

    pub fn gateway(&self) -> Result<Gateway> {
        Ok(Gateway::new(&self.url, "hostile", PATIENCE, Duration::from_secs(300))?)
    }

    /// Runs a command under a lease, and asks until it is known what became of it.
    pub async fn exec(
        &self,
        lease: &str,
        request: &ExecRequest,
    ) -> Result<std::result::Result<ExecResult, SandboxCause>> {
        let url = format!("{}/v1/leases/{lease}/exec", self.url);
        let until = tokio::time::Instant::now() + PATIENCE + Duration::from_secs(request.timeout_seconds);
        loop {
            let answer = match self.http.post(&url).json(request).send().await {
                Ok(answer) if answer.status() == 200 => return Ok(Ok(answer.json().await?)),
                Ok(answer) => answer.text().await?,
                Err(error) => error.to_string(),
            };
            let error: Option<ErrorBody> = serde_json::from_str(&answer).ok();
            match error {
                Some(ErrorBody { cause: Some(cause), .. }) => return Ok(Err(cause)),
                // Its pod is there, or was a moment ago: what became of it is about to be told.
                None
                | Some(ErrorBody {
                    code: ErrorCode::SandboxUnreachable,
                    ..
                }) if tokio::time::Instant::now() < until => {
                    tokio::time::sleep(ASK_AGAIN).await;
                }
                _ => return Err(format!("under lease {lease}: {answer}").into()),
            }
        }
    }

    pub async fn pod(&self, name: &str) -> Result<Pod> {
        Ok(self.scene.pods().get(name).await?)
    }
}

/// A door on loopback to the gateway's port, through the API server, so that it is there on every kind of cluster.
async fn door(scene: &Scene) -> Result<String> {
    let pods = scene.pods();
    let gateways = ListParams::default().labels("grpo.dev/role=gateway");
    let listed = pods.list(&gateways).await?.items;
    let gateway = listed.first().ok_or("the pool has no gateway")?.name_any();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((mut outside, _)) = listener.accept().await {
            let (pods, gateway) = (pods.clone(), gateway.clone());
            tokio::spawn(async move {
                let mut forwarded = pods.portforward(&gateway, &[8080]).await.ok()?;
                let mut inside = forwarded.take_stream(8080)?;
                copy_bidirectional(&mut outside, &mut inside).await.ok()
            });
        }
    });
    Ok(format!("http://{address}"))
}

/// A demo task: its row, and its image, which has git and Python.
pub fn task() -> Result<Value> {
    let text = std::fs::read_to_string(rows().join("train.jsonl"))?;
    let first = text.lines().next().ok_or("the demo has no tasks")?;
    Ok(serde_json::from_str(first)?)
}

pub fn shell(id: &str, script: &str, timeout_seconds: u64) -> ExecRequest {
    command(id, &["sh", "-c", script], timeout_seconds)
}

pub fn command(id: &str, argv: &[&str], timeout_seconds: u64) -> ExecRequest {
    ExecRequest {
        id: id.into(),
        argv: argv.iter().map(|part| (*part).to_owned()).collect(),
        cwd: None,
        env: Default::default(),
        user: None,
        activate: None,
        stdin: None,
        timeout_seconds,
        max_output_bytes: None,
    }
}
