//! Statuses of waiting, running and failed runs, as this controller writes them: the tests of `kubectl grpo` turn them
//! into the screens of the book. `UPDATE_SCREENS=1 cargo test -p grpo-operator-core screens` writes them again.

use std::{fs, path::Path};

use grpo_crds::grpo_run::Mode;
use grpo_crds::{GrpoRun, GrpoRunStatus, Progress};
use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;
use serde_json::{Value, json};

use super::{admitted, running_demo, seen};
use crate::grpo_run::{
    decide::decide,
    observation::{Asked, QueueState, RunObservation, StoreVolume},
};
use crate::{
    admission,
    fixtures::{ended, object, pod},
    pods::{PodFacts, PodState},
    settings::Settings,
};

const PDB: &str = include_str!("../../../../../docs/examples/2-swe-pdb-8b.yaml");

/// A file of screens: an example, its changes, and its status.
#[derive(Serialize)]
struct Screen<'a> {
    example: &'a str,
    #[serde(skip_serializing_if = "Value::is_null")]
    spec: Value,
    status: GrpoRunStatus,
}

fn written(name: &str, example: &str, spec: Value, run: &RunObservation, progress: Option<Progress>) {
    let status = GrpoRunStatus {
        progress,
        ..decide(run, &Settings::admitting_unsupported()).status
    };
    let text = serde_yaml_ng::to_string(&Screen { example, spec, status }).unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../kubectl-grpo/tests/screens")
        .join(name)
        .with_extension("yaml");
    if std::env::var_os("UPDATE_SCREENS").is_some() {
        fs::write(&file, &text).unwrap();
    }
    let known = fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(
        text,
        known,
        "{} is out of date; UPDATE_SCREENS=1 writes it anew",
        file.display()
    );
}

/// The trainer of the example with GPUs of its own, which nodes list.
fn with_own_gpus() -> Value {
    let mut run: Value = serde_yaml_ng::from_str(PDB).unwrap();
    run["spec"]["trainer"]["colocate"] = json!(false);
    run["spec"]["trainer"].take()
}

fn pdb() -> RunObservation {
    RunObservation {
        store: StoreVolume::Shared,
        ..seen(object(PDB))
    }
}

fn waiting_pod(name: &str, status: Value) -> PodFacts {
    let labels = json!({"grpo.dev/attempt": "1", "grpo.dev/rank": "0"});
    let pod: Pod =
        serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}, "status": status})).unwrap();
    PodFacts::of(&pod)
}

#[test]
fn screens_of_a_run_that_waits_for_gpus() {
    let verdict = admission::tests::waits_for_gpus("swe-pdb-8b", (1, 4), (2, 2));
    let trainer = with_own_gpus();
    let mut run = RunObservation {
        verdict: Some(verdict),
        ..pdb()
    };
    run.run.spec.trainer = serde_json::from_value(trainer.clone()).unwrap();
    written("gpus", "2-swe-pdb-8b.yaml", json!({"trainer": trainer}), &run, None);
}

#[test]
fn screens_of_a_run_that_waits_for_quota() {
    let queue = json!({"queueName": "gpus"});
    let mut run: GrpoRun = object(PDB);
    run.spec.queue_name = Some("gpus".into());
    let status = json!({"conditions": [{
        "type": "QuotaReserved", "status": "False", "reason": "Pending", "lastTransitionTime": "2026-01-01T00:00:00Z",
        "message": "couldn't assign flavors to pod set trainer: insufficient unused quota for nvidia.com/gpu in flavor h200, 4 more needed",
    }]});
    let workload = json!({"metadata": {"name": "grporun-swe-pdb-8b"}, "status": status});
    let run = RunObservation {
        queue: QueueState::Asked(Box::new(Asked {
            workload: serde_json::from_value(workload).unwrap(),
            ..Asked::default()
        })),
        run,
        ..pdb()
    };
    written("quota", "2-swe-pdb-8b.yaml", queue, &run, None);
}

#[test]
fn screens_of_a_run_that_waits_for_a_claim() {
    let run = RunObservation {
        store: StoreVolume::Missing,
        ..pdb()
    };
    written("claim", "2-swe-pdb-8b.yaml", Value::Null, &run, None);
}

#[test]
fn screens_of_a_run_that_waits_for_an_image() {
    let message = "Back-off pulling image \"grpo.dev/demo/model:1\": ErrImagePull: failed to pull and unpack image \"grpo.dev/demo/model:1\": not found";
    let state = json!({"waiting": {"reason": "ImagePullBackOff", "message": message}});
    let container = json!({"name": "driver", "image": "grpo.dev/driver:dev", "imageID": "", "ready": false, "restartCount": 0, "state": state});
    let status = json!({"phase": "Pending", "containerStatuses": [container]});
    let run = RunObservation {
        driver_pods: vec![waiting_pod("demo-driver-1-0", status)],
        ..running_demo()
    };
    written("image", "demo.yaml", Value::Null, &run, None);
}

#[test]
fn screens_of_a_run_that_runs() {
    let progress = json!({
        "runUid": "uid-1", "stage": "Rollout", "stages": ["Rollout"], "iteration": 8, "iterations": 12,
        "episodesDone": 41, "episodesTotal": 64, "resolvedRate": 0.625, "reward": 0.625, "loss": -0.0132,
        "weights": "l1-v7", "void": 1, "staleness": 0,
        "evaluations": [
            {"set": "train", "weights": "l1-v0", "resolvedRate": 0.4375, "episodes": 48},
            {"set": "heldout", "weights": "l1-v0", "resolvedRate": 0.375, "episodes": 48},
        ],
    });
    let run = RunObservation {
        verdict: Some(admitted()),
        ..running_demo()
    };
    let progress = serde_json::from_value(progress).unwrap();
    written("running", "demo.yaml", Value::Null, &run, Some(progress));
}

#[test]
fn screens_of_a_run_that_validated_tasks() {
    let mut run = running_demo();
    run.run.spec.mode = Mode::Validate;
    let run = RunObservation {
        driver_pods: vec![pod("demo-driver-1-0", 1, 0, PodState::Succeeded)],
        trainer_pods: Vec::new(),
        inference: None,
        ..run
    };
    let progress = json!({
        "runUid": "uid-1", "stage": "Finished", "iteration": 0, "iterations": 12, "episodesDone": 120, "episodesTotal": 120,
        "message": "tasks.train: 117 of 120 tasks are fit",
    });
    let progress = serde_json::from_value(progress).unwrap();
    written(
        "validate",
        "demo.yaml",
        json!({"mode": "Validate"}),
        &run,
        Some(progress),
    );
}

#[test]
fn screens_of_a_run_that_failed() {
    let words = "no group of iteration 1 has two valid episodes, 64 of 64 are void; for example ImageUnavailable: example.com/task/a:1: not found";
    let fault = json!({"reason": "NoValidEpisodes", "message": words}).to_string();
    let run = RunObservation {
        driver_pods: vec![pod("demo-driver-1-0", 1, 0, ended(42, &fault))],
        ..running_demo()
    };
    let progress = json!({"stage": "Rollout", "iteration": 1, "iterations": 12, "episodesDone": 0, "episodesTotal": 64, "void": 12});
    let progress = serde_json::from_value(progress).unwrap();
    written("failed", "demo.yaml", Value::Null, &run, Some(progress));
}
