//! The process as a run's pods start it: two ranks, orders over HTTP, deaths, and what comes back.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use grpo_crds::{GrpoRun, RunConfig};
use grpo_policy::weights;
use grpo_records::paths;
use grpo_records::trainer::{StepMetrics, StepPhase, StepState, TrainerPhase, TrainerState};
use grpo_records::weights::WeightsManifest;
use grpo_trainer::state::{Store, json, sha256};

const STEPS: u32 = 9;

/// A run's folder: model, config and store, with the batches of every step.
struct Run {
    _folder: tempfile::TempDir,
    root: PathBuf,
    store: Store,
}

impl Run {
    fn new(checkpoint_every: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_owned();
        let model = root.join("model");
        std::fs::create_dir(&model).unwrap();
        let config = serde_json::to_vec(&common::config_json()).unwrap();
        std::fs::write(model.join("config.json"), config).unwrap();
        let initial = common::alone().weights().unwrap();
        std::fs::write(
            model.join("model.safetensors"),
            weights::to_safetensors(&initial).unwrap(),
        )
        .unwrap();

        let run: GrpoRun = serde_json::from_value(serde_json::json!({
            "apiVersion": "grpo.dev/v1alpha1", "kind": "GrpoRun", "metadata": {"name": "run", "namespace": "default"},
            "spec": {
                "model": {"image": {"reference": "example.com/model:1"}},
                "tasks": {"train": {"dataset": {"image": {"reference": "example.com/tasks:1", "path": "train.jsonl"}}}},
                "agent": {"bash": {}},
                "algorithm": {"learningRate": 1e-3},
                "rollout": {"iterations": STEPS},
                "checkpoint": {"every": checkpoint_every, "keep": 2},
                "trainer": {},
                "inference": {"pool": {"engine": {"embedded": {}}}},
                "sandboxes": {"pool": {"max": 4}},
                "store": {"volumeClaimTemplate": {"resources": {"requests": {"storage": "1Gi"}}}}
            }
        }))
        .unwrap();
        let mut config = RunConfig::of(&run);
        config.store_path = root.join("store").display().to_string();
        config.model_path = model.display().to_string();
        std::fs::write(root.join("run.json"), serde_json::to_vec(&config).unwrap()).unwrap();

        let store = Store::new(root.join("store"));
        for step in 1..=STEPS {
            store
                .create(&paths::batch(step), &json(&common::batch(step)).unwrap())
                .unwrap();
        }
        Self {
            _folder: folder,
            root,
            store,
        }
    }

    fn manifest(&self, version: &str) -> WeightsManifest {
        serde_json::from_slice(&self.store.read(&paths::weights_manifest(version)).unwrap()).unwrap()
    }

    fn metrics(&self, step: u32) -> StepMetrics {
        serde_json::from_slice(&self.store.read(&paths::trainer_metrics(step)).unwrap()).unwrap()
    }
}

/// The ranks of one attempt, killed when dropped.
struct Attempt {
    ranks: Vec<Child>,
    door: String,
}

impl Attempt {
    /// Starts the ranks and returns when they take orders.
    fn start(run: &Run, number: u32, world: u32) -> Self {
        let (meeting, door) = (free_port(), format!("127.0.0.1:{}", free_port()));
        let ranks = (0..world).map(|rank| {
            Command::new(env!("CARGO_BIN_EXE_grpo-trainer"))
                .args(["serve", "--listen", &door, "--config"])
                .arg(run.root.join("run.json"))
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", world.to_string())
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", meeting.to_string())
                .env("POD_IP", "127.0.0.1")
                .env("GRPO_ATTEMPT", number.to_string())
                .env("GRPO_THREADS", "1")
                .env("GRPO_COLLECTIVE_TIMEOUT", "60")
                .env("RUST_LOG", "info")
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        });
        let mut attempt = Self {
            ranks: ranks.collect(),
            door,
        };
        for rank in &mut attempt.ranks {
            let mut lines = BufReader::new(rank.stderr.take().unwrap()).lines();
            let mut seen = Vec::new();
            while !seen
                .last()
                .is_some_and(|line: &String| line.contains("ready for orders"))
            {
                seen.push(
                    lines
                        .next()
                        .unwrap_or_else(|| panic!("a rank ended:\n{}", seen.join("\n")))
                        .unwrap(),
                );
            }
            // Read on, so that the rank never waits for room in the pipe.
            std::thread::spawn(move || lines.for_each(drop));
        }
        attempt
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.door).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: trainer\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), body.to_owned())
    }

    fn state(&self) -> TrainerState {
        serde_json::from_str(&self.ask("GET", "/v1/state", "").1).unwrap()
    }

    fn order(&self, step: u32, batch: &str, sha256: &str) -> (u16, String) {
        let body = serde_json::json!({"batch": batch, "sha256": sha256}).to_string();
        self.ask("PUT", &format!("/v1/steps/{step}"), &body)
    }

    fn outcome(&self, step: u32) -> StepState {
        serde_json::from_str(&self.ask("GET", &format!("/v1/steps/{step}?waitSeconds=50"), "").1).unwrap()
    }

    fn step(&self, run: &Run, step: u32) -> StepState {
        let (status, answer) = self.order(step, &paths::batch(step), &checksum(run, step));
        assert_eq!(status, 202, "{answer}");
        let outcome = self.outcome(step);
        assert_eq!(outcome.state, StepPhase::Done, "{outcome:?}");
        outcome
    }

    /// Kills one rank; answers whether every other one then ended by itself, with a failure.
    fn kill(&mut self, rank: usize) -> bool {
        self.ranks[rank].kill().unwrap();
        self.ranks.iter_mut().enumerate().all(|(at, child)| {
            let status = child.wait().unwrap();
            at == rank || !status.success()
        })
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            let _ = rank.kill();
            let _ = rank.wait();
        }
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn checksum(run: &Run, step: u32) -> String {
    sha256(&run.store.read(&paths::batch(step)).unwrap())
}

fn exists(folder: &Path, name: &str) -> bool {
    folder.join(name).exists()
}

#[test]
fn ranks_step_as_ordered_end_together_and_come_back_with_the_same_bits() {
    let run = Run::new(2);
    let mut first = Attempt::start(&run, 1, 2);
    let state = first.state();
    assert_eq!(
        (state.step, state.phase, state.weights.as_str()),
        (0, TrainerPhase::Idle, "l1-v0")
    );
    for step in 1..=3 {
        let done = first.step(&run, step);
        let version = format!("l1-v{step}");
        assert_eq!(done.weights.as_deref(), Some(version.as_str()));
        let manifest = run.store.read(&paths::weights_manifest(&version)).unwrap();
        assert_eq!(done.manifest_sha256.as_deref(), Some(sha256(&manifest).as_str()));
        let metrics = done.metrics.unwrap();
        assert_eq!(metrics, run.metrics(step));
        assert_eq!(metrics.tensors_sha256, run.manifest(&version).tensors_sha256);
        assert!(
            metrics.loss.is_finite() && metrics.entropy > 0.0 && metrics.gradient_norm > 0.0,
            "{metrics:?}"
        );
        assert!(
            metrics.logprob_gap_max > 1e-3 && metrics.logprob_gap_over > 0,
            "the logprobs of these rows are drawn"
        );
    }

    // The same order again is no fault; others are.
    assert_eq!(first.order(3, &paths::batch(3), &checksum(&run, 3)).0, 202);
    assert_eq!(first.order(3, &paths::batch(4), &checksum(&run, 4)).0, 409);
    assert_eq!(first.order(5, &paths::batch(5), &checksum(&run, 5)).0, 409);
    assert_eq!(first.order(4, "../elsewhere.json", &checksum(&run, 4)).0, 400);
    assert_eq!(first.order(4, &paths::batch(4), &checksum(&run, 5)).0, 202);
    let refused = first.outcome(4);
    assert!(refused.state == StepPhase::Failed && refused.error.unwrap().contains("sha256"));
    assert_eq!((first.state().step, first.state().phase), (3, TrainerPhase::Idle));

    // The checkpoint is of step 2, so step 3 is replayed.
    assert!(first.kill(1), "rank 0 ended well although rank 1 died");
    let mut second = Attempt::start(&run, 2, 2);
    let state = second.state();
    assert_eq!(
        (state.attempt, state.step, state.checkpoint_step, state.weights.as_str()),
        (2, 3, 2, "l1-v3")
    );
    let done = second.outcome(3);
    assert_eq!((done.state, done.weights.as_deref()), (StepPhase::Done, Some("l1-v3")));
    assert_eq!(
        done.metrics.unwrap().tensors_sha256,
        run.manifest("l1-v3").tensors_sha256
    );
    assert_eq!(second.outcome(1).state, StepPhase::Done);
    second.step(&run, 4);

    assert!(second.kill(0), "rank 1 ended well although rank 0 died");
    // Another world may round differently, and then says so by its name.
    let third = Attempt::start(&run, 3, 1);
    assert_eq!(
        (third.state().step, third.state().weights.as_str()),
        (4, "l1-v4"),
        "step 4 has a checkpoint"
    );
    third.step(&run, 5);
    let (status, text) = third.ask("GET", "/metrics", "");
    assert!(status == 200 && text.contains("grpo_trainer_step 5"), "{text}");
}

#[test]
fn what_comes_out_otherwise_than_published_is_a_new_lineage() {
    let run = Run::new(50);
    let attempt = Attempt::start(&run, 1, 1);
    for step in 1..=4 {
        attempt.step(&run, step);
    }
    let published = run.manifest("l1-v4").tensors_sha256;
    drop(attempt);

    // As if another machine's arithmetic had published step 2.
    let path = run.store.at(&paths::weights_manifest("l1-v2"));
    let other = WeightsManifest {
        tensors_sha256: "00".repeat(32),
        ..run.manifest("l1-v2")
    };
    std::fs::write(&path, json(&other).unwrap()).unwrap();
    let attempt = Attempt::start(&run, 2, 1);
    assert_eq!(
        (attempt.state().lineage.as_str(), attempt.state().weights.as_str()),
        ("l2", "l2-v4")
    );
    assert_eq!(run.manifest("l2-v2").parent.as_deref(), Some("l1-v1"));
    assert_eq!(run.manifest("l2-v4").tensors_sha256, published);
    drop(attempt);

    // A replay that was cut short is taken up where its lineage left off, and ends where the run was.
    let weights = run.store.at(paths::WEIGHTS);
    std::fs::remove_dir_all(weights.join("l2-v4")).unwrap();
    std::fs::remove_dir_all(weights.join("l2-v3")).unwrap();
    std::fs::create_dir(weights.join(".2-1-l2-v3")).unwrap();
    let attempt = Attempt::start(&run, 3, 1);
    assert_eq!((attempt.state().step, attempt.state().phase), (4, TrainerPhase::Idle));
    assert_eq!(attempt.state().weights, "l2-v4");
    assert!(!exists(&weights, ".2-1-l2-v3"));
}

#[test]
fn a_version_that_was_removed_is_still_compared_with() {
    let run = Run::new(50);
    let attempt = Attempt::start(&run, 1, 1);
    for step in 1..=STEPS {
        attempt.step(&run, step);
    }
    drop(attempt);
    let weights = run.store.at(paths::WEIGHTS);
    assert!(exists(&weights, "l1-v0") && !exists(&weights, "l1-v1") && exists(&weights, "l1-v2"));
    std::fs::remove_dir_all(run.store.at(paths::CHECKPOINTS)).unwrap();

    let other = StepMetrics {
        tensors_sha256: "00".repeat(32),
        ..run.metrics(1)
    };
    std::fs::write(run.store.at(&paths::trainer_metrics(1)), json(&other).unwrap()).unwrap();
    assert_eq!(Attempt::start(&run, 2, 1).state().weights, format!("l2-v{STEPS}"));
}
