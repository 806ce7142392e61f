//! Replicas come and go while a run works: its pool is scaled up and down, pods disappear, engine processes are killed.
//! In the median an engine that starts gets its first row soon after it serves, and no episode is lost.
//!
//! `GRPO_ELASTIC_ENGINES` is the number of engines that start, `GRPO_ELASTIC_SEED` the seed of the changes.
//! Needs a cluster with images and chart: `make test-elastic`.

use crate::support::{Result, SOON, Scene, small_run, verified};
use grpo_demo::follow;
use grpo_testing::cluster::manifest::RunManifest;
use grpo_testing::cluster::wait;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const RUN: &str = "elastic";
const ENGINES: &str = "grpo.dev/role=engine";
const MOST: u32 = 4;
/// More iterations than the changes take; the end lowers it.
const WITHOUT_END: u32 = 10_000;
/// From a ready replica to its first row, in the median. The demo's requests are short, so its replicas have few at a
/// time, and no episode moves: a replica that comes late in an iteration waits for the next episodes.
const FIRST_ROW: Duration = Duration::from_secs(20);
/// For one change: pods are gone, others have started and have a row.
const CHANGE: Duration = Duration::from_secs(180);
const END: Duration = Duration::from_secs(10 * 60);
const LOOK: Duration = Duration::from_millis(250);

/// One process of an engine: the pod's uid and the container's restarts.
type Process = (String, i32);

/// How an engine began, in seconds since its container's start.
#[derive(Clone, Copy, Debug)]
struct Began {
    ready: f64,
    row: f64,
}

/// A replica as the API server shows it. Times have whole seconds.
#[derive(Clone, Debug)]
struct Replica {
    pod: String,
    process: Process,
    started: Option<Timestamp>,
    ready: Option<Timestamp>,
}

impl Replica {
    fn of(pod: &Pod) -> Option<Self> {
        let status = pod.status.as_ref()?;
        let engine = status
            .container_statuses
            .iter()
            .flatten()
            .find(|one| one.name == "engine");
        let ready = status
            .conditions
            .iter()
            .flatten()
            .find(|one| one.type_ == "Ready" && one.status == "True");
        let running = engine.and_then(|engine| engine.state.as_ref()?.running.as_ref());
        Some(Self {
            pod: pod.name_any(),
            process: (pod.uid()?, engine.map_or(0, |engine| engine.restart_count)),
            started: running.and_then(|running| running.started_at.as_ref()).map(|at| at.0),
            ready: ready
                .and_then(|ready| ready.last_transition_time.as_ref())
                .map(|at| at.0),
        })
    }
}

struct Watched<'a> {
    scene: &'a Scene,
    /// Rows that a pod had passed before its present engine began, where its engine was killed.
    before: BTreeMap<Process, u64>,
    /// Engines that were killed; the kubelet shows them for a moment longer.
    killed: BTreeSet<Process>,
    began: BTreeMap<Process, Began>,
}

impl Watched<'_> {
    /// Replicas that are not being deleted.
    async fn replicas(&self) -> Result<Vec<Replica>> {
        let pods = self
            .scene
            .pods()
            .list(&kube::api::ListParams::default().labels(ENGINES))
            .await?;
        let stays = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        Ok(stays.filter_map(Replica::of).collect())
    }

    /// Rows that the pod's agent has passed since its start; `None` while it does not answer.
    async fn rows(&self, pod: &str) -> Option<u64> {
        let path = format!(
            "/api/v1/namespaces/{}/pods/{pod}:8000/proxy/metrics",
            self.scene.namespace
        );
        let request = http::Request::get(path).body(Vec::new()).ok()?;
        let text = self.scene.client.request_text(request).await.ok()?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("grpo_agent_completions_passed_total "))?;
        line.trim().parse().ok()
    }

    /// Waits until this many replicas work: each is ready, and has had a row.
    async fn until_all_work(&mut self, wanted: u32) -> Result<()> {
        let since = tokio::time::Instant::now();
        let mut again = tokio::time::interval(LOOK);
        loop {
            again.tick().await;
            let there = self.replicas().await?;
            for replica in &there {
                self.look(replica).await;
            }
            let works = |one: &&Replica| self.began.contains_key(&one.process) && !self.killed.contains(&one.process);
            let working = there.iter().filter(works).count();
            if working == there.len() && working == wanted as usize {
                return Ok(());
            }
            if since.elapsed() > CHANGE {
                return Err(format!("{working} of {wanted} replicas work after {CHANGE:?}: {there:?}").into());
            }
        }
    }

    /// Notes when an engine has had its first row.
    async fn look(&mut self, replica: &Replica) {
        let (Some(started), Some(ready)) = (replica.started, replica.ready) else {
            return;
        };
        if self.began.contains_key(&replica.process) {
            return;
        }
        let before = self.before.get(&replica.process).copied().unwrap_or(0);
        if self.rows(&replica.pod).await.is_none_or(|rows| rows <= before) {
            return;
        }
        let seconds = |at: Timestamp| at.duration_since(started).as_secs_f64();
        let began = Began {
            // The kubelet may not have noticed that a killed engine was not ready.
            ready: seconds(ready).max(0.0),
            row: seconds(Timestamp::now()),
        };
        self.scene.say(&format!(
            "{}: ready {:.0} s after its container's start, its first row after {:.1} s",
            replica.pod, began.ready, began.row
        ));
        self.began.insert(replica.process.clone(), began);
    }

    /// Kills the engine's process of a working replica. Its pod stays, and so does the agent's count of rows.
    async fn kill(&mut self, replica: &Replica) -> Result<()> {
        let which = wait::named(&replica.pod);
        self.scene
            .kill("engine", self.scene.pods(), which, Some("engine"))
            .await?;
        let (uid, restarts) = replica.process.clone();
        // No row is passed before the next engine serves.
        let rows = self
            .rows(&replica.pod)
            .await
            .ok_or("the agent of a killed engine does not answer")?;
        self.before.insert((uid, restarts + 1), rows);
        self.killed.insert(replica.process.clone());
        Ok(())
    }
}

fn number(name: &str, otherwise: usize) -> usize {
    std::env::var(name).map_or(otherwise, |value| value.parse().unwrap())
}

fn manifest() -> Result<RunManifest> {
    // Rollouts continue beside the steps, so that a replica that comes finds work.
    Ok(small_run(RUN)?
        .with("/rollout/iterations", json!(WITHOUT_END))
        .with("/rollout/maxStaleness", json!(1))
        .with("/rollout/onSync", json!("Continue"))
        .with("/rollout/prompts", json!(10))
        .with("/sandboxes/pool/max", json!(44))
        .with("/checkpoint/every", json!(5))
        .with("/inference/pool/replicas", json!(1)))
}

#[tokio::test]
#[ignore = "takes replicas away for minutes: make test-elastic"]
async fn replicas_that_join_get_rows_soon_and_those_that_leave_lose_none() -> Result<()> {
    let engines = number("GRPO_ELASTIC_ENGINES", 50);
    let mut random = StdRng::seed_from_u64(number("GRPO_ELASTIC_SEED", 1) as u64);
    let scene = Scene::new("elastic").await?;
    scene.apply(&manifest()?).await?;
    let mut watched = Watched {
        scene: &scene,
        before: BTreeMap::new(),
        killed: BTreeSet::new(),
        began: BTreeMap::new(),
    };
    let (mut replicas, mut losses, mut done) = (1, 0, BTreeMap::<&str, u32>::new());
    watched.until_all_work(replicas).await?;
    while watched.began.len() < engines {
        let there = watched.replicas().await?;
        let Some(one) = there.choose(&mut random) else {
            return Err("the pool has no replica".into());
        };
        // Each kind once, then at random.
        let kinds = ["scaled", "lost", "killed", "scaled"];
        let change = match kinds.iter().find(|kind| !done.contains_key(*kind)) {
            Some(first) => *first,
            None => kinds.choose(&mut random).copied().unwrap_or("scaled"),
        };
        match change {
            "scaled" => {
                let others: Vec<u32> = (1..=MOST).filter(|n| *n != replicas).collect();
                let wanted = others[random.random_range(0..others.len())];
                losses += replicas.saturating_sub(wanted);
                replicas = wanted;
                scene
                    .apply(&manifest()?.with("/inference/pool/replicas", json!(replicas)))
                    .await?;
            }
            "lost" => {
                scene.say(&format!("pod {} is lost", one.pod));
                let now = DeleteParams::default().grace_period(0);
                scene.pods().delete(&one.pod, &now).await?;
            }
            _ => watched.kill(one).await?,
        }
        losses += u32::from(change != "scaled");
        *done.entry(change).or_default() += 1;
        watched.until_all_work(replicas).await?;
    }

    let iteration = |run: &grpo_crds::GrpoRun| run.status.as_ref()?.progress.as_ref()?.iteration;
    let reached = scene.until_run(RUN, SOON, "an iteration", iteration).await?;
    let last = manifest()?.with("/rollout/iterations", json!(reached + 2));
    scene
        .apply(&last.with("/inference/pool/replicas", json!(replicas)))
        .await?;
    let ended = follow::follow(&scene.runs(), RUN, END).await?;
    let folder = scene.store_of(&ended.run).await?;
    let checks = verified(&folder)?;
    let voids: u64 = folder.state.voids.values().map(|voids| u64::from(*voids)).sum();

    let pods: BTreeSet<&String> = watched.began.keys().map(|(uid, _)| uid).collect();
    let mut waits: Vec<f64> = watched.began.values().map(|began| began.row - began.ready).collect();
    waits.sort_by(f64::total_cmp);
    let (half, longest) = (waits[waits.len() / 2], waits[waits.len() - 1]);
    let boot = watched.began.values().map(|began| began.ready).fold(0.0, f64::max);
    scene.say(&format!(
        "{} engines started in {} pods, {losses} ended ({done:?}); from ready to the first row {half:.1} s in the median, at most \
         {longest:.1} s; from the container's start to ready at most {boot:.0} s; {voids} voids, {} kinds of checks of \
         the records, {} iterations",
        watched.began.len(),
        pods.len(),
        checks.len(),
        folder.state.finished_iterations()
    ));
    assert_eq!(voids, 0, "void episodes: {:?}", folder.state.voids);
    assert!(
        half <= FIRST_ROW.as_secs_f64(),
        "replicas wait {half:.1} s for their first row"
    );
    scene.clear().await
}
