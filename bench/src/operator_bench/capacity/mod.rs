//! Figure 4: runs that each fit alone but not together, in many random clusters. A run has all of its pods on nodes, or
//! none.
//!
//! Several scenarios run concurrently on one control plane, each on nodes that only its runs may use. In each, all runs
//! are applied at once. A placed run is ended, so that the next one can be placed, until every run has been placed. The
//! outcome is judged from outside, by the bound pods:
//!
//! * half-placed: some but not all pods of a run are bound for longer than the operator takes to requeue the run;
//! * deadlock: a run is not placed, although a search of every placement finds capacity for it.

mod scenario;

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use grpo_crds::GrpoRun;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

pub use scenario::{Run, Scenario};

use super::{
    RigError,
    fleet::{self, small},
    rig::Rig,
};
use grpo_bench_report::Row;
use grpo_testing::cluster::api;

/// The number of scenarios.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub scenarios: u64,
    pub at_a_time: u64,
}

impl Scale {
    pub const FULL: Self = Self {
        scenarios: 1000,
        at_a_time: 16,
    };
    pub const SHORT: Self = Self {
        scenarios: 20,
        at_a_time: 10,
    };
}

/// The operator waits 30 s for the binding of admitted pods. A run that is half-placed for longer was not requeued.
const HALF_PLACED_FOR: Duration = Duration::from_secs(45);
/// A run that is not placed after this long, although it has capacity, never will be.
const STUCK_AFTER: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(250);
const BENCH: &str = "bench.grpo.dev/scenario";
const SPECIAL: &str = "bench.grpo.dev/special";
const ZONE: &str = "bench.grpo.dev/zone";

/// The observations of one scenario.
#[derive(Clone, Debug, Default)]
struct ScenarioOutcome {
    deadlocks: usize,
    half_placed: usize,
    placed: usize,
    longest_half: Duration,
    longest_wait: Duration,
}

impl ScenarioOutcome {
    fn and(mut self, other: Self) -> Self {
        self.deadlocks += other.deadlocks;
        self.half_placed += other.half_placed;
        self.placed += other.placed;
        self.longest_half = self.longest_half.max(other.longest_half);
        self.longest_wait = self.longest_wait.max(other.longest_wait);
        self
    }
}

/// Runs all scenarios.
pub async fn measure(scale: Scale) -> Result<Vec<Row>, RigError> {
    let rig = Rig::start().await?;
    rig.node("office", 0, &json!({}), &json!([])).await?;
    let mut operator = rig.operator(0)?;
    let next = AtomicU64::new(0);
    let players = (0..scale.at_a_time).map(|player| play(&rig, player, &next, scale.scenarios));
    let played = futures::future::try_join_all(players).await?;
    let seen = played
        .into_iter()
        .fold(ScenarioOutcome::default(), ScenarioOutcome::and);
    operator.part.runs()?;
    let figure = |what: &str| format!("4: {what} in {} scenarios", scale.scenarios);
    let count = |number: usize| Some(number as f64);
    Ok(vec![
        Row::new(figure("deadlocks"), count(seen.deadlocks), "runs", Some("= 0")),
        Row::new(figure("half-placed runs"), count(seen.half_placed), "runs", Some("= 0")),
        Row::new(figure("runs placed whole"), count(seen.placed), "runs", Some("> 0")),
        Row::new(
            figure("longest time between a run's first and last pod bound"),
            Some(seen.longest_half.as_secs_f64()),
            "s",
            None,
        ),
        Row::new(
            figure("longest wait of a run that had room"),
            Some(seen.longest_wait.as_secs_f64()),
            "s",
            None,
        ),
    ])
}

/// Runs one scenario after another until none is left.
async fn play(rig: &Rig, player: u64, next: &AtomicU64, scenarios: u64) -> Result<ScenarioOutcome, RigError> {
    let namespace = format!("player-{player}");
    rig.namespace(&namespace).await?;
    fleet::volume(&rig.admin, &namespace).await?;
    let mut seen = ScenarioOutcome::default();
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= scenarios {
            return Ok(seen);
        }
        let game = Game {
            rig,
            namespace: &namespace,
            number,
            scenario: Scenario::of(number),
        };
        seen = seen.and(game.play().await?);
        if number % 50 == 49 {
            eprintln!("    {} scenarios", number + 1);
        }
    }
}

/// A running scenario.
struct Game<'a> {
    rig: &'a Rig,
    namespace: &'a str,
    number: u64,
    scenario: Scenario,
}

/// A run in a running scenario.
struct Player {
    run: Run,
    name: String,
    half_since: Option<Instant>,
    room_since: Option<Instant>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Waits,
    Ended,
}

impl Game<'_> {
    async fn play(&self) -> Result<ScenarioOutcome, RigError> {
        self.set_up().await?;
        let mut players: Vec<Player> = (0..)
            .zip(&self.scenario.runs)
            .map(|(n, run): (usize, &Run)| Player {
                run: run.clone(),
                name: format!("s{}-{n}", self.number),
                half_since: None,
                room_since: None,
                state: State::Waits,
            })
            .collect();
        for player in &players {
            self.manifest(player).apply(&self.rig.admin, self.namespace).await?;
        }
        let mut seen = ScenarioOutcome::default();
        while players.iter().any(|player| player.state == State::Waits) {
            tokio::time::sleep(LOOK).await;
            let pods = self.pods().await?;
            self.look(&mut players, &pods, &mut seen).await?;
        }
        self.clear(&players).await?;
        Ok(seen)
    }

    /// Notes the changes since the last look.
    async fn look(&self, players: &mut [Player], pods: &[Pod], seen: &mut ScenarioOutcome) -> Result<(), RigError> {
        let free = self.free(pods);
        for player in players.iter_mut().filter(|player| player.state == State::Waits) {
            let bound = pods
                .iter()
                .filter(|pod| belongs(pod, &player.name) && node_of(pod).is_some())
                .count();
            let (all, waited) = (player.run.pods(), |since: Option<Instant>| {
                since.map_or(Duration::ZERO, |since| since.elapsed())
            });
            if bound > 0 {
                player.half_since.get_or_insert_with(Instant::now);
                seen.longest_half = seen.longest_half.max(waited(player.half_since));
            } else {
                player.half_since = None;
            }
            if bound >= all {
                // KWOK would report a pod as running after its end if it has not seen it running before.
                if runs(pods, &driver_of(player)) {
                    seen.placed += 1;
                    self.end(player).await?;
                }
                continue;
            }
            if waited(player.half_since) > HALF_PLACED_FOR {
                self.show("is half-placed", player, pods);
                seen.half_placed += 1;
                self.end(player).await?;
                continue;
            }
            if bound == 0 && self.scenario.fits(&free, &[&player.run]) {
                player.room_since.get_or_insert_with(Instant::now);
                seen.longest_wait = seen.longest_wait.max(waited(player.room_since));
            } else {
                player.room_since = None;
            }
            if waited(player.room_since) > STUCK_AFTER {
                self.show("has capacity and is not placed", player, pods);
                seen.deadlocks += 1;
                self.end(player).await?;
            }
        }
        Ok(())
    }

    fn show(&self, what: &str, player: &Player, pods: &[Pod]) {
        let there: Vec<String> = pods
            .iter()
            .map(|pod| {
                format!(
                    "{} on {:?}",
                    pod.metadata.name.as_deref().unwrap_or_default(),
                    node_of(pod)
                )
            })
            .collect();
        eprintln!(
            "    scenario {}: {} {what}: {:?}; {there:?}",
            self.number, player.name, self.scenario
        );
    }

    /// Unused GPUs of each node.
    fn free(&self, pods: &[Pod]) -> Vec<u32> {
        let nodes = self.scenario.nodes.iter().enumerate();
        nodes
            .map(|(n, node)| {
                let name = self.node_name(n);
                let used: u32 = pods.iter().filter(|pod| node_of(pod) == Some(&name)).map(gpus).sum();
                node.gpus.saturating_sub(used)
            })
            .collect()
    }

    /// Half of the runs end by themselves, the others are deleted.
    async fn end(&self, player: &mut Player) -> Result<(), RigError> {
        player.state = State::Ended;
        if (self.number + player.name.len() as u64).is_multiple_of(2) {
            let pods: Api<Pod> = Api::namespaced(self.rig.admin.clone(), self.namespace);
            let done = json!({"status": {"phase": "Succeeded", "conditions": [{"type": "Ready", "status": "False"}]}});
            let driver = driver_of(player);
            if pods
                .patch_status(&driver, &PatchParams::default(), &Patch::Strategic(&done))
                .await
                .is_ok()
            {
                return Ok(());
            }
        }
        self.delete(&player.name).await
    }

    async fn delete(&self, run: &str) -> Result<(), RigError> {
        let runs: Api<GrpoRun> = Api::namespaced(self.rig.admin.clone(), self.namespace);
        match runs.delete(run, &DeleteParams::background()).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            Err(error) => Err(api("deleting GrpoRun", run)(error).into()),
        }
    }

    async fn pods(&self) -> Result<Vec<Pod>, RigError> {
        let pods: Api<Pod> = Api::namespaced(self.rig.admin.clone(), self.namespace);
        let listed = pods
            .list(&ListParams::default().match_any())
            .await
            .map_err(api("listing", "pods"))?;
        Ok(listed.items)
    }

    fn node_name(&self, number: usize) -> String {
        format!("s{}-node-{number}", self.number)
    }

    async fn set_up(&self) -> Result<(), RigError> {
        for (n, node) in self.scenario.nodes.iter().enumerate() {
            let labels = json!({BENCH: self.number.to_string(), ZONE: node.zone.to_string()});
            let mut taints = vec![json!({"key": BENCH, "effect": "NoSchedule"})];
            if node.special {
                taints.push(json!({"key": SPECIAL, "effect": "NoSchedule"}));
            }
            self.rig
                .node(&self.node_name(n), node.gpus, &labels, &json!(taints))
                .await?;
        }
        Ok(())
    }

    /// Deletes the runs, waits until their pods are gone, and deletes the nodes.
    async fn clear(&self, players: &[Player]) -> Result<(), RigError> {
        for player in players {
            self.delete(&player.name).await?;
        }
        while !self.pods().await?.is_empty() {
            tokio::time::sleep(LOOK).await;
        }
        let nodes: Api<Node> = Api::all(self.rig.admin.clone());
        for n in 0..self.scenario.nodes.len() {
            let name = self.node_name(n);
            nodes
                .delete(&name, &DeleteParams::default())
                .await
                .map_err(api("deleting node", &name))?;
        }
        Ok(())
    }

    fn manifest(&self, player: &Player) -> grpo_testing::cluster::manifest::RunManifest {
        let run = &player.run;
        let mut selector = json!({BENCH: self.number.to_string()});
        if let Some(zone) = run.zone {
            selector[ZONE] = json!(zone.to_string());
        }
        let mut tolerations = vec![json!({"key": BENCH, "operator": "Exists"})];
        if run.tolerates {
            tolerations.push(json!({"key": SPECIAL, "operator": "Exists"}));
        }
        let template: Value = json!({"spec": {"nodeSelector": selector, "tolerations": tolerations}});
        let engines = json!({
            "replicas": run.engines.count,
            "engine": {"vllm": {"tensorParallel": run.engines.gpus}},
            "podTemplate": template,
        });
        let trainer = json!({"nodes": run.trainer.count, "gpusPerNode": run.trainer.gpus, "podTemplate": template});
        small(&player.name)
            .with("/trainer", trainer)
            .with("/inference/pool", engines)
    }
}

/// Whether a pod is admitted together with a run.
fn belongs(pod: &Pod, run: &str) -> bool {
    let labels = pod.metadata.labels.as_ref();
    let label = |key: &str| labels.and_then(|labels| labels.get(key)).map(String::as_str);
    let admitted = matches!(label("grpo.dev/role"), Some("driver" | "trainer" | "engine"));
    admitted && pod.metadata.deletion_timestamp.is_none() && label("grpo.dev/run") == Some(run)
}

fn driver_of(player: &Player) -> String {
    format!("{}-driver-1-0", player.name)
}

fn runs(pods: &[Pod], name: &str) -> bool {
    pods.iter().any(|pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        pod.metadata.name.as_deref() == Some(name) && phase == Some("Running")
    })
}

fn node_of(pod: &Pod) -> Option<&String> {
    pod.spec.as_ref()?.node_name.as_ref()
}

fn gpus(pod: &Pod) -> u32 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers
        .filter_map(|container| {
            container
                .resources
                .as_ref()?
                .requests
                .as_ref()?
                .get("nvidia.com/gpu")?
                .0
                .parse::<u32>()
                .ok()
        })
        .sum()
}
