//! The driver's process: an evaluation or a run of many episodes, with a store in memory.

use super::gateway::PlayedGateway;
use super::{DriverBenchError, engine::PlayedEngine, folder_in_memory, model::Model};
use grpo_auth::LocalIssuer;
use grpo_records::{EpisodeMeta, EpisodeRecord, IterationRecord, RunStore, paths};
use grpo_testing::cluster::cache;
use grpo_testing::control_plane::{Part, free_port};
use grpo_testing::{program, repository};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;

const PROGRAM: &str = "grpo-driver";
/// Episodes are tasks times samples. This is more than most benches need.
const TASKS: usize = 64;
pub(super) const SAMPLES: usize = 256;
const STORE: &str = "ns/run";
/// The driver's image, which says how the C library allocates.
const IMAGE: &str = include_str!("../../../rollout-image/Dockerfile");

/// The settings of the driver's run.
pub struct RunShape {
    /// `spec.agent`.
    pub agent: Value,
    /// Concurrent episodes.
    pub episodes: usize,
    /// Of each task.
    pub samples: usize,
    /// For a training run; without it, an evaluation.
    pub training: Option<Training>,
}

/// A training run of a frozen sampler.
pub struct Training {
    pub trainer: SocketAddr,
    pub iterations: usize,
    /// Tasks of an iteration.
    pub prompts: usize,
}

impl RunShape {
    /// The parts of `spec` that are of the mode.
    fn mode(&self, dataset: Value) -> Value {
        let sampling = json!({"maxTokensPerCall": 4096});
        match &self.training {
            None => json!({
                "mode": "Evaluate",
                "tasks": {"evaluate": [{"name": "bench", "dataset": dataset, "samples": self.samples}]},
                "rollout": {"concurrency": self.episodes, "sampling": sampling},
                "inference": {"poolRef": {"name": "played"}},
            }),
            Some(training) => json!({
                "mode": "Train",
                "tasks": {"train": {"dataset": dataset}},
                "rollout": {
                    "concurrency": self.episodes, "sampling": sampling, "iterations": training.iterations,
                    "prompts": training.prompts, "samples": self.samples,
                },
                "algorithm": {"allowFrozenSampler": true},
                "trainer": {"nodes": 1},
                "inference": {"pool": {"engine": {"external": {"url": "http://played:8000", "weights": "Frozen"}}}},
            }),
        }
    }
}

pub struct DriverProcess {
    part: Part,
    /// The URL of the recording endpoint.
    pub url: String,
    folder: tempfile::TempDir,
    program: PathBuf,
    arguments: Vec<String>,
    /// As the operator counts them: a driver of the same attempt as one before it would be taken for that one.
    attempt: u32,
}

impl DriverProcess {
    pub fn start(
        shape: &RunShape,
        engine: &PlayedEngine,
        gateway: &PlayedGateway,
        model: &Model,
    ) -> Result<Self, DriverBenchError> {
        let driver = program(PROGRAM).ok_or(DriverBenchError::NoProgram(PROGRAM))?;
        let folder = folder_in_memory()?;
        let at = |name: &str| folder.path().join(name);
        let rows: Vec<String> = (0..TASKS).map(|number| row(number).to_string()).collect();
        let issuer = LocalIssuer::new().map_err(|error| DriverBenchError::Wrong(error.to_string()))?;
        let url = format!("http://127.0.0.1:{}", free_port()?);
        let dataset = json!({"image": {"reference": "tasks:1", "path": "tasks.jsonl"}});
        let trainer = shape
            .training
            .as_ref()
            .map_or_else(|| "127.0.0.1:1".to_owned(), |training| training.trainer.to_string());
        let mut config = json!({
            "name": "bench", "namespace": "ns", "uid": "uid-1", "storePath": STORE, "modelPath": model.folder,
            "datasets": [{"path": folder.path(), "image": "tasks:1"}],
            "endpoints": {
                "gateway": format!("http://{}", gateway.address), "trainer": format!("http://{trainer}"), "driver": url,
                "enginesHost": engine.address.ip().to_string(), "enginesPort": engine.address.port(),
            },
            "spec": {
                "model": {"image": {"reference": "model:1"}},
                "agent": shape.agent,
                "sandboxes": {"poolRef": {"name": "played"}},
                "store": {"persistentVolumeClaim": {"claimName": "memory"}},
            },
        });
        if let (Value::Object(mode), Some(spec)) = (shape.mode(dataset), config["spec"].as_object_mut()) {
            spec.extend(mode);
        }
        for (name, text) in [
            ("tasks.jsonl", rows.join("\n")),
            ("issuer.json", issuer.file()),
            ("run.json", config.to_string()),
        ] {
            std::fs::write(at(name), text).map_err(DriverBenchError::io(format!("writing {name}")))?;
        }
        let site = std::env::var("GRPO_GRADER_SITE").map_or_else(|_| cache().join("grader-site"), Into::into);
        let arguments = [
            ("config", at("run.json").display().to_string()),
            ("store-mount", folder.path().display().to_string()),
            ("listen", url.trim_start_matches("http://").to_owned()),
            ("listen-records", "127.0.0.1:0".to_owned()),
            ("issuer-file", at("issuer.json").display().to_string()),
            ("tokens", at("no-tokens").display().to_string()),
            (
                "grader-worker",
                repository()
                    .join("rollout-image/grader/worker.py")
                    .display()
                    .to_string(),
            ),
            ("grader-site", site.display().to_string()),
            ("termination-log", at("termination.json").display().to_string()),
        ];
        let arguments = arguments.map(|(name, value)| format!("--{name}={value}"));
        let arguments: Vec<String> = arguments.into_iter().chain(["--no-status".to_owned()]).collect();
        let part = Part::start_with(PROGRAM, &driver, arguments.clone(), environment(), folder.path())?;
        Ok(Self {
            part,
            url,
            folder,
            program: driver,
            arguments,
            attempt: 1,
        })
    }

    /// An error if the process has ended.
    pub fn runs(&mut self) -> Result<(), DriverBenchError> {
        Ok(self.part.runs()?)
    }

    /// The id of the running process.
    pub fn pid(&self) -> Result<u32, DriverBenchError> {
        let pid = self.part.pid();
        pid.ok_or_else(|| DriverBenchError::Wrong("the driver has ended".into()))
    }

    /// Resident memory, in bytes.
    pub fn memory(&self) -> Result<f64, DriverBenchError> {
        self.memory_of("VmRSS:")
    }

    /// Most memory of this start of the process, in bytes.
    pub fn peak_memory(&self) -> Result<f64, DriverBenchError> {
        self.memory_of("VmHWM:")
    }

    fn memory_of(&self, line: &str) -> Result<f64, DriverBenchError> {
        let memory = self.part.memory(line).map(|mib| mib * 1024.0 * 1024.0);
        memory.ok_or_else(|| DriverBenchError::Wrong("the driver says nothing of its memory".into()))
    }

    /// Starts the next attempt after the process was killed.
    pub fn again(&mut self) -> Result<(), DriverBenchError> {
        self.attempt += 1;
        let attempt = format!("--attempt={}", self.attempt);
        let arguments = self.arguments.iter().cloned().chain([attempt]).collect();
        self.part = Part::start_with(PROGRAM, &self.program, arguments, environment(), self.folder.path())?;
        Ok(())
    }

    /// Processor time so far, in seconds.
    pub fn processor_seconds(&self) -> f64 {
        self.part.processor_seconds().unwrap_or(f64::NAN)
    }

    /// Whether the driver has read its tasks, begun its journal, and waits for the engine.
    pub fn has_begun(&self) -> bool {
        self.folder.path().join(STORE).join(paths::JOURNAL).exists()
    }

    /// The driver's own records of these iterations.
    pub async fn iterations(&self, numbers: Range<usize>) -> Result<Vec<IterationRecord>, DriverBenchError> {
        let store = RunStore::open(self.folder.path(), STORE)?;
        let mut records = Vec::new();
        for number in numbers {
            let record: IterationRecord = store.read(&paths::driver_metrics(number as u32)).await?;
            records.push(record);
        }
        Ok(records)
    }

    /// Kills the process without notice.
    pub async fn kill(&mut self) -> Result<(), DriverBenchError> {
        Ok(self.part.kill().await?)
    }

    pub async fn stop(&mut self) -> Result<(), DriverBenchError> {
        Ok(self.part.stop().await?)
    }

    /// Checks the store: every ended episode has `turns` turns, all in one row. Returns the number of these episodes.
    pub async fn recorded(&self, turns: u32) -> Result<usize, DriverBenchError> {
        let store = RunStore::open(self.folder.path(), STORE)?;
        let mut count = 0;
        for path in store.files_below(paths::EVALUATIONS).await? {
            let Some(episode) = path.strip_suffix("/meta.json") else {
                continue;
            };
            let meta: EpisodeMeta = store.read(&path).await?;
            let record: EpisodeRecord = store.read(&paths::trajectory(episode)).await?;
            let rows = record.rows.map_or(0, |rows| rows.rows);
            if (meta.turns, rows) != (turns, 1) {
                let message = format!("{episode} has {} turns in {rows} rows, not {turns} in 1", meta.turns);
                return Err(DriverBenchError::Wrong(message));
            }
            count += 1;
        }
        match count {
            0 => Err(DriverBenchError::Wrong("the driver recorded no episode".into())),
            count => Ok(count),
        }
    }
}

/// The C library's settings of the image.
fn environment() -> Vec<(String, String)> {
    let variables = IMAGE.lines().filter_map(|line| line.strip_prefix("ENV "));
    let malloc = variables.filter(|settings| settings.starts_with("MALLOC_"));
    malloc
        .flat_map(|settings| settings.split(' '))
        .filter_map(|setting| setting.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// A task with an empty patch, which is therefore not graded.
fn row(number: usize) -> Value {
    json!({
        "instance_id": format!("task-{number}"), "repo": "r/r", "version": "1",
        "base_commit": "1".repeat(40), "problem_statement": format!("Fix parse() in lib/read.py, case {number}."),
        "image": "image", "log_parser": "parse_log_pytest", "eval_type": "pass_and_fail",
        "FAIL_TO_PASS": ["t.py::a"], "PASS_TO_PASS": [], "eval_script": "#!/bin/bash\ntrue\n",
    })
}
