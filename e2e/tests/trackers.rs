//! Curves of a run at trackers, on the real cluster: MLflow's own server has every number of the run's records once,
//! though it was away and the driver was killed meanwhile; wandb's own reader finds the same numbers in the store's
//! file. Needs a cluster with images, MLflow and wandb: `make check-trackers`.

use crate::support::{RUN_LIMIT, Result, Scene, repository, small_run};
use grpo_crds::GrpoRun;
use grpo_demo::follow;
use grpo_records::folder::RunFolder;
use grpo_records::{Event, IterationRecord, StepMetrics, paths};
use grpo_testing::cluster::{cache, host_address, wait};
use grpo_testing::mlflow::MlflowServer;
use kube::ResourceExt;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

const RUN: &str = "tracked";
const ITERATIONS: u32 = 5;

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
        (&json!("swe"), &json!(RUN))
    );
    assert_eq!(read["run"]["config"]["iterations"], ITERATIONS);
    let mut curves = Curves::new();
    for row in read["history"].as_array().into_iter().flatten() {
        let step = row["step"].as_u64().ok_or("a row without a step")?;
        for (curve, value) in row
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(curve, _)| curve.contains('/'))
        {
            let value = value.as_f64().ok_or("a value that is no number")?;
            assert_eq!(read["axis"][curve], "step");
            let earlier = curves.insert((curve.clone(), step), value);
            assert_eq!(earlier, None, "{curve} at {step} is there twice");
        }
    }
    Ok(curves)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a cluster with images, MLflow and wandb: make check-trackers"]
async fn mlflow_and_wandb_have_every_number_of_the_runs_records_once() -> Result<()> {
    let scene = Scene::new("trackers").await?;
    let database = tempfile::tempdir()?;
    let mut server = MlflowServer::start(&host_address(), database.path()).await?;
    let trackers = json!({"mlflow": {"url": server.url, "experiment": "swe"}, "wandb": {"project": "swe"}});
    let manifest = small_run(RUN)?
        .with("/rollout/iterations", json!(ITERATIONS))
        .with("/trackers", trackers);
    let run = scene.apply(&manifest).await?;
    let uid = run.uid().ok_or("the run has no uid")?;

    at_iteration(&scene, 2).await?;
    server.kill().await?;
    scene.say("MLflow is away");
    at_iteration(&scene, 3).await?;
    let driver = wait::labelled("grpo.dev/role=driver");
    scene.kill("driver", scene.pods(), driver, None).await?;
    at_iteration(&scene, 4).await?;
    server.again()?;
    scene.say("MLflow is back");

    let ended = scene.follow(RUN).await?;
    let folder = scene.store_of(&ended.run).await?;
    let store = repository().join("out/e2e").join(&scene.namespace).join(RUN);
    let expected = recorded(&folder, &store)?;
    let there = server.run("swe", &uid).await?.ok_or("MLflow has no such run")?;
    let twice: Vec<_> = there.points.iter().filter(|(_, values)| values.len() > 1).collect();
    assert!(twice.is_empty(), "points that are there twice: {twice:?}");
    let of_mlflow: Curves = (there.points.into_iter())
        .filter_map(|(point, values)| Some((point, *values.first()?)))
        .collect();
    assert_eq!(of_mlflow, expected);
    assert_eq!(there.status, "FINISHED");
    assert_eq!(there.parameters["iterations"], ITERATIONS.to_string());
    assert_eq!(of_wandb(&newest_file(&store)?, &ended.run)?, expected);
    let curves: std::collections::BTreeSet<&String> = expected.keys().map(|(curve, _)| curve).collect();
    scene.say(&format!(
        "{} points of {} curves, each once, at both",
        expected.len(),
        curves.len()
    ));
    scene.clear().await
}
