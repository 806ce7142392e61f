//! A run whose trainer and engines take turns on the same devices, beside a run whose do not, on a real cluster. Both
//! compute on the CPU: the embedded engine sleeps while the trainer steps, as one on a GPU does.
//!
//! While both runs work, the memory of their trainers and engines is measured (`support/memory.rs`). In the small runs
//! of `make test-e2e` the processes themselves take most of it, so it is only printed. `make bench-colocated` makes
//! runs whose activations, keys and values take most of it, and writes bench/results/colocated.json.

use crate::support::gateway::{bearer, forwarded};
use crate::support::memory::Peaks;
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

/// A run that has ended.
struct Trained {
    steps: Vec<Step>,
    /// How often its engine fell asleep.
    slept: u32,
    memory: Peaks,
}

/// Follows a run to its end.
async fn trained(scene: &Scene, manifest: &RunManifest) -> Result<Trained> {
    scene.apply(manifest).await?;
    let (mut slept, mut memory) = (Slept::default(), Peaks::default());
    let ended = tokio::select! {
        ended = scene.follow(manifest.name()) => ended?,
        failed = look(scene, manifest.name(), &mut slept) => match failed? {},
        failed = scene.watch_memory(manifest.name(), &mut memory) => match failed? {},
    };
    let folder = scene.store_of(&ended.run).await?;
    verified(&folder)?;
    assert_eq!(folder.state.finished_iterations(), ITERATIONS);
    scene.say(&format!(
        "{}: the engine fell asleep {} times, {:.0} s; most memory: {memory}",
        manifest.name(),
        slept.times,
        ended.seconds
    ));
    delete_run(&scene.client, &ended.run, SOON).await?;
    Ok(Trained {
        steps: steps(&folder)?,
        slept: slept.times,
        memory,
    })
}

/// The run with devices of its own for each side, and then the one whose sides take turns. Both must learn the same.
async fn both(scene: &Scene, sized: impl Fn(RunManifest) -> RunManifest) -> Result<[Trained; 2]> {
    let run = |name: &str| -> Result<RunManifest> {
        Ok(sized(small_run(name)?).with("/rollout/iterations", json!(ITERATIONS)))
    };
    let apart = trained(scene, &run("apart")?).await?;
    let colocated = trained(scene, &run("colocated")?.with("/trainer/colocate", json!(true))).await?;
    assert_eq!(apart.slept, 0, "an engine with devices of its own has slept");
    assert!(
        colocated.slept >= ITERATIONS,
        "the engine slept {} times in {ITERATIONS} steps",
        colocated.slept
    );
    for (step, (one, other)) in apart.steps.iter().zip(&colocated.steps).enumerate() {
        let step = step + 1;
        assert!(
            !one.rows.is_empty() && !one.tensors_sha256.is_empty(),
            "step {step}: {one:?}"
        );
        assert!(one.rows == other.rows, "the rows of step {step} differ");
        assert_eq!(one.loss, other.loss, "the loss of step {step}");
        assert_eq!(one.tensors_sha256, other.tensors_sha256, "the weights of step {step}");
    }
    Ok([apart, colocated])
}

#[tokio::test]
#[ignore = "needs a cluster: make test-e2e"]
async fn a_trainer_and_engines_that_take_turns_learn_the_same_as_those_that_do_not() -> Result<()> {
    let scene = Scene::new("colocated").await?;
    both(&scene, |run| run).await?;
    scene.clear().await
}

mod bench {
    use super::*;
    use crate::support::memory::mib;
    use crate::support::repository;
    use grpo_bench_report::{Bench, Row};

    /// The demo's model with positions for long prompts. It answers nonsense there, which takes as much memory.
    const MODEL: &str = "grpo.dev/demo/long-model:1";
    /// About 4,000 tokens, which differ between tasks from the beginning: an engine computes equal ones only once.
    const PROMPT: &str = "{% for i in range(128) %}{{ task.problem_statement }} {% endfor %}";
    /// Their prompts have about 100,000 tokens, whose keys and values take 2 KiB each. The engine keeps up to 256 MiB.
    const TASKS: u32 = 24;
    /// Tokens of a micro-batch, whose activations take over 28 KiB each.
    const TOKENS: u32 = 16_384;
    /// Sides that hold their memory at all times must miss it: otherwise the runs are too small to show anything.
    const BAR: f64 = 1.15;

    fn large(run: RunManifest) -> RunManifest {
        run.with("/model/image/reference", json!(MODEL))
            .with("/tasks/evaluate", json!([]))
            .with("/agent/bash/task", json!(PROMPT))
            // What a command prints could differ between the runs.
            .with("/agent/limits/turns", json!(1))
            .with("/rollout/prompts", json!(TASKS))
            .with("/rollout/samples", json!(2))
            .with("/rollout/sampling/maxTokensPerCall", json!(32))
            // Rewards are equal, and the trainer leaves out rows that add nothing to the loss.
            .with("/algorithm/entropyCoefficient", json!(0.001))
            .with("/trainer", json!({"nodes": 1, "maxTokensPerGpu": TOKENS}))
    }

    #[tokio::test]
    #[ignore = "takes a quarter of an hour: make bench-colocated"]
    async fn sides_that_take_turns_need_hardly_more_memory_than_the_larger_one() -> Result<()> {
        let scene = Scene::new("bench-colocated").await?;
        let [apart, colocated] = both(&scene, large).await?.map(|run| run.memory);
        if !(apart.are_complete() && colocated.are_complete()) {
            scene.say("NOT MEASURED: the pods are no processes of this machine; GRPO_CLUSTER=local makes them so");
            return scene.clear().await;
        }
        let figure = "24.6: colocated on the CPU";
        let without = apart.together as f64 / apart.larger();
        let row = Row::new(
            format!("{figure}: peak memory / that of the larger side alone"),
            Some(colocated.together as f64 / apart.larger()),
            "x",
            Some(format!("<= {BAR}").as_str()),
        );
        let rows = [
            row.beside("sides that take no turns", without),
            Row::new(
                format!("{figure}: trainer alone"),
                Some(mib(apart.trainer)),
                "MiB",
                None,
            ),
            Row::new(format!("{figure}: engine alone"), Some(mib(apart.engine)), "MiB", None),
        ];
        for row in &rows {
            scene.say(&serde_json::to_string(row)?);
        }
        assert!(without > BAR, "these runs are too small to show anything: {apart}");
        Bench::of_this_machine(&rows).write(&repository().join("bench/results/colocated.json"))?;
        assert!(rows.iter().all(Row::meets_its_bar), "{rows:#?}");
        scene.clear().await
    }
}
