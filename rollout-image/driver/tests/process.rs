//! The driver as a process: killed in the middle, restarted, and its exit.

use crate::world::{self, World};
use grpo_auth::{LocalIssuer, ServiceAccount};
use grpo_contracts::RunConfig;
use grpo_contracts::access::Service;
use grpo_records::{EpisodeScope, paths};
use serde_json::json;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

pub fn config(world: &World, iterations: u32) -> PathBuf {
    config_of(world, iterations, &world::model())
}

fn config_of(world: &World, iterations: u32, model: &Path) -> PathBuf {
    let dataset = json!({"image": {"reference": "d:1", "path": "train.jsonl"}});
    let config = json!({
        "name": "run", "namespace": "ns", "uid": "uid-1", "storePath": "ns/run", "modelPath": model,
        "datasets": [{"path": world.mount.path(), "image": "d:1"}],
        "endpoints": {
            "gateway": world.gateway_url, "trainer": world.trainer_url, "driver": "http://driver:8070",
            "enginesHost": world.engine_address.ip().to_string(), "enginesPort": world.engine_address.port(),
        },
        "spec": {
            "seed": 7,
            "model": {"image": {"reference": "m:1"}},
            "tasks": {
                "train": {"dataset": dataset},
                "evaluate": [{"name": "fixed", "dataset": dataset, "atStart": true}],
            },
            "agent": {
                "bash": {"system": "s", "task": "{{ task.problem_statement }}", "observation": "{{ output }}", "submitSentinel": "SUBMIT"},
                "limits": {"turns": 6, "contextTokens": 1024},
            },
            "rollout": {"iterations": iterations, "prompts": 2, "samples": 4, "concurrency": 3, "sampling": {"maxTokensPerCall": 256}},
            "trainer": {"nodes": 1},
            "inference": {"poolRef": {"name": "p"}},
            "sandboxes": {"poolRef": {"name": "p"}},
            "store": {"persistentVolumeClaim": {"claimName": "c"}},
        },
    });
    let read: RunConfig = serde_json::from_value(config.clone()).unwrap();
    assert_eq!(read.spec.rollout.iterations, iterations);
    let path = world.mount.path().join("run.json");
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

pub struct Driver(Child);

impl Driver {
    fn start(world: &World, config: &PathBuf, attempt: u32) -> Self {
        Self::start_at(world, config, attempt, "127.0.0.1:0", &LocalIssuer::new().unwrap())
    }

    fn start_at(world: &World, config: &PathBuf, attempt: u32, listen: &str, issuer: &LocalIssuer) -> Self {
        Self::start_with(world, config, attempt, (listen, issuer), &[])
    }

    /// `at`: its address, and the issuer it trusts. The variables are added to its environment.
    pub fn start_with(
        world: &World,
        config: &PathBuf,
        attempt: u32,
        at: (&str, &LocalIssuer),
        variables: &[(&str, &str)],
    ) -> Self {
        let (listen, issuer) = at;
        let keys = world.mount.path().join("issuer.json");
        std::fs::write(&keys, issuer.file()).unwrap();
        let log = std::fs::File::create(world.mount.path().join(format!("driver-{attempt}.log"))).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_grpo-driver"))
            .arg("--config")
            .arg(config)
            .arg("--store-mount")
            .arg(world.mount.path())
            .args(["--listen", listen, "--no-status", "--attempt", &attempt.to_string()])
            .arg("--issuer-file")
            .arg(keys)
            .arg("--grader-worker")
            .arg(world::grader_worker())
            .arg("--grader-site")
            .arg(world::grader_site())
            .arg("--termination-log")
            .arg(world.mount.path().join("termination.json"))
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self(child)
    }

    pub async fn ended(&mut self) -> Option<i32> {
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The write time of each `meta.json`.
fn verdicts(world: &World) -> HashMap<PathBuf, SystemTime> {
    let mut found = HashMap::new();
    let mut folders = vec![world.mount.path().join("ns/run")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false if entry.file_name() == "meta.json" => {
                    found.insert(entry.path(), entry.metadata().unwrap().modified().unwrap());
                }
                false => {}
            }
        }
    }
    found
}

/// Starts a driver for each of these numbers and kills it when that many verdicts exist; then starts one that
/// completes.
async fn killed_and_started_again(world: &World, config: &PathBuf, verdicts_wanted: &[usize]) {
    let mut known: HashMap<PathBuf, SystemTime> = HashMap::new();
    let mut attempt = 0;
    for wanted in verdicts_wanted {
        attempt += 1;
        let mut driver = Driver::start(world, config, attempt);
        let ended = tokio::select! {
            ended = driver.ended() => Some(ended),
            () = async {
                while verdicts(world).len() < *wanted {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            } => None,
        };
        if let Some(code) = ended {
            let log = std::fs::read_to_string(world.mount.path().join(format!("driver-{attempt}.log"))).unwrap();
            panic!("attempt {attempt} ended with {code:?} before it was killed:\n{log}");
        }
        drop(driver);
        let now = verdicts(world);
        for (path, written) in &known {
            assert_eq!(now.get(path), Some(written), "{} was written again", path.display());
        }
        known = now;
    }
    let code = Driver::start(world, config, attempt + 1).ended().await;
    assert_eq!(code, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_killed_again_and_again_finishes_the_run_and_no_verdict_is_made_twice() {
    let world = World::new(3).await;
    let config = config(&world, 2);
    killed_and_started_again(&world, &config, &[1, 4, 6, 11, 14, 19]).await;

    let state = world.state().await;
    assert_eq!(state.verdicts.len(), 16 + 6);
    assert_eq!(*world.trainer.steps_run.lock().unwrap(), [1, 2]);
    let mut seen = HashMap::new();
    for meta in world.metas().await {
        assert!(meta.outcome.is_verdict(), "{:?}", meta.message);
        *seen.entry((meta.key.scope.clone(), meta.key.name())).or_insert(0) += 1;
    }
    assert!(seen.values().all(|verdicts| *verdicts == 1));
    let journal = world.store().files_below(paths::JOURNAL).await.unwrap();
    let mut entries = 0;
    for path in journal {
        let entry: grpo_records::JournalEntry = world.store().read(&path).await.unwrap();
        entries += usize::from(matches!(entry.event, grpo_records::Event::Verdict { .. }));
    }
    assert_eq!(entries, 22);
    world.nothing_ran_twice();
    assert_eq!(world::rows_of_steps(&world.verified().await), [8, 8]);
    // Iteration 1 and the evaluation under a-v0 use the same weights, no matter which driver process sampled them.
    for meta in world.metas().await {
        if meta.key.scope == (EpisodeScope::Iteration { iteration: 1 }) {
            assert_eq!(meta.weights, ["a-v0"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn experts_that_were_recorded_before_a_driver_was_killed_are_in_the_batch_after_it() {
    let world = World::new(2).await;
    *world.engine.reports_experts.lock().unwrap() = true;
    let config = config_of(&world, 1, &world::experts::model(&world));
    killed_and_started_again(&world, &config, &[1, 3, 5, 8]).await;
    world::experts::are_those_of_every_row(&world, 1).await;
    world.nothing_ran_twice();
    world.verified().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_declared_fault_ends_with_42_and_a_last_word_that_names_file_row_and_field() {
    let world = World::new(1).await;
    let mut broken = world.rows["task-0"].clone();
    broken["FAIL_TO_PASS"] = json!(7);
    std::fs::write(&world.tasks, broken.to_string()).unwrap();
    let code = Driver::start(&world, &config(&world, 1), 1).ended().await;
    assert_eq!(code, Some(42));
    let word: serde_json::Value =
        serde_json::from_slice(&std::fs::read(world.mount.path().join("termination.json")).unwrap()).unwrap();
    assert_eq!(word["reason"], "NoTasks");
    let message = word["message"].as_str().unwrap();
    assert!(
        message.contains("train.jsonl") && message.contains("task-0 (field FAIL_TO_PASS"),
        "{message}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_is_told_to_stop_stops_at_once() {
    let world = World::new(1).await;
    *world.trainer.away_for.lock().unwrap() = u32::MAX;
    let mut driver = Driver::start(&world, &config(&world, 1), 1);
    let journal = world.mount.path().join("ns/run/journal");
    while !journal.exists() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let pid = nix::unistd::Pid::from_raw(driver.0.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(120), driver.ended()).await;
    assert_eq!(ended.unwrap(), Some(143));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weights_and_progress_are_for_the_engines_of_the_run_only() {
    let world = World::new(1).await;
    *world.trainer.away_for.lock().unwrap() = u32::MAX;
    let port = grpo_free_port::free_port().unwrap();
    let (issuer, listen) = (LocalIssuer::new().unwrap(), format!("127.0.0.1:{port}"));
    let _driver = Driver::start_at(&world, &config(&world, 1), 1, &listen, &issuer);
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let ask = async |path: &str, token: &str| {
        let answer = http
            .get(format!("http://{listen}{path}"))
            .bearer_auth(token)
            .send()
            .await;
        answer.map_or(0, |answer| answer.status().as_u16())
    };
    while ask("/healthz", "").await != 200 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    std::fs::remove_file(world.mount.path().join("issuer.json")).unwrap();
    let engines = ServiceAccount::new("ns", "p-engines");
    let until = |account: &ServiceAccount, audience: &str, end| issuer.token_until(account, audience, end).unwrap();
    let audience = Service::Driver.audience();
    let (past, later) = (
        SystemTime::now() - Duration::from_secs(60),
        SystemTime::now() + Duration::from_secs(60),
    );
    let forged = LocalIssuer::new().unwrap().token(&engines, Service::Driver).unwrap();
    let file = "/weights/a-v0/manifest.json";
    for (token, wanted) in [
        (String::new(), 401),
        (forged, 401),
        (until(&engines, "engine-agent.grpo.dev", later), 401),
        (until(&engines, audience, past), 401),
        (until(&ServiceAccount::new("ns", "other-engines"), audience, later), 403),
        (until(&ServiceAccount::new("other", "p-engines"), audience, later), 403),
        (until(&engines, audience, later), 200),
    ] {
        for path in [file, "/v1/progress"] {
            assert_eq!(ask(path, &token).await, wanted, "{path} with {token}");
        }
    }
    assert_eq!(ask("/metrics", "").await, 200);
}
