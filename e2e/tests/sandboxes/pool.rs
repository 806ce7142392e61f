//! A pool of sandboxes in a namespace of its own, and the driver's own client for its gateway.

use std::time::Duration;

use grpo_auth::TokenFile;
use grpo_contracts::access::Service;
use grpo_crds::SandboxPool;
use grpo_driver::sandbox::Gateway;
use grpo_sandbox_protocol::{ErrorBody, ErrorCode, ExecRequest, ExecResult, SandboxCause};
use grpo_testing::cluster::wait;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use crate::support::gateway::{bearer, client_token, door};
use crate::support::{Result, SOON, Scene, rows};

pub const NAME: &str = "pool";
pub const SANDBOXES: &str = "grpo.dev/role=sandbox";
const PATIENCE: Duration = Duration::from_secs(60);
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// A pool whose gateway serves.
pub struct Pool {
    pub scene: Scene,
    pub url: String,
    /// Sends the token with every call.
    pub http: reqwest::Client,
    /// The folder with the token.
    tokens: tempfile::TempDir,
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
        let url = door(&scene, NAME).await?;
        let tokens = tempfile::tempdir()?;
        let token = client_token(&scene, NAME).await?;
        std::fs::write(tokens.path().join(Service::Gateway.audience()), &token)?;
        let http = reqwest::Client::builder()
            .no_proxy()
            .timeout(Duration::from_secs(180))
            .default_headers(bearer(&token)?)
            .build()?;
        Ok(Self {
            scene,
            url,
            http,
            tokens,
        })
    }

    pub fn gateway(&self) -> Result<Gateway> {
        let token = TokenFile::in_folder(self.tokens.path(), Service::Gateway);
        Ok(Gateway::new(&self.url, "hostile", PATIENCE, Duration::from_secs(300))?.with_token(token))
    }

    /// Runs a command under a lease, and repeats the call until its result is known.
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
                // Its pod exists, or did a moment ago: the cause will be known soon.
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
