//! A run whose trainer and engines take turns on the same devices, beside a run whose do not, on a real cluster. Both
//! compute on the CPU: the embedded engine sleeps while the trainer steps, as one on a GPU does.

use crate::support::gateway::{bearer, forwarded};
use crate::support::{RUN_LIMIT, Result, SOON, Scene, small_run, verified};
use grpo_contracts::access::{Service, account};
use grpo_engine_protocol::{AgentState, AgentStatus};
use grpo_records::folder::RunFolder;
use grpo_records::paths;
use grpo_records::trainer::StepMetrics;
use grpo_testing::cluster::manifest::{RunManifest, delete_run};
use grpo_testing::cluster::token::service_token;
use grpo_testing::cluster::wait;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::json;
use std::convert::Infallible;
use std::time::Duration;

const ITERATIONS: u32 = 2;
/// The port of an engine's agent.
const AGENT: u16 = 8000;
/// Shorter than the driver's own looks at an engine, so that no turn is missed.
const LOOK: Duration = Duration::from_millis(100);

/// A row that the trainer was given.
#[derive(Debug, PartialEq)]
struct Sampled {
    episode: String,
    tokens: Vec<u32>,
    mask: Vec<u8>,
    logprobs: Vec<f32>,
    reward: f32,
}

/// A step: its rows, its loss, and the checksum of the weights that it published.
#[derive(Debug, PartialEq)]
struct Step {
    rows: Vec<Sampled>,
    loss: f64,
    tensors_sha256: String,
}

fn steps(folder: &RunFolder) -> Result<Vec<Step>> {
    let mut steps = Vec::new();
    for step in 1..=ITERATIONS {
        let mut batch = folder.batch(step)?;
        batch.fill(|path| folder.bytes(path))?;
        let metrics: Option<StepMetrics> = folder.json_if_there(&paths::trainer_metrics(step))?;
        let metrics = metrics.ok_or("a step has no metrics")?;
        let sampled = batch.rows.into_iter().map(|row| Sampled {
            episode: row.episode,
            tokens: row.tokens,
            mask: row.mask,
            logprobs: row.logprobs,
            reward: row.reward,
        });
        steps.push(Step {
            rows: sampled.collect(),
            loss: metrics.loss,
            tensors_sha256: metrics.tensors_sha256,
        });
    }
    Ok(steps)
}

/// How often the engine of a run has fallen asleep after it had served.
#[derive(Default)]
struct Slept {
    serves: bool,
    times: u32,
}

impl Slept {
    fn see(&mut self, status: &AgentStatus) {
        if status.state == AgentState::Asleep {
            assert_eq!(status.serving, None, "an engine serves in its sleep: {status:?}");
            self.times += u32::from(self.serves);
            self.serves = false;
        } else {
            self.serves |= status.serving.is_some();
        }
    }
}

/// Looks at the engine's agent with the driver's token, for as long as it is polled.
async fn look(scene: &Scene, run: &str, slept: &mut Slept) -> Result<Infallible> {
    let engines = format!("grpo.dev/role=engine,grpo.dev/inference-pool={run}");
    let running = |there: &wait::Objects<Pod>| {
        let runs = |pod: &&Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
        there.values().find(runs).map(ResourceExt::name_any)
    };
    let pod = scene
        .until_pods(&engines, RUN_LIMIT, "a running engine", running)
        .await?;
    let driver = account::driver(run);
    let token = service_token(&scene.client, &scene.namespace, &driver, Service::EngineAgent).await?;
    let http = reqwest::Client::builder()
        .no_proxy()
        .timeout(SOON)
        .default_headers(bearer(&token)?)
        .build()?;
    let url = format!("{}/agent/v1/status", forwarded(scene, pod, AGENT).await?);
    let mut again = tokio::time::interval(LOOK);
    loop {
        again.tick().await;
        // The agent does not listen yet, or not any more.
        let Ok(answer) = http.get(&url).send().await else {
            continue;
        };
        if answer.status().is_client_error() {
            return Err(format!("the agent refuses to tell its status: {}", answer.status()).into());
        }
        if let Ok(status) = answer.json().await {
            slept.see(&status);
        }
    }
}

/// Follows a run to its end. Returns its steps, and how often its engine fell asleep.
async fn trained(scene: &Scene, manifest: &RunManifest) -> Result<(Vec<Step>, u32)> {
    scene.apply(manifest).await?;
    let mut slept = Slept::default();
    let ended = tokio::select! {
        ended = scene.follow(manifest.name()) => ended?,
        failed = look(scene, manifest.name(), &mut slept) => match failed? {},
    };
    let folder = scene.store_of(&ended.run).await?;
    verified(&folder)?;
    assert_eq!(folder.state.finished_iterations(), ITERATIONS);
    scene.say(&format!(
        "{}: the engine fell asleep {} times, {:.0} s",
        manifest.name(),
        slept.times,
        ended.seconds
    ));
    delete_run(&scene.client, &ended.run, SOON).await?;
    Ok((steps(&folder)?, slept.times))
}

#[tokio::test]
#[ignore = "needs a cluster: make test-e2e"]
async fn a_trainer_and_engines_that_take_turns_learn_the_same_as_those_that_do_not() -> Result<()> {
    let scene = Scene::new("colocated").await?;
    let apart = small_run("apart")?.with("/rollout/iterations", json!(ITERATIONS));
    let colocated = small_run("colocated")?
        .with("/rollout/iterations", json!(ITERATIONS))
        .with("/trainer/colocate", json!(true));
    let (apart, never) = trained(&scene, &apart).await?;
    let (colocated, slept) = trained(&scene, &colocated).await?;
    assert_eq!(never, 0, "an engine with devices of its own has slept");
    assert!(
        slept >= ITERATIONS,
        "the engine slept {slept} times in {ITERATIONS} steps"
    );
    for (step, (one, other)) in apart.iter().zip(&colocated).enumerate() {
        let step = step + 1;
        assert!(
            !one.rows.is_empty() && !one.tensors_sha256.is_empty(),
            "step {step}: {one:?}"
        );
        assert!(one.rows == other.rows, "the rows of step {step} differ");
        assert_eq!(one.loss, other.loss, "the loss of step {step}");
        assert_eq!(one.tensors_sha256, other.tensors_sha256, "the weights of step {step}");
    }
    scene.clear().await
}
