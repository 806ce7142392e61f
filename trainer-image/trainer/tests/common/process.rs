//! A run's trainer as its pods start it: processes, orders over HTTP, kills.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use grpo_auth::{LocalIssuer, ServiceAccount};
use grpo_contracts::RunConfig;
use grpo_contracts::access::Service;
use grpo_contracts::driver_epoch;
use grpo_contracts::exit::{HUNG_CODE, Hang, PEER_LOST_CODE};
use grpo_crds::GrpoRun;
use grpo_model::weights;
use grpo_records::trainer::{StepMetrics, StepPhase, StepState, TrainerState};
use grpo_records::weights::WeightsManifest;
use grpo_records::{RunStore, fixture, paths};
use grpo_trainer::state::{TrainerStore, sha256};

use super::bucket::Bucket;

pub const STEPS: u32 = 9;
/// Long enough for the other ranks to notice, if they can.
const OTHERS_GO_AFTER: Duration = Duration::from_millis(200);

/// A run's folder: model, config and store, with the batches of every step.
pub struct Run {
    _folder: tempfile::TempDir,
    pub root: PathBuf,
    /// The folder with the files of its store.
    stored: PathBuf,
    pub store: TrainerStore,
    /// Environment of its ranks, besides the common variables.
    environment: Vec<(String, String)>,
    /// Signs tokens that the trainer trusts.
    pub issuer: LocalIssuer,
}

/// The account of the run's driver.
pub fn driver() -> ServiceAccount {
    ServiceAccount::new("default", "run-driver")
}

/// `spec.trainer`: on the CPU, or on the tested GPU.
fn tested_trainer(collective: &str) -> serde_json::Value {
    let mut trainer = serde_json::json!({"deadlines": {"collective": collective}});
    if super::tested_gpu().is_some() {
        trainer["gpusPerNode"] = 1.into();
        trainer["deterministic"] = true.into();
    }
    trainer
}

impl Run {
    pub fn new(checkpoint_every: u32) -> Self {
        Self::with_deadline(checkpoint_every, "60s")
    }

    pub fn with_deadline(checkpoint_every: u32, collective: &str) -> Self {
        Self::with(
            checkpoint_every,
            serde_json::json!({"trainer": tested_trainer(collective)}),
        )
    }

    /// With a trainer that takes turns with engines on its devices.
    pub fn colocated(checkpoint_every: u32) -> Self {
        let mut trainer = tested_trainer("60s");
        trainer["colocate"] = true.into();
        Self::with(checkpoint_every, serde_json::json!({"trainer": trainer}))
    }

    /// `more`: fields that replace the spec's.
    pub fn with(checkpoint_every: u32, more: serde_json::Value) -> Self {
        Self::stored(checkpoint_every, more, None)
    }

    /// With its store in a folder of a bucket. Its ranks get the environment of a bucket's client.
    pub fn in_bucket(checkpoint_every: u32, bucket: &Bucket, folder: &str, mut more: serde_json::Value) -> Self {
        more["store"] = bucket.store();
        Self::stored(checkpoint_every, more, Some((bucket, folder)))
    }

    fn stored(checkpoint_every: u32, more: serde_json::Value, in_bucket: Option<(&Bucket, &str)>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_owned();
        let model = root.join("model");
        std::fs::create_dir(&model).unwrap();
        let config = serde_json::to_vec(&super::config_json()).unwrap();
        std::fs::write(model.join("config.json"), config).unwrap();
        let initial = super::alone().weights().unwrap();
        std::fs::write(
            model.join("model.safetensors"),
            weights::to_safetensors(&initial).unwrap(),
        )
        .unwrap();

        let mut run = serde_json::json!({
            "apiVersion": "grpo.dev/v1alpha1", "kind": "GrpoRun", "metadata": {"name": "run", "namespace": "default", "uid": "uid-1"},
            "spec": {
                "model": {"image": {"reference": "example.com/model:1"}},
                "tasks": {"train": {"dataset": {"image": {"reference": "example.com/tasks:1", "path": "train.jsonl"}}}},
                "agent": {"bash": {}},
                "algorithm": {"learningRate": 1e-3},
                "rollout": {"iterations": STEPS},
                "checkpoint": {"every": checkpoint_every, "keep": 2},
                "trainer": {"deadlines": {"collective": "60s"}},
                "inference": {"pool": {"engine": {"embedded": {}}}},
                "sandboxes": {"pool": {"max": 4}},
                "store": {"volumeClaimTemplate": {"resources": {"requests": {"storage": "1Gi"}}}}
            }
        });
        for (field, value) in more.as_object().unwrap() {
            run["spec"][field] = value.clone();
        }
        let run: GrpoRun = serde_json::from_value(run).unwrap();
        let mut config = RunConfig::of(&run);
        let (path, stored) = match in_bucket {
            Some((bucket, path)) => (path.to_owned(), bucket.folder_of(path)),
            None => (root.join("store").display().to_string(), root.join("store")),
        };
        config.store_path = path;
        config.model_path = model.display().to_string();
        std::fs::write(root.join("run.json"), serde_json::to_vec(&config).unwrap()).unwrap();

        let store = TrainerStore::new(RunStore::make(&stored).unwrap());
        for step in 1..=STEPS {
            fixture::write_batch(&stored, &mut super::batch(step));
        }
        let issuer = LocalIssuer::new().unwrap();
        std::fs::write(root.join("issuer.json"), issuer.file()).unwrap();
        Self {
            _folder: folder,
            root,
            stored,
            store,
            environment: in_bucket.map_or_else(Vec::new, |_| Bucket::environment()),
            issuer,
        }
    }

    /// Path of a file of the store.
    pub fn at(&self, path: &str) -> PathBuf {
        self.stored.join(path)
    }

    /// Gives a rank, the first of its pod, its own store: a copy of this one, which `change` then changes.
    pub fn gives_rank_its_own_store(&self, rank: u32, change: impl FnOnce(&Path)) {
        let own = self.root.join(format!("store-{rank}"));
        let copied = Command::new("cp")
            .arg("-a")
            .arg(self.at(""))
            .arg(&own)
            .status()
            .unwrap();
        assert!(copied.success());
        change(&own);
        let config = std::fs::read(self.root.join("run.json")).unwrap();
        let mut config: RunConfig = serde_json::from_slice(&config).unwrap();
        config.store_path = own.display().to_string();
        let to = self.root.join(format!("run-{rank}.json"));
        std::fs::write(to, serde_json::to_vec(&config).unwrap()).unwrap();
    }

    /// The config file of a rank.
    fn config(&self, rank: u32) -> PathBuf {
        let own = self.root.join(format!("run-{rank}.json"));
        if own.exists() { own } else { self.root.join("run.json") }
    }

    pub fn manifest(&self, version: &str) -> WeightsManifest {
        serde_json::from_slice(&self.store.read(&paths::weights_manifest(version)).unwrap()).unwrap()
    }

    pub fn metrics(&self, step: u32) -> StepMetrics {
        serde_json::from_slice(&self.store.read(&paths::trainer_metrics(step)).unwrap()).unwrap()
    }
}

/// The trainer's program; `GRPO_TRAINER` names it on a machine that did not build it.
pub fn trainer() -> PathBuf {
    let named = std::env::var_os("GRPO_TRAINER").map(PathBuf::from);
    named.unwrap_or_else(|| env!("CARGO_BIN_EXE_grpo-trainer").into())
}

/// Kills a rank at a set time, unless it is told to spare it.
pub struct Killer {
    spare: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Killer {
    /// Cancels the kill, if it has not happened yet.
    pub fn spare(self) {
        let _ = self.spare.send(());
        self.thread.join().unwrap();
    }

    /// Waits for the kill.
    pub fn wait(self) {
        self.thread.join().unwrap();
    }
}

/// The ranks of one attempt, killed when dropped.
pub struct Attempt {
    /// The first process of every pod: its rank, or the launcher of its ranks.
    pub ranks: Vec<Child>,
    /// Address of every pod.
    pub doors: Vec<String>,
    pub last_words: PathBuf,
    /// The driver's token.
    token: String,
    /// Ranks of one pod.
    each: u32,
    /// Lines of all ranks, after a wait for orders.
    pub said: Arc<Mutex<Vec<String>>>,
}

impl Attempt {
    /// Starts the ranks and waits until they take orders.
    pub fn start(run: &Run, number: u32, world: u32) -> Self {
        let mut attempt = Self::begin(run, number, world, 0..world);
        attempt.wait_for_orders();
        attempt
    }

    /// Starts some ranks of a world, each in its own pod.
    pub fn begin(run: &Run, number: u32, world: u32, present: std::ops::Range<u32>) -> Self {
        Self::begin_pods(run, number, world, present, 1)
    }

    /// Starts some of `pods` pods, with `each` ranks, as the operator does: one process in each.
    pub fn begin_pods(run: &Run, number: u32, pods: u32, present: std::ops::Range<u32>, each: u32) -> Self {
        let meeting = free_port();
        let doors: Vec<String> = present.clone().map(|_| format!("127.0.0.1:{}", free_port())).collect();
        let last_words = run.root.join(format!("last-words-{number}"));
        std::fs::create_dir_all(&last_words).unwrap();
        let ranks = present.zip(&doors).map(|(pod, door)| {
            Command::new(trainer())
                .args(["serve", "--listen", door, "--config"])
                .arg(run.config(pod * each))
                .arg("--issuer-file")
                .arg(run.root.join("issuer.json"))
                .arg("--termination-log")
                .arg(last_words.join(pod.to_string()))
                .env("RANK", (pod * each).to_string())
                .env("WORLD_SIZE", (pods * each).to_string())
                .env("LOCAL_RANK", "0")
                .env("LOCAL_WORLD_SIZE", each.to_string())
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", meeting.to_string())
                .env("GLOO_SOCKET_IFNAME", "lo")
                .env("GRPO_ATTEMPT", number.to_string())
                .env("GRPO_THREADS", "1")
                .env("GRPO_PEAK_FLOPS", "1e12")
                .env("RUST_LOG", "info")
                .envs(run.environment.iter().cloned())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        });
        let ranks = ranks.collect();
        Self {
            ranks,
            doors,
            last_words,
            token: run.issuer.token(&driver(), Service::Trainer).unwrap(),
            each,
            said: Arc::default(),
        }
    }

    pub fn wait_for_orders(&mut self) {
        if let Err(said) = self.takes_orders() {
            panic!("a rank ended:\n{said}");
        }
    }

    /// Waits until every rank is ready for orders; if a rank ends before, its output is the error. Reads all ranks at
    /// once: if one cannot begin, the others wait for it up to their timeout.
    pub fn takes_orders(&mut self) -> Result<(), String> {
        let (tell, told) = mpsc::channel();
        for (pod, rank) in self.ranks.iter_mut().enumerate() {
            let lines = BufReader::new(rank.stderr.take().unwrap()).lines();
            let (tell, said, mut own) = (tell.clone(), self.said.clone(), Vec::new());
            // Reads to the end, so that the rank never waits for space in the pipe.
            std::thread::spawn(move || {
                for line in lines.map(Result::unwrap) {
                    if line.contains("ready for orders") {
                        let _ = tell.send(Ok(()));
                    }
                    said.lock().unwrap().push(line.clone());
                    own.push(line);
                }
                let _ = tell.send(Err((pod, own.join("\n"))));
            });
        }
        drop(tell);
        for _ in 0..self.ranks.len() * self.each as usize {
            told.recv()
                .unwrap()
                .map_err(|(pod, said)| format!("pod {pod}:\n{said}"))?;
        }
        Ok(())
    }

    /// Kills a rank at that time, unless it is spared before, and then the others: an attempt ends with any of its
    /// pods.
    pub fn kill_at(&self, rank: usize, at: Instant) -> Killer {
        let pids: Vec<String> = self.ranks.iter().map(|rank| rank.id().to_string()).collect();
        let (spare, spared) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            // The ranks are not reaped before this thread has ended, so the system cannot have reused their process
            // ids.
            let kill = |pid: &String| drop(Command::new("kill").args(["-9", pid]).stderr(Stdio::null()).status());
            let wait = at.saturating_duration_since(Instant::now());
            if spared.recv_timeout(wait) == Err(mpsc::RecvTimeoutError::Timeout) {
                kill(&pids[rank]);
                let _ = spared.recv_timeout(OTHERS_GO_AFTER);
                pids.iter().for_each(kill);
            }
        });
        Killer { spare, thread }
    }

    pub fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        self.ask_rank(0, method, path, body)
    }

    pub fn ask_rank(&self, rank: usize, method: &str, path: &str, body: &str) -> (u16, String) {
        self.try_ask(rank, method, path, body).unwrap()
    }

    /// Returns `None` if the rank does not answer.
    pub fn try_ask(&self, rank: usize, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
        self.ask_with(&self.token, rank, method, path, body)
    }

    /// Like [`Attempt::try_ask`], with another token.
    pub fn ask_with(&self, token: &str, rank: usize, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
        let (head, body) = self.exchange(&format!("Bearer {token}"), rank, method, path, body)?;
        Some((status(&head)?, body))
    }

    /// Calls rank 0 as the driver of this epoch; returns the head of the answer too.
    pub fn ask_as(&self, driver: &str, method: &str, path: &str, body: &str) -> (u16, String, String) {
        let with_epoch = format!("Bearer {}\r\n{}: {driver}", self.token, driver_epoch::HEADER);
        let (head, body) = self.exchange(&with_epoch, 0, method, path, body).unwrap();
        (status(&head).unwrap(), head, body)
    }

    /// Returns the head and the body of the answer. `authorization`: that header, and perhaps more headers after it.
    fn exchange(
        &self,
        authorization: &str,
        rank: usize,
        method: &str,
        path: &str,
        body: &str,
    ) -> Option<(String, String)> {
        let mut stream = TcpStream::connect(&self.doors[rank]).ok()?;
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: trainer\r\nauthorization: {authorization}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.to_owned(), body.to_owned()))
    }

    pub fn state(&self) -> TrainerState {
        serde_json::from_str(&self.ask("GET", "/v1/state", "").1).unwrap()
    }

    /// Grants the devices to an attempt; returns the status and the state in the answer.
    pub fn grant(&self, attempt: u32) -> (u16, TrainerState) {
        let body = serde_json::json!({"attempt": attempt}).to_string();
        let (status, answer) = self.ask("PUT", "/v1/devices", &body);
        (status, serde_json::from_str(&answer).unwrap())
    }

    pub fn order(&self, step: u32, batch: &str, sha256: &str) -> (u16, String) {
        let body = serde_json::json!({"batch": batch, "sha256": sha256}).to_string();
        self.ask("PUT", &format!("/v1/steps/{step}"), &body)
    }

    pub fn outcome(&self, step: u32) -> StepState {
        serde_json::from_str(&self.ask("GET", &format!("/v1/steps/{step}?waitSeconds=50"), "").1).unwrap()
    }

    pub fn step(&self, run: &Run, step: u32) -> StepState {
        let (status, answer) = self.order(step, &paths::batch(step), &checksum(run, step));
        assert_eq!(status, 202, "{answer}");
        let outcome = self.outcome(step);
        assert_eq!(outcome.state, StepPhase::Done, "{outcome:?}");
        outcome
    }

    /// Kills one rank; returns whether every other rank then reported a lost peer.
    pub fn kill(&mut self, rank: usize) -> bool {
        self.ranks[rank].kill().unwrap();
        self.ranks.iter_mut().enumerate().all(|(at, child)| {
            let status = child.wait().unwrap();
            at == rank || status.code() == Some(PEER_LOST_CODE)
        })
    }

    pub fn signal(&self, rank: usize, signal: &str) {
        let pid = self.ranks[rank].id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Stops one rank to simulate a hang, and returns the verdicts with which the others ended.
    pub fn hang(&mut self, rank: usize) -> Vec<Hang> {
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

/// The status of an answer with this head.
fn status(head: &str) -> Option<u16> {
    head.get(9..12)?.parse().ok()
}

pub fn free_port() -> u16 {
    grpo_free_port::free_port().unwrap()
}

pub fn checksum(run: &Run, step: u32) -> String {
    sha256(&run.store.read(&paths::batch(step)).unwrap())
}

pub fn exists(folder: &Path, name: &str) -> bool {
    folder.join(name).exists()
}

/// Waits until `holds` returns true.
pub fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
