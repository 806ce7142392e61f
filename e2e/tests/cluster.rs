//! The main path on a real cluster: a manifest becomes a trained policy and records that support its claims. Deleting
//! the run deletes all of it and nothing of the user's. Errors in a manifest are named in words.
//!
//! Needs a cluster with images and chart: `make test-e2e`. Without one these tests do not run.

mod viewer;

use self::viewer::Viewer;
use crate::support::bucket::Bucket;
use crate::support::hub::{self, Hub};
use crate::support::recorder::{shortest_pause, slowest_showing};
use crate::support::{Result, SOON, Scene, plugin, repository, rows, small_run, verified};
use grpo_crds::GrpoRun;
use grpo_crds::grpo_run::Phase;
use grpo_demo::learning::differing_episodes;
use grpo_demo::report::first_and_last;
use grpo_records::trainer::StepMetrics;
use grpo_records::{paths, token_stats};
use grpo_testing::cluster::manifest::{RunManifest, delete_run};
use grpo_testing::cluster::wait;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use std::time::Duration;

const MANAGED: &str = "app.kubernetes.io/managed-by=grpo-operator";
/// On an idle machine a change of stage is visible within a second. The journal's clock has whole seconds, and the test
/// machine may be busy for one more.
const SHOWN_WITHIN: f64 = 3.0;
/// Counts are written at most every five seconds; a watch may delay one write more than the next.
const WRITES_APART: f64 = 4.5;
/// An error must be reported within this time, including attempts and back-off.
const FAILS_WITHIN: Duration = Duration::from_secs(420);

#[tokio::test]
#[ignore = "needs a cluster: make test-e2e"]
async fn a_run_trains_its_claims_follow_from_its_records_and_deleting_it_leaves_nothing() -> Result<()> {
    let scene = Scene::new("run").await?;
    let mine = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine"}, "data": {"a": "b"}});
    let mine: ConfigMap = scene.make(mine).await?;
    scene.apply(&small_run("small")?).await?;
    let recorder = scene.record("small");
    plugin::looks_into_a_running_run(&scene, "small").await?;
    let viewer = Viewer::start(&scene, "small").await?;
    let episode = viewer.finds_the_next_episode(&scene).await?;
    let ended = scene.follow("small").await?;
    let seen = recorder.stop();
    let watched = viewer.outlives_the_run(&scene, &episode).await?;

    let folder = scene.store_of(&ended.run).await?;
    verified(&folder)?;
    watched.shows_the_run_live(&scene, &scene.copy_of("small"), &folder.journal)?;
    plugin::reads_an_ended_run(&scene, "small", &folder).await?;
    assert_eq!(folder.state.finished_iterations(), 2);
    for step in 1..=2 {
        let metrics: Option<StepMetrics> = folder.json_if_there(&paths::trainer_metrics(step))?;
        let metrics = metrics.ok_or("a finished step has no metrics")?;
        assert!(metrics.trained_tokens > 0);
        assert_eq!(
            metrics.logprob_gap_over, 0,
            "tokens whose logprob differs by more than 1e-3: {metrics:?}"
        );
        let (_, seen) = token_stats::decode(&folder.bytes(&paths::token_stats(step))?)?;
        let mut batch = folder.batch(step)?;
        batch.fill(|path| folder.bytes(path))?;
        let sampled = batch.rows.iter().flat_map(|row| row.mask.iter().zip(&row.logprobs));
        let sampled: Vec<f32> = sampled
            .filter(|(mask, _)| **mask == 1)
            .map(|(_, logprob)| *logprob)
            .collect();
        assert_eq!(seen.logprobs.len(), sampled.len(), "each sampled token has an entry");
        let gaps = seen
            .logprobs
            .iter()
            .zip(&sampled)
            .map(|(trainer, engine)| (trainer - engine).abs());
        let computed: Vec<f32> = gaps.filter(|gap| !gap.is_nan()).collect();
        assert!(
            !computed.is_empty() && computed.iter().all(|gap| *gap < 1e-3),
            "{computed:?}"
        );
    }
    for (set, (before, after)) in first_and_last(&folder) {
        assert_ne!(
            Some(&before),
            after.as_ref(),
            "{set} was measured under one version only"
        );
    }

    let showing = slowest_showing(&seen, &folder.journal)?;
    let pause = shortest_pause(&seen);
    scene.say(&format!(
        "{} writes of status; an iteration was shown after {showing:.1} s at most; shortest pause: {pause:?}",
        seen.len()
    ));
    assert!(
        showing < SHOWN_WITHIN,
        "an iteration was shown {showing} s after it began"
    );
    assert!(
        pause.is_none_or(|pause| pause > WRITES_APART),
        "counts were written {pause:?} s after each other"
    );

    delete_run(&scene.client, &ended.run, SOON).await?;
    nothing_is_left(&scene).await?;
    let maps: Api<ConfigMap> = Api::namespaced(scene.client.clone(), &scene.namespace);
    assert_eq!(maps.get("mine").await?.resource_version(), mine.resource_version());
    scene.clear().await
}

/// Waits until the namespace has no objects of the operator or a gateway.
async fn nothing_is_left(scene: &Scene) -> Result<()> {
    gone::<Pod>(scene).await?;
    gone::<Service>(scene).await?;
    gone::<Deployment>(scene).await?;
    gone::<ConfigMap>(scene).await?;
    gone::<Secret>(scene).await?;
    gone::<ServiceAccount>(scene).await?;
    gone::<Role>(scene).await?;
    gone::<RoleBinding>(scene).await?;
    gone::<NetworkPolicy>(scene).await?;
    gone::<PersistentVolumeClaim>(scene).await?;
    gone_by::<grpo_crds::InferencePool>(scene, wait::labelled("")).await?;
    gone_by::<grpo_crds::SandboxPool>(scene, wait::labelled("")).await
}

async fn gone<K>(scene: &Scene) -> Result<()>
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope>
        + Clone
        + serde::de::DeserializeOwned
        + std::fmt::Debug
        + Send
        + 'static,
    K::DynamicType: Default,
{
    gone_by::<K>(scene, wait::labelled(MANAGED)).await
}

async fn gone_by<K>(scene: &Scene, of: kube::runtime::watcher::Config) -> Result<()>
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope>
        + Clone
        + serde::de::DeserializeOwned
        + std::fmt::Debug
        + Send
        + 'static,
    K::DynamicType: Default,
{
    let api: Api<K> = Api::namespaced(scene.client.clone(), &scene.namespace);
    let what = format!("every {} of the run to be gone", K::kind(&K::DynamicType::default()));
    Ok(wait::until(api, of, SOON, &what, |there| there.is_empty().then_some(())).await?)
}

#[tokio::test]
#[ignore = "needs a cluster: make test-e2e"]
async fn the_same_seed_gives_the_same_episodes_token_by_token_also_with_a_hub_and_a_bucket() -> Result<()> {
    let scene = Scene::new("repeat").await?;
    let hub = Hub::new(&scene).await?;
    let bucket = Bucket::new(&scene).await?;
    let evaluate = |name: &str| -> Result<RunManifest> {
        let at_start = |set: &mut Value| {
            set["atStart"] = json!(true);
            set["atEnd"] = json!(false);
        };
        Ok(small_run(name)?
            .for_each_set(at_start)
            .with("/rollout/iterations", json!(1))
            .with("/algorithm/learningRate", json!(0.0)))
    };
    let second = hub.holds(bucket.holds(evaluate("second")?));
    let (mut folders, mut shown) = (Vec::new(), Vec::new());
    for manifest in [evaluate("first")?, second] {
        scene.apply(&manifest).await?;
        let ended = scene.follow(manifest.name()).await?;
        let progress = ended.run.status.as_ref().and_then(|status| status.progress.as_ref());
        shown = progress.map_or(Vec::new(), |progress| progress.revisions.clone());
        folders.push(match &ended.run.spec.store.object_store {
            None => scene.store_of(&ended.run).await?,
            Some(_) => bucket.store_of(&ended.run)?,
        });
        delete_run(&scene.client, &ended.run, SOON).await?;
    }
    let shown: Vec<&str> = shown.iter().map(|revision| revision.repo.as_str()).collect();
    assert_eq!(shown, [hub::MODEL, hub::DATASET]);
    let weights = hub
        .played
        .requests()
        .into_iter()
        .filter(|request| request.host == "files" && request.path == "model.safetensors");
    assert_eq!(weights.count(), 1, "driver, trainer and engine share one download");
    let (first, second) = (first_and_last(&folders[0]), first_and_last(&folders[1]));
    for (set, (weights, _)) in &first {
        let other = &second[set].0;
        let (differing, compared) = differing_episodes((&folders[0], weights), (&folders[1], other), set)?;
        assert!(
            compared > 0 && differing == 0,
            "{differing} of {compared} episodes of {set} differ"
        );
    }
    scene.clear().await
}

#[tokio::test]
#[ignore = "needs a cluster: make test-e2e"]
async fn a_manifest_with_two_engines_is_refused_with_the_fields_path() -> Result<()> {
    let scene = Scene::new("refused").await?;
    let two = small_run("two-engines")?.with("/inference/pool/engine/vllm", json!({}));
    let refusal = scene.apply(&two).await.err().ok_or("it was taken")?.to_string();
    assert!(refusal.contains("spec.inference.pool.engine"), "{refusal}");
    let unknown = small_run("unknown-field")?.with("/algorithm/learnRate", json!(0.1));
    let refusal = scene.apply(&unknown).await.err().ok_or("it was taken")?.to_string();
    assert!(refusal.contains("learnRate"), "{refusal}");
    scene.clear().await
}

/// The demo's first training rows as JSON, changed.
fn changed_rows(count: usize, change: impl Fn(usize, &mut Value)) -> Result<String> {
    let text = std::fs::read_to_string(rows().join("train.jsonl"))?;
    let mut out = String::new();
    for (number, line) in text.lines().take(count).enumerate() {
        let mut row = serde_json::from_str(line)?;
        change(number, &mut row);
        out += &format!("{row}\n");
    }
    Ok(out)
}

/// A small run on rows of the test's own.
fn run_on_rows(name: &str, claim: &str) -> Result<RunManifest> {
    let dataset = json!({"persistentVolumeClaim": {"claimName": claim, "path": "rows.jsonl"}});
    Ok(small_run(name)?
        .with("/tasks", json!({"train": {"dataset": dataset}}))
        .with("/rollout/iterations", json!(1))
        .with("/failurePolicy", json!({"maxConsecutiveFailures": 2})))
}

#[tokio::test]
#[ignore = "needs a cluster: make test-e2e"]
async fn rows_that_cannot_be_graded_are_named_with_the_field_where_no_other_is_left() -> Result<()> {
    let scene = Scene::new("bad-row").await?;
    let rows = changed_rows(3, |_, row| row["FAIL_TO_PASS"] = json!(7))?;
    scene.volume_with_files("rows", &[("rows.jsonl", &rows)]).await?;
    scene.apply(&run_on_rows("bad-row", "rows")?).await?;
    let words = scene.failure_of("bad-row", FAILS_WITHIN).await?;
    for part in ["3 skipped", "FAIL_TO_PASS"] {
        assert!(words.contains(part), "{words}");
    }
    scene.clear().await
}

#[tokio::test]
#[ignore = "needs a cluster: make test-e2e"]
async fn a_task_image_that_cannot_be_pulled_is_named_while_its_episodes_wait() -> Result<()> {
    let scene = Scene::new("bad-image").await?;
    let rows = changed_rows(2, |_, row| {
        row["image"] = json!("127.0.0.1:1/demo/task/there-is-none:1")
    })?;
    scene.volume_with_files("rows", &[("rows.jsonl", &rows)]).await?;
    scene.apply(&run_on_rows("bad-image", "rows")?).await?;
    let says = |run: &GrpoRun| {
        let message = run.status.as_ref()?.progress.as_ref()?.message.clone()?;
        message
            .contains("127.0.0.1:1/demo/task/there-is-none:1 cannot be pulled")
            .then_some(message)
    };
    let words = scene
        .until_run("bad-image", FAILS_WITHIN, "progress that names the task's image", says)
        .await?;
    scene.say(&format!("it says: {words}"));
    scene.clear().await
}

#[tokio::test]
#[ignore = "needs a cluster: make test-e2e"]
async fn a_model_image_that_cannot_be_pulled_is_named_while_the_run_waits() -> Result<()> {
    let scene = Scene::new("bad-model-image").await?;
    let missing = "127.0.0.1:1/demo/model:there-is-none";
    scene
        .apply(&small_run("bad-model")?.with("/model/image/reference", json!(missing)))
        .await?;
    let says = |run: &GrpoRun| {
        let status = run.status.as_ref()?;
        let mut words = status.conditions.iter().map(|c| &c.message).chain(&status.message);
        words.find(|message| message.contains(missing)).cloned()
    };
    let words = scene
        .until_run(
            "bad-model",
            FAILS_WITHIN,
            "a condition that names the model's image",
            says,
        )
        .await?;
    scene.say(&format!("it says: {words}"));
    scene.clear().await
}

#[tokio::test]
#[ignore = "needs a cluster: make test-e2e"]
async fn an_unknown_model_type_is_named() -> Result<()> {
    let scene = Scene::new("bad-model-type").await?;
    let model = repository().join("demo/model");
    let read = |name: &str| std::fs::read_to_string(model.join(name));
    let mut config: Value = serde_json::from_str(&read("config.json")?)?;
    config["model_type"] = json!("mamba9");
    config["architectures"] = json!(["Mamba9ForCausalLM"]);
    let files = [
        ("config.json", config.to_string()),
        ("tokenizer.json", read("tokenizer.json")?),
        ("tokenizer_config.json", read("tokenizer_config.json")?),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    scene.volume_with_files("model", &files).await?;
    let manifest = small_run("bad-type")?
        .with("/model", json!({"persistentVolumeClaim": {"claimName": "model"}}))
        .with("/failurePolicy", json!({"maxConsecutiveFailures": 2}));
    scene.apply(&manifest).await?;
    let words = scene.failure_of("bad-type", FAILS_WITHIN).await?;
    assert!(words.contains("mamba9"), "{words}");
    scene.clear().await
}

#[tokio::test]
#[ignore = "needs a cluster: make test-e2e"]
async fn no_sandbox_outlives_a_run_that_is_deleted_in_the_middle() -> Result<()> {
    let scene = Scene::new("deleted").await?;
    let run = scene.apply(&small_run("deleted")?).await?;
    let sandboxes = "grpo.dev/role=sandbox";
    let running = |there: &wait::Objects<Pod>| {
        let runs = |pod: &&Pod| pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running");
        there.values().find(runs).map(|pod| pod.name_any())
    };
    let first = scene
        .until_pods(sandboxes, FAILS_WITHIN, "a running sandbox", running)
        .await?;
    scene.say(&format!("sandbox {first} runs; deleting the run"));
    delete_run(&scene.client, &run, SOON).await?;
    nothing_is_left(&scene).await?;
    let pods = scene.pods().list(&ListParams::default()).await?;
    assert!(
        pods.items.is_empty(),
        "{:?}",
        pods.items.iter().map(ResourceExt::name_any).collect::<Vec<_>>()
    );
    scene.clear().await
}

#[tokio::test]
#[ignore = "needs a cluster: make test-e2e"]
async fn a_suspended_run_holds_nothing_and_goes_on_where_it_was() -> Result<()> {
    let scene = Scene::new("suspended").await?;
    scene.apply(&small_run("paused")?).await?;
    let begun = |run: &GrpoRun| {
        let progress = run.status.as_ref()?.progress.as_ref()?;
        (progress.iteration? >= 1 && progress.episodes_done? >= 1).then_some(())
    };
    scene
        .until_run("paused", FAILS_WITHIN, "a first finished episode", begun)
        .await?;
    let runs: Api<GrpoRun> = Api::namespaced(scene.client.clone(), &scene.namespace);
    let suspend = |suspend: bool| Patch::Merge(json!({"spec": {"suspend": suspend}}));
    runs.patch("paused", &PatchParams::default(), &suspend(true)).await?;
    let phase = |wanted: Phase| move |run: &GrpoRun| (run.status.as_ref()?.phase? == wanted).then_some(());
    scene
        .until_run("paused", SOON, "the phase Suspended", phase(Phase::Suspended))
        .await?;
    gone::<Pod>(&scene).await?;
    gone_by::<grpo_crds::InferencePool>(&scene, wait::labelled("")).await?;
    scene.say("it holds nothing; resuming it");
    runs.patch("paused", &PatchParams::default(), &suspend(false)).await?;
    let ended = scene.follow("paused").await?;
    let folder = scene.store_of(&ended.run).await?;
    verified(&folder)?;
    assert_eq!(folder.state.finished_iterations(), 2);
    scene.clear().await
}

#[tokio::test]
#[ignore = "needs a cluster: make test-e2e"]
async fn a_run_that_can_never_fit_is_queued_and_says_what_is_missing() -> Result<()> {
    let scene = Scene::new("too-large").await?;
    let large = small_run("too-large")?
        .with("/trainer/nodes", json!(2))
        .with("/trainer/gpusPerNode", json!(8));
    scene.apply(&large).await?;
    let waits = |run: &GrpoRun| {
        let status = run.status.as_ref()?;
        let admitted = status.conditions.iter().find(|one| one.type_ == "Admitted")?;
        let queued = status.phase == Some(Phase::Queued) && admitted.reason == "NeverFits";
        queued.then(|| admitted.message.clone())
    };
    let words = scene
        .until_run(
            "too-large",
            FAILS_WITHIN,
            "a condition that says what is missing",
            waits,
        )
        .await?;
    scene.say(&format!("it says: {words}"));
    assert!(words.contains("2 trainer pods of 8 nvidia.com/gpu"), "{words}");
    let pods = scene.pods().list(&ListParams::default().labels("grpo.dev/run")).await?;
    let placed = pods.items.iter().filter(|pod| {
        let spec = pod.spec.as_ref();
        spec.is_some_and(|spec| spec.node_name.is_some()) && pod.labels()["grpo.dev/role"] != "gateway"
    });
    assert_eq!(placed.count(), 0);
    scene.clear().await
}
