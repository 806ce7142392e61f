//! Runs on a server that speaks only text (`engine.external.api: Chat`), on a real cluster. The server is the service
//! for clients of another pool: conversations go in, texts come out, and the run's agent sees nothing else.
//!
//! An evaluation has verdicts, and its episodes are marked. A run that trains is refused. Needs a cluster with images:
//! `make test-clients`.

use super::{AGENT, CLIENT, POOL, serving_replica, token};
use crate::support::{Result, SOON, Scene, small_run, verdicts, verified};
use grpo_crds::{GrpoRun, InferencePool};
use grpo_records::folder::RunFolder;
use grpo_records::{Outcome, TokenRow, TurnRecord};
use grpo_testing::cluster::manifest::RunManifest;
use grpo_testing::cluster::wait;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use kubectl_grpo::arguments::{Export, Part, RecordsOptions};
use kubectl_grpo::export::export;
use kubectl_grpo::records::Source;
use serde_json::{Value, json};

/// The run that is evaluated, its pool, and the pool that a run refers to.
const TEXT: &str = "text";
const TRAINS: &str = "trains";
const SET: &str = "heldout";
const TASKS: usize = 3;
const SAMPLES: usize = 2;
/// The key of the account's token in its Secret.
const KEY: &str = "token";

/// The service for clients of [`POOL`] as a server that speaks only text.
fn engine() -> Value {
    json!({"external": {
        "url": format!("http://{POOL}-clients:{AGENT}/v1"),
        "apiKeySecretRef": {"name": CLIENT, "key": KEY},
        "api": "Chat",
        "weights": "Frozen",
        // A probe that fails before the service has its address is repeated soon.
        "probe": {"period": "5s"},
    }})
}

/// An evaluation of the demo's policy, without the fields that only a run that trains has.
fn evaluation() -> Result<RunManifest> {
    let dataset = json!({"image": {"reference": "grpo.dev/demo/tasks:1", "path": "heldout.jsonl"}});
    let set = json!({"name": SET, "dataset": dataset, "select": {"limit": TASKS}, "samples": SAMPLES});
    let mut run = small_run(TEXT)?
        .with("/mode", json!("Evaluate"))
        .with("/tasks", json!({"evaluate": [set]}))
        .with("/inference", json!({"pool": {"engine": engine()}}))
        .with(
            "/rollout",
            json!({"sampling": {"temperature": 1.0, "maxTokensPerCall": 160}}),
        );
    if let Some(spec) = run.0["spec"].as_object_mut() {
        for field in ["algorithm", "trainer", "checkpoint"] {
            spec.remove(field);
        }
    }
    Ok(run)
}

/// Waits until the probe of a pool has passed, and returns the condition's message.
async fn probed(scene: &Scene, pool: &str) -> Result<String> {
    let pools: Api<InferencePool> = Api::namespaced(scene.client.clone(), &scene.namespace);
    let passed = |there: &wait::Objects<InferencePool>| {
        let conditions = &there.get(pool)?.status.as_ref()?.conditions;
        let mut probes = conditions.iter().filter(|one| one.type_ == "Probed");
        let probe = probes.find(|one| one.status == "True")?;
        Some(probe.message.clone())
    };
    let what = "the pool to be Probed";
    Ok(wait::until(pools, wait::named(pool), SOON, what, passed).await?)
}

/// `summary.json`, as `kubectl grpo export` writes it.
async fn summary(folder: &RunFolder) -> Result<Value> {
    let to = tempfile::tempdir()?;
    let wanted = Export {
        names: Vec::new(),
        part: Part {
            set: Some(SET.to_owned()),
            ..Part::default()
        },
        sample: 0,
        format: None,
        records: RecordsOptions::default(),
    };
    export(&mut Source::Folder(folder.records()), &wanted, to.path()).await?;
    let text = std::fs::read(to.path().join("summary.json"))?;
    Ok(serde_json::from_slice(&text)?)
}

#[tokio::test]
#[ignore = "needs a cluster with images: make test-clients"]
async fn an_evaluation_on_a_server_of_text_has_verdicts_and_marked_episodes() -> Result<()> {
    let scene = Scene::new("clients-text").await?;
    serving_replica(&scene).await?;
    let token = token(&scene, CLIENT).await?;
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": CLIENT}, "stringData": {KEY: token}});
    scene.make::<Secret>(secret).await?;

    scene.apply(&evaluation()?).await?;
    // The run waits for its pool, so it cannot end before this is seen.
    let probe = probed(&scene, TEXT).await?;
    assert_eq!(
        probe,
        "the server answers in text; only runs of mode Evaluate sample from it"
    );
    let ended = scene.follow(TEXT).await?;
    let folder = scene.store_of(&ended.run).await?;
    verified(&folder)?;
    assert_eq!(verdicts(&folder)?.len(), TASKS * SAMPLES);

    let (mut turns, mut resolved) = (0, 0);
    for scope in folder.scopes()? {
        for episode in folder.episodes(&scope)? {
            let (path, meta) = (&episode.path, &episode.meta);
            assert!(meta.untrainable && meta.outcome.is_verdict(), "{path}: {meta:?}");
            let played = folder.ended(path)?.ok_or("an episode has no record")?;
            let sampled: usize = played.rows.iter().map(TokenRow::sampled).sum();
            assert!(sampled > 0, "{path} has no answers");
            let mut logprobs = played.rows.iter().flat_map(|row| &row.logprobs);
            assert!(
                logprobs.all(|logprob| *logprob == 0.0),
                "{path}: a server of text returned a logprob"
            );
            assert!(played.record.turns.iter().all(TurnRecord::is_text_only), "{path}");
            turns += played.record.turns.len();
            resolved += usize::from(meta.outcome == Outcome::Resolved);
        }
    }
    let summary = summary(&folder).await?;
    assert_eq!(
        (&summary["total"], &summary["errors"]),
        (&json!(TASKS), &json!(0)),
        "{summary}"
    );
    let pass_at = &summary["pass_at_k"][0];
    assert_eq!(
        (&pass_at["k"], &pass_at["tasks"]),
        (&json!(1), &json!(TASKS)),
        "{summary}"
    );
    let rate = pass_at["rate"].as_f64().ok_or("pass@1 has no rate")?;
    let recorded = resolved as f64 / (TASKS * SAMPLES) as f64;
    assert!((rate - recorded).abs() < 1e-9, "{recorded} is recorded: {summary}");
    scene.say(&format!(
        "{resolved} of {} episodes resolved, {turns} turns, {:.0} s",
        TASKS * SAMPLES,
        ended.seconds
    ));
    scene.clear().await
}

#[tokio::test]
#[ignore = "needs a cluster with images: make test-clients"]
async fn a_run_that_trains_on_a_server_of_text_is_refused_and_gets_no_node() -> Result<()> {
    let scene = Scene::new("clients-text-train").await?;
    let run = small_run(TRAINS)?;
    let inference = json!({"pool": {"engine": engine()}});
    // So that only the API of the server is refused.
    let own_pool = run
        .clone()
        .with("/algorithm/allowFrozenSampler", json!(true))
        .with("/inference", inference);
    let refusal = scene.apply(&own_pool).await.err().ok_or("it was taken")?.to_string();
    assert!(
        refusal.contains("inference.pool.engine.external.api is Chat"),
        "{refusal}"
    );

    // Its server does not matter, so it has no replicas.
    let model = json!({"image": {"reference": "grpo.dev/demo/model:1"}});
    let spec = json!({"model": model, "engine": engine(), "replicas": 0});
    scene
        .make::<InferencePool>(json!({"metadata": {"name": TEXT}, "spec": spec}))
        .await?;
    scene
        .apply(&run.with("/inference", json!({"poolRef": {"name": TEXT}})))
        .await?;
    let refused = |run: &GrpoRun| {
        let conditions = &run.status.as_ref()?.conditions;
        let admitted = conditions.iter().find(|one| one.type_ == "Admitted")?;
        (admitted.reason == "SamplerIsFrozen").then(|| admitted.message.clone())
    };
    let words = scene
        .until_run(TRAINS, SOON, "its sampler to be refused", refused)
        .await?;
    scene.say(&format!("it says: {words}"));
    assert!(words.contains("api Chat"), "{words}");
    // Pods without a queue wait with a gate.
    let workers = format!("grpo.dev/run={TRAINS},grpo.dev/role in (driver,trainer,engine)");
    let pods = scene.pods().list(&ListParams::default().labels(&workers)).await?.items;
    let placed = pods
        .iter()
        .filter(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()));
    let placed: Vec<String> = placed.map(ResourceExt::name_any).collect();
    assert_eq!(placed, Vec::<String>::new());
    scene.clear().await
}
