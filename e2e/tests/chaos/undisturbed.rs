//! The steps of a disturbed run, computed again by a trainer that nothing disturbs: each step has the same bits.
//!
//! A new store gets the run's recorded batches and the rows that they name, but no weights, checkpoints or metrics.
//! There the trainer's program, with the run's spec and as many ranks, takes every step from the first one, as a driver
//! orders them. It knows no checksum and no learning rate of the first run; a replay at the trainer's start would know
//! both. The checksum of each step's weights is compared with the run's metrics of the step, and with the manifests of
//! the versions that are still in the store.
//!
//! The deterministic mode is `trainer.deterministic`: without it GPUs may compute other bits. CPUs ignore it. They
//! compute the same bits if the numbers of ranks and threads are the same: sums then have the same order.
//! [`with_same_bits`] sets the mode and the number of threads.

use crate::support::{Result, Scene, rows};
use grpo_auth::{LocalIssuer, ServiceAccount};
use grpo_contracts::RunConfig;
use grpo_contracts::access::{Service, account};
use grpo_crds::GrpoRun;
use grpo_records::folder::RunFolder;
use grpo_records::store::sha256_hex;
use grpo_records::trainer::{CheckpointOrder, StepMetrics, StepPhase, StepRequest, StepState};
use grpo_records::{WeightsManifest, paths};
use grpo_testing::cluster::manifest::RunManifest;
use grpo_testing::control_plane::free_port;
use grpo_testing::program;
use grpo_verify::{self as verify, Check};
use kube::ResourceExt;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::mpsc;

const CHECK: &str = "steps have the bits of an undisturbed trainer";
/// The variable with a rank's number of threads. Pods and this machine may have different numbers of cores.
const THREADS: (&str, &str) = ("GRPO_THREADS", "1");
/// Logged by each rank.
const READY: &str = "ready for orders";
/// Deadline of the trainer's start, and of one step: they take seconds.
const PATIENCE: Duration = Duration::from_secs(120);
/// Lines of the ranks' logs in a message.
const SHOWN: usize = 20;

/// The run with a trainer that computes the same bits every time.
pub fn with_same_bits(run: RunManifest) -> RunManifest {
    let (name, value) = THREADS;
    let mut environment = run.0["spec"]["trainer"]["env"].as_array().cloned().unwrap_or_default();
    environment.push(json!({"name": name, "value": value}));
    run.with("/trainer/env", json!(environment))
        .with("/trainer/deterministic", json!(true))
}

/// Computes all steps of a finished run again; an error that names the first step that differs.
pub async fn same_bits(scene: &Scene, run: &GrpoRun, folder: &RunFolder) -> Result<Check> {
    let began = Instant::now();
    let steps = folder.state.finished_iterations();
    let root = scene.copy_of(&format!("{}-undisturbed", run.name_any()));
    if root.exists() {
        std::fs::remove_dir_all(&root)?;
    }
    let store = root.join("store");
    std::fs::create_dir_all(&store)?;
    let batches = copy_batches(folder, steps, &store)?;
    let trainer = Trainer::start(run, &root).await?;
    let mut again = BTreeMap::new();
    for (step, sha256) in (1..).zip(batches) {
        again.insert(step, trainer.step(step, sha256, steps).await?);
    }
    scene.say(&format!(
        "{steps} steps were computed again in {:.0} s",
        began.elapsed().as_secs_f64()
    ));
    let check = compared(&recorded(folder, steps)?, &again);
    print!("{}", verify::text(std::slice::from_ref(&check)));
    if verify::holds(std::slice::from_ref(&check)) {
        return Ok(check);
    }
    let first = check.disagreements.into_iter().next();
    Err(first.unwrap_or_else(|| "no step was compared".to_owned()).into())
}

/// Copies the batches and the files with their rows; returns the checksum of each batch, from step 1 on.
fn copy_batches(folder: &RunFolder, steps: u32, store: &Path) -> Result<Vec<String>> {
    let copied = |file: &str| -> std::io::Result<Vec<u8>> {
        let bytes = folder.bytes(file).map_err(std::io::Error::other)?;
        let to = store.join(file);
        if let Some(parent) = to.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(to, &bytes)?;
        Ok(bytes)
    };
    let mut checksums = Vec::new();
    for step in 1..=steps {
        checksums.push(sha256_hex(&copied(&paths::batch(step))?));
        folder.batch(step)?.fill(&copied)?;
    }
    Ok(checksums)
}

/// A checksum of weights in the disturbed run's records.
#[derive(Clone, Debug)]
struct Recorded {
    step: u32,
    file: String,
    tensors_sha256: String,
}

/// All checksums of these steps, in the order of the steps.
fn recorded(folder: &RunFolder, steps: u32) -> Result<Vec<Recorded>> {
    let mut found = Vec::new();
    for step in 1..=steps {
        let file = paths::trainer_metrics(step);
        let metrics = folder.json_if_there::<StepMetrics>(&file)?;
        let metrics = metrics.ok_or_else(|| format!("{file} is missing, and step {step} was done"))?;
        // The driver may have promoted weights of a later lineage. Metrics name those that were published first.
        let mut versions = BTreeSet::from([metrics.weights]);
        versions.extend(folder.state.steps.get(&step).map(|promoted| promoted.weights.clone()));
        found.push(Recorded {
            step,
            file,
            tensors_sha256: metrics.tensors_sha256,
        });
        for version in versions {
            let file = paths::weights_manifest(&version);
            if let Some(manifest) = folder.json_if_there::<WeightsManifest>(&file)? {
                found.push(Recorded {
                    step,
                    file,
                    tensors_sha256: manifest.tensors_sha256,
                });
            }
        }
    }
    Ok(found)
}

/// Compares recorded checksums with those of the steps that were computed again.
fn compared(recorded: &[Recorded], again: &BTreeMap<u32, String>) -> Check {
    let mut check = Check::new(CHECK);
    for one in recorded {
        let found = again.get(&one.step);
        check.expect(found == Some(&one.tensors_sha256), || {
            format!(
                "step {}: {} has the checksum {:?} of its tensors, and an undisturbed trainer computes {:?} from the \
                 same batches",
                one.step,
                one.file,
                one.tensors_sha256,
                found.map_or("none", String::as_str)
            )
        });
    }
    check
}

/// All ranks of the undisturbed trainer, as processes of this machine. They end when this is dropped.
struct Trainer {
    ranks: Vec<Child>,
    http: reqwest::Client,
    /// Address of rank 0.
    address: String,
    token: String,
    logs: Arc<Mutex<Vec<String>>>,
}

impl Trainer {
    /// Starts the ranks in this folder, whose store has the batches, and waits until they take orders.
    async fn start(run: &GrpoRun, root: &Path) -> Result<Self> {
        let program = program("grpo-trainer").ok_or("grpo-trainer is not built: make build")?;
        let mut config = RunConfig::of(run);
        config.store_path = root.join("store").display().to_string();
        config.spec.store.object_store = None;
        config.model_path = rows().with_file_name("model-files").display().to_string();
        config.model_download = None;
        let (file, keys) = (root.join(RunConfig::KEY), root.join("issuer.json"));
        std::fs::write(&file, serde_json::to_vec(&config)?)?;
        let issuer = LocalIssuer::new()?;
        std::fs::write(&keys, issuer.file())?;
        let driver = ServiceAccount::new(&config.namespace, account::driver(&config.name));
        let world = config.spec.trainer.as_ref().map_or(1, |trainer| trainer.nodes);
        let meeting = free_port()?.to_string();
        let mut trainer = Self {
            ranks: Vec::new(),
            http: reqwest::Client::builder().no_proxy().build()?,
            address: String::new(),
            token: issuer.token(&driver, Service::Trainer)?,
            logs: Arc::default(),
        };
        let (tell, mut told) = mpsc::unbounded_channel();
        for rank in 0..world {
            let address = format!("127.0.0.1:{}", free_port()?);
            // It ends with this process, however this process ends.
            let mut process = Command::new("setpriv")
                .args(["--pdeathsig", "KILL", "--"])
                .arg(&program)
                .args(["serve", "--listen", &address])
                .arg("--config")
                .arg(&file)
                .arg("--issuer-file")
                .arg(&keys)
                .arg("--termination-log")
                .arg(root.join(format!("last-words-{rank}")))
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", world.to_string())
                .env("LOCAL_RANK", "0")
                .env("LOCAL_WORLD_SIZE", "1")
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", &meeting)
                .env("GLOO_SOCKET_IFNAME", "lo")
                .env("GRPO_ATTEMPT", "1")
                .env(THREADS.0, THREADS.1)
                .env("RUST_LOG", "info")
                .stdin(Stdio::null())
                .stderr(Stdio::piped())
                .kill_on_drop(true)
                .spawn()?;
            let output = process.stderr.take().ok_or("a rank has no output")?;
            tokio::spawn(read(rank, output, trainer.logs.clone(), tell.clone()));
            trainer.ranks.push(process);
            if rank == 0 {
                trainer.address = address;
            }
        }
        drop(tell);
        for _ in 0..world {
            let ready = tokio::time::timeout(PATIENCE, told.recv()).await;
            if !matches!(ready, Ok(Some(true))) {
                return Err(trainer.failed("the undisturbed trainer did not start").into());
            }
        }
        Ok(trainer)
    }

    /// Takes a step; returns the checksum of its weights.
    async fn step(&self, step: u32, batch_sha256: String, steps: u32) -> Result<String> {
        match tokio::time::timeout(PATIENCE, self.ordered(step, batch_sha256, steps)).await {
            Ok(Ok(checksum)) => Ok(checksum),
            Ok(Err(error)) => {
                let what = format!("the undisturbed trainer did not take step {step}: {error}");
                Err(self.failed(&what).into())
            }
            Err(_) => {
                let what = format!("the undisturbed trainer has not ended step {step} after {PATIENCE:?}");
                Err(self.failed(&what).into())
            }
        }
    }

    async fn ordered(&self, step: u32, batch_sha256: String, steps: u32) -> Result<String> {
        let url = format!("http://{}/v1/steps/{step}", self.address);
        let order = StepRequest {
            batch: paths::batch(step),
            sha256: batch_sha256,
            checkpoint: Some(CheckpointOrder { write: false, keep: 1 }),
            // The learning rate of chaos runs is constant. With a schedule it would depend on this number.
            iterations: Some(steps),
        };
        let order = self.http.put(&url).bearer_auth(&self.token).json(&order);
        let answer = order.send().await?;
        let status = answer.status();
        if status != reqwest::StatusCode::ACCEPTED {
            let said = answer.text().await?;
            return Err(format!("{status}: {said}").into());
        }
        loop {
            let outcome = self.http.get(format!("{url}?waitSeconds=50")).bearer_auth(&self.token);
            let outcome: StepState = outcome.send().await?.error_for_status()?.json().await?;
            match outcome.state {
                StepPhase::Queued | StepPhase::Running => {}
                StepPhase::Failed => return Err(outcome.error.unwrap_or_default().into()),
                StepPhase::Done => {
                    let metrics = outcome.metrics.ok_or("the step has no metrics")?;
                    return Ok(metrics.tensors_sha256);
                }
            }
        }
    }

    /// What failed, and the newest lines of the ranks' logs.
    fn failed(&self, what: &str) -> String {
        let logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = &logs[logs.len().saturating_sub(SHOWN)..];
        format!("{what}\n{}", newest.join("\n"))
    }
}

/// Reads a rank's log to its end, so that the rank never waits for space in the pipe. Tells whether the rank became
/// ready, or ended.
async fn read(rank: u32, output: ChildStderr, logs: Arc<Mutex<Vec<String>>>, tell: mpsc::UnboundedSender<bool>) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let is_ready = line.contains(READY);
        let mut logs = logs.lock().unwrap_or_else(PoisonError::into_inner);
        logs.push(format!("rank {rank}: {line}"));
        if is_ready {
            let _ = tell.send(true);
        }
    }
    let _ = tell.send(false);
}

#[test]
fn an_altered_checksum_is_reported_with_the_first_step_that_differs() {
    let again: BTreeMap<u32, String> = (1..=4).map(|step| (step, format!("bits of {step}"))).collect();
    let one = |step: u32, file: String| Recorded {
        step,
        file,
        tensors_sha256: format!("bits of {step}"),
    };
    let mut all: Vec<Recorded> = (1..=4).map(|step| one(step, paths::trainer_metrics(step))).collect();
    all.push(one(4, paths::weights_manifest("l1-v4")));
    let same = compared(&all, &again);
    assert!(verify::holds(std::slice::from_ref(&same)), "{same:?}");
    assert_eq!(same.looked_at, 5);

    for at in 0..all.len() {
        let mut altered = all.clone();
        altered[at].tensors_sha256 = "other bits".to_owned();
        let check = compared(&altered, &again);
        let [only] = &check.disagreements[..] else {
            panic!("{check:?}");
        };
        let (step, file) = (altered[at].step, &altered[at].file);
        assert!(only.starts_with(&format!("step {step}: {file} ")), "{only}");
        assert!(!verify::holds(std::slice::from_ref(&check)), "{check:?}");
    }

    let mut altered = all;
    altered[1].tensors_sha256.clear();
    altered[2].tensors_sha256 = "other bits".to_owned();
    let check = compared(&altered, &again);
    assert_eq!(check.disagreements.len(), 2);
    assert!(check.disagreements[0].starts_with("step 2: "), "{check:?}");
}

#[test]
fn a_step_that_was_not_computed_again_and_a_run_without_steps_do_not_pass() {
    let only = Recorded {
        step: 1,
        file: paths::trainer_metrics(1),
        tensors_sha256: String::new(),
    };
    assert_eq!(compared(&[only], &BTreeMap::new()).disagreements.len(), 1);
    assert!(!verify::holds(&[compared(&[], &BTreeMap::new())]));
}

#[test]
fn the_number_of_threads_is_added_to_the_trainers_other_variables() {
    let other = json!({"name": "HF_ENDPOINT", "value": "http://hub"});
    let run = RunManifest(json!({"spec": {"trainer": {"nodes": 2, "env": [other]}}}));
    let threads = json!({"name": "GRPO_THREADS", "value": "1"});
    let wanted = json!({"nodes": 2, "env": [other, threads], "deterministic": true});
    assert_eq!(with_same_bits(run).0["spec"]["trainer"], wanted);
    let without = RunManifest(json!({"spec": {}}));
    assert_eq!(with_same_bits(without).0["spec"]["trainer"]["env"], json!([threads]));
}
