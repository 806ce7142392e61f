//! The driver's surroundings for tests: gateway, engine and trainer on real sockets, with real repositories and
//! commands.
//!
//! A sandbox is a copy of a repository in its own folder; `/testbed` and `/tmp/grpo` in commands and scripts mean that
//! folder. The engine answers with a function of (prompt text, seed); the trainer publishes a file per step.

pub mod experts;
mod fake_engine;
mod fake_gateway;
mod fake_sessions;
mod fake_trainer;
pub mod fenced;
mod model;
mod python;
mod relays;
mod settings;

pub use model::{model, model_with};

pub use fake_gateway::lost;
pub use fake_trainer::state_of;
pub use python::{Images, grader_site, grader_worker, pytest};
pub use relays::Passed;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post, put};
use grpo_contracts::driver_epoch::Fence;
use grpo_driver::config::Settings;
use grpo_driver::fault::DriverError;
use grpo_driver::iterate::Run;
use grpo_driver::live;
use grpo_driver::metrics::Metrics;
use grpo_driver::progress::Board;
use grpo_driver::recording::server;
use grpo_driver::recording::sessions::Sessions;
use grpo_driver::retry::Pauses;
use grpo_driver::start::{self, Process};
use grpo_engine_protocol as engine;
use grpo_hub::HubSettings;
use grpo_records::folder::RunFolder;
use grpo_records::store::sha256_hex;
use grpo_records::{
    CheckpointOrder, DeviceGrant, EpisodeMeta, Journal, RunState, RunStore, StepPhase, StepRequest, StepState,
    TrainerPhase, TrainerState, WeightsManifest, Writer, paths,
};
use grpo_sandbox_protocol as sandbox;
use grpo_verify::grader::GraderCommand;
use grpo_verify::rows::TaskRows;
use grpo_verify::{Check, Sources};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokenizers::Tokenizer;

pub const STOP: u32 = 2;
pub const PAUSES: Pauses = Pauses::doubling(Duration::from_millis(20), Duration::from_millis(200));
const GIT: &str = "export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a;";

/// An error that the gateway answers instead of obeying.
pub type InjectedFault = (StatusCode, sandbox::ErrorBody);
type ExecHook =
    Box<dyn Fn(&sandbox::Lease, sandbox::Priority, &sandbox::ExecRequest) -> Option<InjectedFault> + Send + Sync>;
type Policy = Box<dyn Fn(&str, u64) -> String + Send + Sync>;

#[derive(Default)]
pub struct GatewayState {
    pub leases: HashMap<String, (sandbox::Lease, sandbox::Priority, PathBuf)>,
    pub results: HashMap<(String, String), Arc<tokio::sync::OnceCell<sandbox::ExecResult>>>,
    /// How often each (lease, exec id) really ran.
    pub ran: BTreeMap<(String, String), u32>,
    pub evaluations: u32,
    pub released: Vec<String>,
    pub demands: u32,
    /// Calls left to answer with 503.
    pub away_for: u32,
    pub epoch: u64,
    pub most_at_once: usize,
    pub most_agents_at_once: usize,
    /// The first folder in which sandbox commands find programs.
    pub programs: Option<PathBuf>,
    /// Leases left to refuse because the image cannot be pulled.
    pub no_image_for: u32,
    /// Requests left to answer that the package index is unavailable.
    pub no_packages_for: u32,
    /// Results of commands that are not run, each once.
    pub failures: Vec<sandbox::ExecResult>,
    /// Requests for the state of the package index.
    pub packages_asked: u32,
    pub sessions: fake_sessions::Sessions,
}

pub struct Gateway {
    pub state: Mutex<GatewayState>,
    pub hook: Mutex<Option<ExecHook>>,
    pub relays: relays::Relays,
    dir: tempfile::TempDir,
}

pub struct Engine {
    pub instance: Mutex<String>,
    pub serving: Mutex<String>,
    pub orders: Mutex<Vec<engine::WeightsOrder>>,
    pub asked: Mutex<Vec<(Vec<u32>, u64, String)>>,
    /// Prompts and the ids sampled for them.
    pub sampled: Mutex<Vec<(Vec<u32>, Vec<u32>)>>,
    /// Requests for weights that it does not serve.
    pub refused: Mutex<u32>,
    /// Serves nothing yet.
    pub booting: Mutex<bool>,
    pub pulled: Mutex<Option<String>>,
    pub prefetched: Mutex<Vec<String>>,
    /// How often the driver asked for its status.
    pub looks: AtomicU32,
    pub silence: Mutex<Option<Silence>>,
    pub policy: Mutex<Policy>,
    tokenizer: Tokenizer,
    /// Its agent takes orders but never completes them.
    pub stuck: Mutex<bool>,
    /// It has left its devices.
    pub asleep: Mutex<bool>,
    /// Its agent takes no order to sleep.
    pub sleepless: Mutex<bool>,
    /// How often it fell asleep.
    pub sleeps: AtomicU32,
    /// Acts as an engine of the mixture in [`experts`] that reports them.
    pub reports_experts: Mutex<bool>,
    /// The first position of the requested experts, answer by answer.
    pub experts_asked: Mutex<Vec<Option<usize>>>,
    /// How many answers it samples at a time, and how long each takes.
    pub pace: Mutex<Option<Arc<Pace>>>,
    /// Holds its answers: each one takes a permit and keeps it.
    pub held: Mutex<Option<Arc<tokio::sync::Semaphore>>>,
    pub fence: Arc<Fence>,
}

/// An engine with a pace. It records the beginning and end of each answer.
pub struct Pace {
    pub slots: tokio::sync::Semaphore,
    pub answer: Duration,
    pub sampled: Mutex<Vec<(Instant, Instant)>>,
}

/// Why an engine does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    Hangs,
    SamplesLong,
    /// The engine ends at each request, and its agent restarts it.
    Crashes,
}

pub struct Trainer {
    pub store: RunStore,
    pub lineage: Mutex<String>,
    pub step: Mutex<u32>,
    pub steps_run: Mutex<Vec<u32>>,
    orders: tokio::sync::Mutex<()>,
    /// The checkpoint order of each step.
    pub kept: Mutex<Vec<Option<CheckpointOrder>>>,
    pub phase: Mutex<TrainerPhase>,
    pub away_for: Mutex<u32>,
    /// The path that must be in the store before a step is done.
    pub waits_for: Mutex<HashMap<u32, String>>,
    /// The engines with which it shares its devices.
    pub shares_with: Mutex<Vec<Arc<Engine>>>,
    /// When it was given the devices, or told to step, while an engine had them.
    pub together: Mutex<Vec<String>>,
    life: tokio::sync::Mutex<fake_trainer::Life>,
    pub fence: Arc<Fence>,
}

pub struct World {
    pub mount: tempfile::TempDir,
    pub gateway: Arc<Gateway>,
    pub engine: Arc<Engine>,
    pub trainer: Arc<Trainer>,
    pub gateway_url: String,
    pub engine_address: SocketAddr,
    pub trainer_url: String,
    pub tasks: PathBuf,
    pub rows: HashMap<String, Value>,
    /// Sessions of command-line agents, for every driver of this world.
    pub sessions: Sessions,
    pub driver_url: String,
    /// The hub that datasets are downloaded from.
    pub hub: HubSettings,
}

fn sh(dir: &std::path::Path, script: &str) -> String {
    let out = std::process::Command::new("sh")
        .arg("-euc")
        .arg(script)
        .current_dir(dir)
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{script}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8_lossy(&out.stdout).trim().to_owned()
}

/// A row whose fix turns `a - b` into `a + b` in a.py.
pub fn row(id: &str, base: &str) -> Value {
    json!({
        "instance_id": id, "repo": "r/r", "version": "1", "base_commit": base, "problem_statement": format!("Fix {id}."),
        "image": format!("img/{id}:1"), "log_parser": "parse_log_pytest", "eval_type": "pass_and_fail",
        "FAIL_TO_PASS": "[\"t.py::add\"]", "PASS_TO_PASS": ["t.py::other"], "env": {"F": "a.py"},
        "eval_script": "#!/bin/bash\nset -uxo pipefail\ncd /testbed\necho '>>>>> Start Test Output'\n\
            if grep -q 'a + b' a.py; then echo PASSED t.py::add; echo PASSED t.py::other; else echo FAILED t.py::add; echo PASSED t.py::other; false; fi\n\
            echo '>>>>> End Test Output'\n",
    })
}

/// Looks, then fixes the bug if the seed is even, then submits.
pub fn half_right(prompt: &str, seed: u64) -> String {
    let turn = prompt.matches("assistant\n").count();
    let command = match turn {
        1 => "cat $F".to_owned(),
        2 if seed.is_multiple_of(2) => "sed -i 's/a - b/a + b/' $F; echo 1 passed".to_owned(),
        2 => format!("echo '# {seed}' >> $F; echo 1 failed"),
        _ => "echo SUBMIT".to_owned(),
    };
    format!("Go.\n```bash\n{command}\n```")
}

impl World {
    pub async fn new(instances: usize) -> Self {
        let one = |base: &str| (0..instances).map(|at| row(&format!("task-{at}"), base)).collect();
        Self::of("printf 'def add(a, b):\\n    return a - b\\n' > a.py", one).await
    }

    /// `files`: a script that makes the repository's files. `rows`: makes the tasks' rows from its commit.
    pub async fn of(files: &str, rows: impl FnOnce(&str) -> Vec<Value>) -> Self {
        let mount = tempfile::tempdir().unwrap();
        let gateway_dir = tempfile::tempdir().unwrap();
        let script = format!("{GIT} git init -q testbed; cd testbed\n{files}\ngit add -A; git commit -qm base");
        sh(gateway_dir.path(), &script);
        let all = rows(&sh(&gateway_dir.path().join("testbed"), "git rev-parse HEAD"));
        let tasks = mount.path().join("train.jsonl");
        let lines: Vec<String> = all.iter().map(Value::to_string).collect();
        std::fs::write(&tasks, lines.join("\n")).unwrap();
        let rows = all
            .into_iter()
            .map(|row| (row["instance_id"].as_str().unwrap().to_owned(), row))
            .collect();

        let gateway = Arc::new(Gateway {
            state: Mutex::default(),
            hook: Mutex::new(None),
            relays: Default::default(),
            dir: gateway_dir,
        });
        let store = RunStore::open(mount.path(), "ns/run").unwrap();
        let trainer = Arc::new(Trainer {
            store,
            lineage: Mutex::new("a".into()),
            step: Mutex::new(0),
            steps_run: Mutex::default(),
            orders: tokio::sync::Mutex::default(),
            kept: Mutex::default(),
            phase: Mutex::new(TrainerPhase::Idle),
            away_for: Mutex::new(0),
            waits_for: Mutex::default(),
            shares_with: Mutex::default(),
            together: Mutex::default(),
            life: Default::default(),
            fence: Arc::default(),
        });
        trainer.publish(0).await;
        let router = fake_gateway::router(gateway.clone()).merge(relays::router(gateway.clone()));
        let gateway_address = serve(router).await;
        gateway.relays.address.set(gateway_address).unwrap();
        let sessions = Sessions::default();
        let driver_address = serve(server::router(sessions.clone())).await;
        let (engine, engine_address) = Engine::start("one").await;
        let trainer_address = serve(fake_trainer::router(trainer.clone())).await;
        Self {
            mount,
            gateway,
            engine,
            trainer,
            gateway_url: format!("http://{gateway_address}"),
            engine_address,
            trainer_url: format!("http://{trainer_address}"),
            tasks,
            rows,
            sessions,
            driver_url: format!("http://{driver_address}"),
            hub: HubSettings::default(),
        }
    }

    pub async fn start(&self, settings: Settings, attempt: u32) -> Result<Arc<Run>, DriverError> {
        self.start_with(settings, attempt, live::Source::Fixed).await
    }

    /// A driver that reads changes of the run from `changes`.
    pub async fn start_with(
        &self,
        settings: Settings,
        attempt: u32,
        changes: live::Source,
    ) -> Result<Arc<Run>, DriverError> {
        let process = Process {
            attempt,
            grader_worker: grader_worker(),
            grader_site: grader_site(),
            tokens: self.mount.path().join("tokens"),
            hub: self.hub.clone(),
            sessions: self.sessions.clone(),
            changes,
        };
        let store = start::store(&settings)?;
        let board = Board::new(&settings.uid, settings.iterations);
        start::run(settings, &process, store, board, Arc::new(Metrics::default())).await
    }

    pub async fn go(&self, settings: Settings, attempt: u32) -> Result<(), DriverError> {
        self.start(settings, attempt).await?.go().await
    }

    /// The run's folder in the mounted store.
    pub fn dir(&self) -> PathBuf {
        self.mount.path().join("ns/run")
    }

    pub fn store(&self) -> RunStore {
        RunStore::open(self.mount.path(), "ns/run").unwrap()
    }

    pub async fn state(&self) -> RunState {
        Journal::open(self.store(), Writer::driver(99)).await.unwrap().1
    }

    /// Every finished attempt in the store.
    pub async fn metas(&self) -> Vec<EpisodeMeta> {
        let store = self.store();
        let mut metas = Vec::new();
        for folder in [paths::ROLLOUTS, paths::EVALUATIONS] {
            for path in store.files_below(folder).await.unwrap() {
                if path.ends_with("/meta.json") {
                    metas.push(store.read(&path).await.unwrap());
                }
            }
        }
        metas
    }

    /// Recomputes everything from the store, with the official grader.
    pub async fn recomputed(&self) -> (RunFolder, Vec<Check>) {
        let store = self.store();
        let mut tasks = TaskRows::default();
        tasks
            .take(&self.tasks, &std::fs::read_to_string(&self.tasks).unwrap())
            .unwrap();
        let sources = Sources {
            tasks,
            grader: GraderCommand {
                worker: grader_worker(),
                site: grader_site(),
            },
        };
        let recomputed = tokio::task::spawn_blocking(move || {
            let folder = RunFolder::read(store).unwrap();
            let checks = grpo_verify::verify(&folder, &sources).unwrap();
            (folder, checks)
        });
        recomputed.await.unwrap()
    }

    /// Recomputes everything; nothing may differ.
    pub async fn verified(&self) -> RunFolder {
        let (folder, checks) = self.recomputed().await;
        assert!(grpo_verify::holds(&checks), "{}", grpo_verify::text(&checks));
        folder
    }

    /// Checks that no command of a sandbox ran twice.
    pub fn nothing_ran_twice(&self) {
        let state = self.gateway.state.lock().unwrap();
        for (what, times) in &state.ran {
            assert_eq!(*times, 1, "{what:?}");
        }
    }
}

/// The number of rows in the batch of each iteration.
pub fn rows_of_steps(folder: &RunFolder) -> Vec<usize> {
    let steps = folder.state.iterations.values().filter_map(|iteration| iteration.step);
    steps.map(|step| folder.batch(step).unwrap().rows.len()).collect()
}

impl Engine {
    pub async fn start(instance: &str) -> (Arc<Self>, SocketAddr) {
        let engine = Arc::new(Self {
            instance: Mutex::new(instance.into()),
            serving: Mutex::new("base".into()),
            orders: Mutex::default(),
            asked: Mutex::default(),
            sampled: Mutex::default(),
            refused: Mutex::default(),
            booting: Mutex::default(),
            pulled: Mutex::default(),
            prefetched: Mutex::default(),
            looks: AtomicU32::default(),
            held: Mutex::default(),
            silence: Mutex::default(),
            policy: Mutex::new(Box::new(half_right)),
            tokenizer: Tokenizer::from_file(model().join("tokenizer.json")).unwrap(),
            stuck: Mutex::new(false),
            asleep: Mutex::default(),
            sleepless: Mutex::default(),
            sleeps: AtomicU32::default(),
            reports_experts: Mutex::new(false),
            experts_asked: Mutex::default(),
            pace: Mutex::default(),
            fence: Arc::default(),
        });
        let address = serve(fake_engine::router(engine.clone())).await;
        (engine, address)
    }
}

pub async fn serve(router: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    address
}
