//! The process as a run's pods start it: two ranks, orders over HTTP, deaths, and what comes back.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use grpo_crds::hang::{HUNG_CODE, Hang, PEER_LOST_CODE};
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
        Self::with_deadline(checkpoint_every, "60s")
    }

    fn with_deadline(checkpoint_every: u32, collective: &str) -> Self {
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
            "apiVersion": "grpo.dev/v1alpha1", "kind": "GrpoRun", "metadata": {"name": "run", "namespace": "default", "uid": "uid-1"},
            "spec": {
                "model": {"image": {"reference": "example.com/model:1"}},
                "tasks": {"train": {"dataset": {"image": {"reference": "example.com/tasks:1", "path": "train.jsonl"}}}},
                "agent": {"bash": {}},
                "algorithm": {"learningRate": 1e-3},
                "rollout": {"iterations": STEPS},
                "checkpoint": {"every": checkpoint_every, "keep": 2},
                "trainer": {"deadlines": {"collective": collective}},
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
    /// Of every rank: each is the first of a pod of its own.
    doors: Vec<String>,
    last_words: PathBuf,
}

impl Attempt {
    /// Starts the ranks and returns when they take orders.
    fn start(run: &Run, number: u32, world: u32) -> Self {
        let mut attempt = Self::begin(run, number, world, 0..world);
        attempt.wait_for_orders();
        attempt
    }

    /// Starts some ranks of a world.
    fn begin(run: &Run, number: u32, world: u32, present: std::ops::Range<u32>) -> Self {
        let meeting = free_port();
        let doors: Vec<String> = present.clone().map(|_| format!("127.0.0.1:{}", free_port())).collect();
        let last_words = run.root.join(format!("last-words-{number}"));
        std::fs::create_dir_all(&last_words).unwrap();
        let ranks = present.zip(&doors).map(|(rank, door)| {
            Command::new(env!("CARGO_BIN_EXE_grpo-trainer"))
                .args(["serve", "--listen", door, "--config"])
                .arg(run.root.join("run.json"))
                .arg("--termination-log")
                .arg(last_words.join(rank.to_string()))
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", world.to_string())
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", meeting.to_string())
                .env("GLOO_SOCKET_IFNAME", "lo")
                .env("GRPO_ATTEMPT", number.to_string())
                .env("GRPO_THREADS", "1")
                .env("RUST_LOG", "info")
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        });
        let ranks = ranks.collect();
        Self {
            ranks,
            doors,
            last_words,
        }
    }

    fn wait_for_orders(&mut self) {
        for rank in &mut self.ranks {
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
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        self.ask_rank(0, method, path, body)
    }

    fn ask_rank(&self, rank: usize, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.doors[rank]).unwrap();
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

    /// Kills one rank; answers whether every other one then said that it lost a peer.
    fn kill(&mut self, rank: usize) -> bool {
        self.ranks[rank].kill().unwrap();
        self.ranks.iter_mut().enumerate().all(|(at, child)| {
            let status = child.wait().unwrap();
            at == rank || status.code() == Some(PEER_LOST_CODE)
        })
    }

    fn signal(&self, rank: usize, signal: &str) {
        let pid = self.ranks[rank].id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Stops one rank as a hang does, and answers what the others said of it when they ended.
    fn hang(&mut self, rank: usize) -> Vec<Hang> {
        self.signal(rank, "-STOP");
        let others = (0..self.ranks.len()).filter(|other| *other != rank);
        let said = others.map(|other| {
            assert_eq!(
                self.ranks[other].wait().unwrap().code(),
                Some(HUNG_CODE),
                "rank {other}"
            );
            serde_json::from_slice(&std::fs::read(self.last_words.join(other.to_string())).unwrap()).unwrap()
        });
        said.collect()
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
    let staged = run.store.at(paths::STAGING).join("uid-1_2_0/l2-v3");
    std::fs::create_dir_all(&staged).unwrap();
    let attempt = Attempt::start(&run, 3, 1);
    assert_eq!((attempt.state().step, attempt.state().phase), (4, TrainerPhase::Idle));
    assert_eq!(attempt.state().weights, "l2-v4");
    assert!(!staged.exists());
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

#[test]
fn a_rank_that_hangs_is_named_by_all_others_with_collective_and_step() {
    let run = Run::with_deadline(50, "3s");
    let mut attempt = Attempt::start(&run, 1, 3);
    attempt.step(&run, 1);
    for hang in attempt.hang(1) {
        assert_eq!((&hang.ranks, &hang.pods), (&vec![1], &vec![1]), "{hang:?}");
        assert!(hang.message.contains("rank 1 did not arrive"), "{hang:?}");
    }
    // The stopped one finds its peers gone when it comes back, and ends too.
    attempt.signal(1, "-CONT");
    assert!(!attempt.ranks[1].wait().unwrap().success());

    // And when rank 0, where the ranks meet, hangs.
    let mut attempt = Attempt::start(&run, 2, 3);
    for hang in attempt.hang(0) {
        assert_eq!(hang.ranks, [0], "{hang:?}");
    }
}

#[test]
fn a_hang_inside_a_step_names_the_step() {
    let run = Run::with_deadline(50, "2s");
    let mut attempt = Attempt::start(&run, 1, 2);
    // Stopped before it is ordered: it hangs in the step, as its peers see it.
    attempt.signal(1, "-STOP");
    assert_eq!(attempt.order(1, &paths::batch(1), &checksum(&run, 1)).0, 202);
    let hang = attempt.hang(1).remove(0);
    assert_eq!(hang.ranks, [1]);
    assert!(
        hang.message.contains("rank 0 waited") && hang.message.contains("step 1"),
        "{hang:?}"
    );
}

#[test]
fn a_rank_is_ready_when_it_is_where_all_meet_and_waits_there_for_the_others() {
    let run = Run::with_deadline(50, "1s");
    let attempt = Attempt::begin(&run, 1, 3, 0..2);
    for rank in 0..2 {
        until(|| {
            TcpStream::connect(&attempt.doors[rank]).is_ok() && attempt.ask_rank(rank, "GET", "/readyz", "").0 == 200
        });
    }
    let answer = attempt.ask_rank(1, "GET", "/v1/state", "").0;
    assert_eq!(answer, 404, "only rank 0 takes orders");
    assert_eq!(attempt.state().phase, TrainerPhase::Starting);
}

#[test]
fn a_rank_that_waits_for_rank_zero_is_not_ready() {
    let run = Run::new(50);
    let attempt = Attempt::begin(&run, 1, 2, 1..2);
    until(|| TcpStream::connect(&attempt.doors[0]).is_ok());
    assert_eq!(attempt.ask("GET", "/healthz", "").0, 200);
    assert_eq!(attempt.ask("GET", "/readyz", "").0, 503);
}

#[test]
fn the_driver_says_when_a_checkpoint_is_written_and_how_many_stay() {
    let run = Run::new(50);
    let attempt = Attempt::start(&run, 1, 2);
    for (step, write) in [(1, true), (2, false), (3, true)] {
        let order = serde_json::json!({
            "batch": paths::batch(step), "sha256": checksum(&run, step), "checkpoint": {"write": write, "keep": 1},
        });
        assert_eq!(
            attempt.ask("PUT", &format!("/v1/steps/{step}"), &order.to_string()).0,
            202
        );
        assert_eq!(attempt.outcome(step).state, StepPhase::Done);
        // Asked again by a driver that keeps otherwise: the same step.
        assert_eq!(attempt.order(step, &paths::batch(step), &checksum(&run, step)).0, 202);
    }
    let kept = run.store.checkpoints().unwrap();
    assert_eq!(kept.iter().map(|one| one.step).collect::<Vec<_>>(), [3]);
    assert_eq!(attempt.state().checkpoint_step, 3);
}

#[test]
fn a_rank_of_an_earlier_attempt_that_is_still_alive_publishes_nothing() {
    let run = Run::new(1);
    let stale = Attempt::start(&run, 1, 2);
    stale.step(&run, 1);
    // Cut off from the cluster, and alive.
    let newer = Attempt::start(&run, 2, 1);
    assert_eq!(newer.state().step, 1);
    let before = run.store.versions().unwrap();
    let checkpoints = run.store.checkpoints().unwrap();

    assert_eq!(stale.order(2, &paths::batch(2), &checksum(&run, 2)).0, 202);
    let mut stale = stale;
    for rank in &mut stale.ranks {
        assert!(!rank.wait().unwrap().success());
    }
    assert_eq!(run.store.versions().unwrap(), before);
    assert_eq!(run.store.checkpoints().unwrap(), checkpoints);
    assert!(!run.store.at(&paths::trainer_metrics(2)).exists());
    newer.step(&run, 2);
    // Nor does it come back under its old number.
    let mut again = Attempt::begin(&run, 1, 1, 0..1);
    assert_eq!(again.ranks[0].wait().unwrap().code(), Some(1));
    newer.step(&run, 3);
}

/// Returns when it holds.
fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
