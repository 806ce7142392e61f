//! Curves of a run at trackers, on the real cluster: MLflow's own server and a simulated server of Weights & Biases
//! have every number of the run's records once, though both were away and the driver was killed meanwhile; wandb's own
//! reader finds the same numbers in the store's file.
//!
//! wandb's own SDK speaks to the simulated server too: `wandb sync` of the file leaves the same run there as the
//! driver's upload, and a run that the SDK logs and continues is whole. So the SDK accepts the simulated server.
//! Needs a cluster with images, MLflow and wandb: `make check-trackers`.

use crate::support::{RUN_LIMIT, Result, Scene, repository, small_run};
use grpo_crds::GrpoRun;
use grpo_demo::follow;
use grpo_played_wandb::{ENTITY, KEY, PlayedRun, PlayedWandb};
use grpo_records::folder::RunFolder;
use grpo_records::{Event, IterationRecord, StepMetrics, paths};
use grpo_testing::cluster::{cache, host_address, wait};
use grpo_testing::mlflow::MlflowServer;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const RUN: &str = "tracked";
const ITERATIONS: u32 = 5;
const PROJECT: &str = "swe";
/// The id that `wandb sync` gives to the run of the file, to tell it from the uploaded one.
const SYNCED: &str = "synced";
/// A program of wandb's SDK repeats a request that fails for days.
const SDK_WITHIN: Duration = Duration::from_secs(180);

/// Values by curve and step.
type Curves = BTreeMap<(String, u64), f64>;

async fn at_iteration(scene: &Scene, iteration: u32) -> Result<()> {
    let there = |run: &GrpoRun| match follow::has_ended(run) {
        true => Some(Err(format!(
            "the run ended before iteration {iteration}: {}",
            follow::line(run)
        ))),
        false => (run.status.as_ref()?.progress.as_ref()?.iteration? >= iteration).then_some(Ok(())),
    };
    let what = format!("iteration {iteration}");
    Ok(scene.until_run(RUN, RUN_LIMIT, &what, there).await??)
}

fn read<T: serde::de::DeserializeOwned>(store: &Path, path: &str) -> Result<T> {
    Ok(serde_json::from_slice(&std::fs::read(store.join(path))?)?)
}

/// The numbers of a run's records.
fn recorded(folder: &RunFolder, store: &Path) -> Result<Curves> {
    let mut curves = Curves::new();
    let mut steps = BTreeMap::new();
    let mut add = |prefix: &str, step: u32, numbers: Vec<(String, f64)>| {
        for (name, value) in numbers.into_iter().filter(|(_, value)| value.is_finite()) {
            curves.insert((format!("{prefix}/{name}"), u64::from(step)), value);
        }
    };
    for entry in &folder.journal {
        match &entry.event {
            Event::BatchWritten { iteration, .. } => {
                let record: IterationRecord = read(store, &paths::driver_metrics(*iteration))?;
                add("rollout", *iteration, record.numbers());
            }
            Event::StepDone { step, weights, .. } => {
                steps.insert(weights.clone(), *step);
                let metrics: StepMetrics = read(store, &paths::trainer_metrics(*step))?;
                add("trainer", *step, metrics.numbers());
            }
            Event::EvaluationDone {
                set,
                weights,
                resolved,
                episodes,
                voids,
            } => {
                let step = steps.get(weights).copied().unwrap_or(0);
                let numbers = [
                    ("episodes", f64::from(*episodes)),
                    ("voids", f64::from(*voids)),
                    ("resolved_rate", f64::from(*resolved) / f64::from(*episodes)),
                ];
                let numbers = numbers.map(|(name, value)| (name.to_owned(), value)).to_vec();
                add(&format!("evaluation/{set}"), step, numbers);
            }
            _ => {}
        }
    }
    Ok(curves)
}

/// The newest file for Weights & Biases in a store.
fn newest_file(store: &Path) -> Result<PathBuf> {
    let attempt = |name: &str| name.strip_prefix("attempt-")?.parse::<f64>().ok();
    let mut folders = Vec::new();
    for folder in std::fs::read_dir(store.join(paths::WANDB))? {
        let folder = folder?;
        folders.extend(attempt(&folder.file_name().to_string_lossy()).map(|number| (number, folder.path())));
    }
    let newest = folders.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
    let (_, folder) = newest.ok_or("the store has no file for Weights & Biases")?;
    let file = std::fs::read_dir(folder)?.next().ok_or("the folder is empty")??;
    Ok(file.path())
}

/// The curves of a file, as wandb's own reader reads them; each value must be there once.
fn of_wandb(file: &Path, run: &GrpoRun) -> Result<Curves> {
    let python = cache().join("venv-wandb/bin/python");
    let script = repository().join("e2e/trackers/read_wandb.py");
    let out = Command::new(python).arg(script).arg(file).output()?;
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).into_owned().into());
    }
    let read: Value = serde_json::from_slice(&out.stdout)?;
    assert_eq!(read["exit"], 0);
    let ends = read["kinds"]
        .as_array()
        .is_some_and(|kinds| kinds.ends_with(&[json!("exit"), json!("final")]));
    assert!(ends, "an upload needs both");
    assert_eq!(read["run"]["id"], json!(run.uid()));
    assert_eq!(
        (&read["run"]["project"], &read["run"]["name"]),
        (&json!(PROJECT), &json!(RUN))
    );
    assert_eq!(read["run"]["config"]["iterations"], ITERATIONS);
    let rows = read["history"].as_array().cloned().unwrap_or_default();
    let curves = of_rows(&rows)?;
    for (curve, _) in curves.keys() {
        assert_eq!(read["axis"][curve], "step");
    }
    Ok(curves)
}

/// The curves of a history; each value must be there once.
fn of_rows(rows: &[Value]) -> Result<Curves> {
    let mut curves = Curves::new();
    for row in rows {
        let step = row["step"].as_u64().ok_or("a row without a step")?;
        let values = row.as_object().into_iter().flatten();
        for (curve, value) in values.filter(|(curve, _)| curve.contains('/')) {
            let value = value.as_f64().ok_or("a value that is no number")?;
            let earlier = curves.insert((curve.clone(), step), value);
            assert_eq!(earlier, None, "{curve} at {step} is there twice");
        }
    }
    Ok(curves)
}

/// Runs a program of wandb's SDK, which works with this server.
async fn run_sdk(server: &PlayedWandb, folder: &Path, program: &str, arguments: &[&str]) -> Result<()> {
    let mut command = tokio::process::Command::new(cache().join("venv-wandb/bin").join(program));
    command
        .args(arguments)
        .current_dir(folder)
        .env("HOME", folder)
        .env("WANDB_DIR", folder)
        .env("WANDB_BASE_URL", &server.url)
        .env("WANDB_API_KEY", KEY)
        .env("WANDB_ERROR_REPORTING", "false")
        .env("NO_PROXY", "*")
        .env("no_proxy", "*")
        .kill_on_drop(true);
    let unknown = || {
        format!(
            "operations that the simulated server does not know: {:?}",
            server.unknown()
        )
    };
    let done = tokio::time::timeout(SDK_WITHIN, command.output()).await;
    let done = done.map_err(|_| format!("{program} {arguments:?} works for {SDK_WITHIN:?}; {}", unknown()))??;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        return Err(format!("{program} {arguments:?}: {said}; {}", unknown()).into());
    }
    Ok(())
}

/// The config without what only one of two clients writes: values of parameters, and the axes of curves.
fn config_of(run: &PlayedRun) -> (BTreeMap<String, Value>, BTreeSet<String>) {
    let all = run.config.as_object().into_iter().flatten();
    let parameters = all
        .filter(|(name, _)| *name != "_wandb")
        .map(|(name, given)| (name.clone(), given["value"].clone()));
    let axes = run.config["_wandb"]["value"]["m"].as_array().into_iter().flatten();
    (parameters.collect(), axes.map(Value::to_string).collect())
}

/// Compares the run that the driver uploaded with the one that `wandb sync` makes of the store's file.
async fn compare_with_sync(server: &PlayedWandb, file: &Path, uid: &str, expected: &Curves) -> Result<()> {
    let folder = tempfile::tempdir()?;
    // `wandb sync` writes beside the file.
    let copy = folder.path().join(format!("run-{SYNCED}.wandb"));
    std::fs::copy(file, &copy)?;
    let copy = copy.display().to_string();
    run_sdk(server, folder.path(), "wandb", &["sync", "--id", SYNCED, &copy]).await?;
    let there = |id: &str| {
        let run = server.run(ENTITY, PROJECT, id);
        run.ok_or_else(|| format!("there is no run {id}; unknown operations: {:?}", server.unknown()))
    };
    let (uploaded, synced) = (there(uid)?, there(SYNCED)?);
    assert_eq!(&of_rows(&uploaded.history())?, expected);
    assert_eq!(uploaded.history(), synced.history());
    assert_eq!(uploaded.changed, 0, "a row came again with another content");
    // `wandb sync` of this version sends no axes.
    let (parameters, axes) = config_of(&uploaded);
    assert_eq!(parameters, config_of(&synced).0);
    assert_eq!(parameters["iterations"], ITERATIONS);
    for (curve, _) in expected.keys() {
        let axis = json!({"1": curve, "5": 1}).to_string();
        assert!(axes.contains(&axis), "{curve} has no axis: {axes:?}");
    }
    for (name, value) in uploaded.summary.as_object().into_iter().flatten() {
        assert_eq!(&synced.summary[name], value, "{name} in the table of runs");
    }
    assert_eq!(uploaded.display_name, synced.display_name);
    let ends = [&uploaded, &synced].map(|run| (run.state, run.exit_code));
    assert_eq!(ends, [("finished", Some(0)); 2]);
    Ok(())
}

/// The SDK's own live upload, and its own way to continue a run.
async fn sdk_logs_and_continues(server: &PlayedWandb) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let script = repository().join("e2e/trackers/log_wandb.py").display().to_string();
    run_sdk(server, folder.path(), "python", &[&script]).await?;
    let run = server.run(ENTITY, "sdk", "online").ok_or("the SDK made no run")?;
    let rows: Vec<(Option<u64>, Option<f64>)> = (run.history().iter())
        .map(|row| (row["_step"].as_u64(), row["loss"].as_f64()))
        .collect();
    let expected: Vec<_> = (0..6_u32)
        .map(|step| (Some(u64::from(step)), Some(1.0 / f64::from(step + 1))))
        .collect();
    assert_eq!(rows, expected);
    assert_eq!((run.state, run.exit_code, run.repeated), ("finished", Some(0), 0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a cluster with images, MLflow and wandb: make check-trackers"]
async fn mlflow_and_wandb_have_every_number_of_the_runs_records_once() -> Result<()> {
    let scene = Scene::new("trackers").await?;
    let database = tempfile::tempdir()?;
    let mut server = MlflowServer::start(&host_address(), database.path()).await?;
    let wandb = PlayedWandb::start(&host_address()).await?;
    let key = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "wandb"}, "stringData": {"api-key": KEY},
    });
    let _: Secret = scene.make(key).await?;
    let upload = json!({"apiKeySecretRef": {"name": "wandb", "key": "api-key"}, "url": wandb.url});
    let trackers = json!({
        "mlflow": {"url": server.url, "experiment": PROJECT}, "wandb": {"project": PROJECT, "upload": upload},
    });
    let manifest = small_run(RUN)?
        .with("/rollout/iterations", json!(ITERATIONS))
        .with("/trackers", trackers);
    let run = scene.apply(&manifest).await?;
    let uid = run.uid().ok_or("the run has no uid")?;

    at_iteration(&scene, 2).await?;
    server.kill().await?;
    wandb.set_away(true);
    scene.say("both servers are away");
    at_iteration(&scene, 3).await?;
    let driver = wait::labelled("grpo.dev/role=driver");
    scene.kill("driver", scene.pods(), driver, None).await?;
    at_iteration(&scene, 4).await?;
    server.again()?;
    wandb.set_away(false);
    scene.say("both servers are back");

    let ended = scene.follow(RUN).await?;
    let folder = scene.store_of(&ended.run).await?;
    let store = repository().join("out/e2e").join(&scene.namespace).join(RUN);
    let expected = recorded(&folder, &store)?;
    let there = server.run(PROJECT, &uid).await?.ok_or("MLflow has no such run")?;
    let twice: Vec<_> = there.points.iter().filter(|(_, values)| values.len() > 1).collect();
    assert!(twice.is_empty(), "points that are there twice: {twice:?}");
    let of_mlflow: Curves = (there.points.into_iter())
        .filter_map(|(point, values)| Some((point, *values.first()?)))
        .collect();
    assert_eq!(of_mlflow, expected);
    assert_eq!(there.status, "FINISHED");
    assert_eq!(there.parameters["iterations"], ITERATIONS.to_string());
    let file = newest_file(&store)?;
    assert_eq!(of_wandb(&file, &ended.run)?, expected);
    compare_with_sync(&wandb, &file, &uid, &expected).await?;
    sdk_logs_and_continues(&wandb).await?;
    scene.say(&format!(
        "operations that the simulated server refused: {:?}",
        wandb.unknown()
    ));
    assert_eq!(wandb.refused(), Vec::<String>::new());
    let curves: BTreeSet<&String> = expected.keys().map(|(curve, _)| curve).collect();
    scene.say(&format!(
        "{} points of {} curves, each once, at both servers and in the file",
        expected.len(),
        curves.len()
    ));
    scene.clear().await
}
