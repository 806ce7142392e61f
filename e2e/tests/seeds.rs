//! Manifests of the reference systems on a real cluster: each as in `docs/examples`, under an overlay that replaces
//! what a small machine cannot have. Agent, prompts, history, reward and algorithm are the manifest's own.
//!
//! The overlay sets the demo's tasks and model (with more positions, and tools in its template), the embedded engine, a
//! trainer on CPU, one iteration of one task with two samples, and short answers. The model answers nonsense there: the
//! test is that everything runs, and that the verifier can recompute it. Needs a cluster with the images of agents and
//! of that model: `make test-seeds`.

use crate::finetune::conversations;
use crate::support::{Result, Scene, repository, rows, small_run, verified};
use grpo_contracts::access::Service as Called;
use grpo_crds::InferencePool;
use grpo_records::trainer::StepMetrics;
use grpo_records::{EpisodeScope, JudgedTurn, paths};
use grpo_testing::cluster::manifest::RunManifest;
use grpo_testing::cluster::token::service_token;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use serde::Deserialize;
use serde_json::{Value, json};

const MODEL: &str = "grpo.dev/demo/long-model:1";
const TASKS: &str = "grpo.dev/demo/tasks:1";
/// Pool, account and Secret of [`external`].
const SERVER: &str = "server";

macro_rules! seeds {
    ($($test:ident: $file:literal, $own:expr;)*) => {$(
        #[tokio::test]
        #[ignore = "needs a cluster with images: make test-seeds"]
        async fn $test() -> Result<()> {
            runs($file, $own).await
        }
    )*};
}

seeds! {
    qwen_code_locally: "0-qwen-code-local", |run| run;
    qwen_code_on_a_server_of_somebody_else: "0-qwen-code-modal", external;
    mini_swe_agent_plus: "1-mini-swe-agent-plus", |run| run;
    tools_of_4b: "2-swe-pdb-4b", tools;
    tools_of_8b: "2-swe-pdb-8b", tools;
    tools_of_14b: "2-swe-pdb-14b", tools;
    tools_without_a_debugger: "2-swe-pdb-14b-rewrite", tools;
    trimmed_histories: "3-remote-pool-32b", trimmed;
    trimmed_histories_resumable: "3-remote-pool-32b-resume", trimmed;
    four_nodes: "3-remote-pool-32b-4nodes", |run| run;
    two_nodes: "3-remote-pool-8b", |run| run;
    a_judge_of_turns: "3-prm-8b", judged;
    an_evaluation_of_tools: "2-swe-pdb-evaluate", evaluated_tools;
    an_evaluation: "3-evaluate", |run| run;
    an_evaluation_on_a_pool: "3-evaluate-shared-cluster", |run| run;
}

/// The server of somebody else: the service for clients of another pool, which [`server`] makes.
fn external(run: RunManifest) -> RunManifest {
    let engine = json!({"external": {
        "url": format!("http://{SERVER}-clients:8000/v1"), "apiKeySecretRef": {"name": SERVER, "key": "token"},
        "weights": "Frozen",
    }});
    run.with("/inference", json!({"pool": {"engine": engine}}))
}

/// Makes the pool of [`external`], an account that may sample from it, and a Secret with the account's token.
async fn server(scene: &Scene) -> Result<()> {
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": SERVER}});
    scene.make::<ServiceAccount>(account).await?;
    let model = json!({"image": {"reference": MODEL}});
    let spec = json!({"model": model, "engine": {"embedded": {}}, "clients": [{"serviceAccount": SERVER}]});
    scene
        .make::<InferencePool>(json!({"metadata": {"name": SERVER}, "spec": spec}))
        .await?;
    let token = service_token(&scene.client, &scene.namespace, SERVER, Called::EngineAgent).await?;
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SERVER}, "stringData": {"token": token}});
    scene.make::<Secret>(secret).await?;
    Ok(())
}

/// The tool `eval` needs a command, which KodCode's rows have and the demo's do not.
fn tools(run: RunManifest) -> RunManifest {
    // The demo's tokenizer has 1,024 tokens: a prompt is several times as long as with Qwen3's.
    run.with("/agent/limits/promptTokens", json!(16_000)).with(
        "/tasks/train",
        json!({"dataset": {"persistentVolumeClaim": {"claimName": "tasks", "path": "train.jsonl"}}}),
    )
}

/// The same for the evaluated sets.
fn evaluated_tools(run: RunManifest) -> RunManifest {
    let rows = json!({"persistentVolumeClaim": {"claimName": "tasks", "path": "train.jsonl"}});
    run.with("/agent/limits/promptTokens", json!(16_000))
        .with("/tasks/evaluate", json!([{"name": "kodcode", "dataset": rows}]))
}

#[tokio::test]
#[ignore = "needs a cluster with images: make test-seeds"]
async fn supervised_training_of_4b() -> Result<()> {
    learns("2-swe-pdb-sft-4b").await
}

#[tokio::test]
#[ignore = "needs a cluster with images: make test-seeds"]
async fn supervised_training_of_8b() -> Result<()> {
    learns("2-swe-pdb-sft-8b").await
}

#[tokio::test]
#[ignore = "needs a cluster with images: make test-seeds"]
async fn supervised_training_of_14b() -> Result<()> {
    learns("2-swe-pdb-sft-14b").await
}

/// A manifest of mode Finetune, with the test's own conversations, the demo's model and a trainer on CPU.
async fn learns(file: &str) -> Result<()> {
    let scene = Scene::new(&format!("seed-{file}")).await?;
    let rows = [
        ("train.jsonl", conversations(0, 20)),
        ("test.jsonl", conversations(100, 3)),
    ];
    let rows = rows.each_ref().map(|(name, text)| (*name, text.as_str()));
    scene.volume_with_files("tasks", &rows).await?;
    let run = manifest(file)?
        .with("/model", json!({"image": {"reference": MODEL}}))
        // Some conversations are longer: they are cut, as the manifest requires.
        .with("/finetune/maxTokens", json!(160))
        .with("/finetune/dataset/persistentVolumeClaim/path", json!("train.jsonl"))
        .with(
            "/finetune/validation/dataset/persistentVolumeClaim/path",
            json!("test.jsonl"),
        )
        .with("/trainer", json!({"nodes": 1}))
        .with(
            "/store",
            json!({"volumeClaimTemplate": {"resources": {"requests": {"storage": "1Gi"}}}}),
        );
    let name = run.name().to_owned();
    scene.apply(&run).await?;
    let ended = scene.follow(&name).await?;
    let folder = scene.store_of(&ended.run).await?;
    verified(&folder)?;
    let steps = folder.state.finished_iterations();
    // Four of twenty rows were not resolved; two epochs of batches of eight.
    assert_eq!(steps, 4);
    let mut losses = Vec::new();
    for step in 1..=steps {
        let metrics: Option<StepMetrics> = folder.json_if_there(&paths::trainer_metrics(step))?;
        losses.push(metrics.ok_or("a step has no metrics")?.loss);
    }
    scene.say(&format!(
        "{file}: {steps} steps, loss {losses:.3?}, {:.0} s",
        ended.seconds
    ));
    scene.clear().await
}

/// A context so short that turns are left out; mini-swe-agent's prompts alone would not fit.
fn trimmed(run: RunManifest) -> RunManifest {
    run.with("/agent/limits/contextTokens", json!(1024))
        .with("/agent/bash/preset", json!("Plain"))
}

/// Short votes: the judge's model answers nonsense too.
fn judged(run: RunManifest) -> RunManifest {
    run.with("/reward/process/sampling/maxTokensPerCall", json!(16))
}

/// The pool that judges a run's turns, on the same model as its policy.
async fn judge(scene: &Scene, run: &RunManifest, model: &str) -> Result<()> {
    if let Some(name) = run.0["spec"]["reward"]["process"]["poolRef"]["name"].as_str() {
        let spec = json!({"model": {"image": {"reference": model}}, "engine": {"embedded": {}}, "replicas": 1});
        let pool = json!({"metadata": {"name": name}, "spec": spec});
        scene.make::<InferencePool>(pool).await?;
    }
    Ok(())
}

/// The demo's policy acts, so the judge gets its turns.
#[tokio::test]
#[ignore = "needs a cluster with images: make test-seeds"]
async fn turns_are_put_to_the_engine_of_another_pool() -> Result<()> {
    let scene = Scene::new("seed-judged").await?;
    let run = small_run("judged")?
        .with("/rollout/iterations", json!(1))
        .with("/reward/process", json!({"poolRef": {"name": "judge"}, "votes": 2}))
        .with("/reward/process/sampling", json!({"maxTokensPerCall": 16}))
        .with("/reward/process/system", json!(""))
        .with(
            "/reward/process/prompt",
            json!("{{ response }} {{ returnCode }} {{ output }} Good? Answer \\boxed{1} or \\boxed{-1}."),
        )
        .with("/reward/process/lengths", json!({"response": 200, "output": 200}));
    judge(&scene, &run, "grpo.dev/demo/model:1").await?;
    scene.apply(&run).await?;
    let ended = scene.follow("judged").await?;
    let folder = scene.store_of(&ended.run).await?;
    verified(&folder)?;
    let (mut votes, mut answered, mut scores) = (0, 0, 0);
    for episode in folder.episodes(&EpisodeScope::Iteration { iteration: 1 })? {
        let process = episode.meta.process.ok_or("an episode of the run was not judged")?;
        for one in &process.turns {
            let judged: Option<JudgedTurn> = folder.json_if_there(&paths::judged(&episode.path, one.turn))?;
            let judged = judged.ok_or("a judged turn has no votes")?;
            assert!(judged.votes.iter().all(|vote| vote.lost.is_none()), "{judged:?}");
            votes += judged.votes.len();
            answered += judged.votes.iter().filter(|vote| !vote.text.is_empty()).count();
            scores += usize::from(one.score.is_some());
        }
    }
    scene.say(&format!(
        "{votes} votes, {answered} with a text, {scores} turns with a score, {:.0} s",
        ended.seconds
    ));
    assert!(answered > 0, "no vote of {votes} has a text");
    scene.clear().await
}

/// The GrpoRun of a file, which may have pools beside it.
fn manifest(file: &str) -> Result<RunManifest> {
    let text = std::fs::read_to_string(repository().join(format!("docs/examples/{file}.yaml")))?;
    for document in serde_yaml_ng::Deserializer::from_str(&text) {
        let object = Value::deserialize(document)?;
        if object["kind"] == "GrpoRun" {
            return Ok(RunManifest(object));
        }
    }
    Err(format!("{file} has no GrpoRun").into())
}

fn without(mut run: RunManifest, part: &str, field: &str) -> RunManifest {
    if let Some(part) = run.0["spec"][part].as_object_mut() {
        part.remove(field);
    }
    run
}

/// The overlay of every manifest.
fn scaled_down(run: RunManifest) -> RunManifest {
    let trains = run.0["spec"]["mode"] != "Evaluate";
    // Trainer and engine take turns on CPUs too.
    let colocates = run.0["spec"]["trainer"]["colocate"] == true;
    let mut model = json!({"image": {"reference": MODEL}});
    let lora = &run.0["spec"]["model"]["lora"];
    if !lora.is_null() {
        model["lora"] = lora.clone();
    }
    let resources = json!({
        "requests": {"cpu": "10m", "ephemeral-storage": "64Mi"},
        "limits": {"cpu": "500m", "memory": "512Mi", "ephemeral-storage": "1Gi"},
    });
    let dataset = |path: &str| json!({"image": {"reference": TASKS, "path": path}});
    let run = run
        .with("/model", model)
        .with("/inference", json!({"pool": {"engine": {"embedded": {}}}}))
        .with(
            "/sandboxes",
            json!({"pool": {"max": 4, "resources": resources, "allowUnenforced": true}}),
        )
        .with(
            "/store",
            json!({"volumeClaimTemplate": {"resources": {"requests": {"storage": "1Gi"}}}}),
        )
        .with("/rollout/sampling/maxTokensPerCall", json!(48))
        .with("/agent/limits/turns", json!(4))
        .with("/agent/limits/commandTimeout", json!("20s"))
        .with("/agent/limits/episodeTimeout", json!("10m"));
    // Counts that depend on GPUs and their memory.
    let run = without(without(run, "rollout", "concurrency"), "algorithm", "routerReplay");
    match trains {
        true => run
            .with("/tasks", json!({"train": {"dataset": dataset("train.jsonl")}}))
            .with("/trainer", json!({"nodes": 1, "colocate": colocates}))
            .with("/rollout/iterations", json!(1))
            .with("/rollout/prompts", json!(1))
            .with("/rollout/samples", json!(2)),
        false => run.with(
            "/tasks",
            json!({"evaluate": [{"name": "heldout", "dataset": dataset("heldout.jsonl"), "select": {"limit": 2}}]}),
        ),
    }
}

/// The first rows of the demo, with the command that runs their tests.
fn rows_with_commands() -> Result<String> {
    let text = std::fs::read_to_string(rows().join("train.jsonl"))?;
    let mut out = String::new();
    for line in text.lines().take(2) {
        let mut row: Value = serde_json::from_str(line)?;
        row["test_command"] = json!("env -i PATH=/usr/bin:/bin LANG=C.UTF-8 python3 -S -s -B /opt/task/run.py report");
        out += &format!("{row}\n");
    }
    Ok(out)
}

async fn runs(file: &str, own: fn(RunManifest) -> RunManifest) -> Result<()> {
    let scene = Scene::new(&format!("seed-{file}")).await?;
    let run = own(scaled_down(manifest(file)?));
    let (name, trains) = (run.name().to_owned(), run.0["spec"]["mode"] != "Evaluate");
    if run.0["spec"]["agent"]["tools"].is_object() {
        let tasks = rows_with_commands()?;
        scene.volume_with_files("tasks", &[("train.jsonl", &tasks)]).await?;
    }
    if run.0["spec"]["inference"]["pool"]["engine"]["external"].is_object() {
        server(&scene).await?;
    }
    judge(&scene, &run, MODEL).await?;
    scene.apply(&run).await?;
    let ended = scene.follow(&name).await?;
    let folder = scene.store_of(&ended.run).await?;
    verified(&folder)?;
    let (mut episodes, mut turns, mut stored) = (0, 0, 0);
    for scope in folder.scopes()? {
        for episode in folder.episodes(&scope)? {
            assert!(
                episode.meta.outcome.is_verdict(),
                "{}: {:?}",
                episode.path,
                episode.meta.message
            );
            let ended = folder.ended(&episode.path)?.ok_or("an episode has no record")?;
            episodes += 1;
            turns += ended.record.turns.len();
            stored += ended.rows.len();
        }
    }
    assert!(turns >= episodes && episodes > 0, "an episode without an answer");
    let mut told = format!(
        "{file}: {episodes} episodes, {turns} turns, {stored} rows, {:.0} s",
        ended.seconds
    );
    if trains {
        assert!(!folder.episodes(&EpisodeScope::Iteration { iteration: 1 })?.is_empty());
        let metrics: Option<StepMetrics> = folder.json_if_there(&paths::trainer_metrics(1))?;
        let metrics = metrics.ok_or("the step has no metrics")?;
        assert_eq!(
            metrics.logprob_gap_over, 0,
            "tokens whose logprob differs by more than 1e-3: {metrics:?}"
        );
        told += &format!(
            ", {} trained tokens, gap {:.1e}",
            metrics.trained_tokens, metrics.logprob_gap_max
        );
    }
    scene.say(&told);
    scene.clear().await
}
