//! A campaign: a seed determines which process is killed, and when; the run must still succeed, and each of its steps
//! must have the bits of an undisturbed trainer ([`undisturbed`]).
//!
//! `GRPO_CHAOS_KILLS` is the number of kills, `GRPO_CHAOS_SEED` their seed. With `GRPO_CHAOS_BUCKET=1` the run's store
//! is in a bucket, its rows and model come from a hub, and the bucket's server is killed too. With
//! `GRPO_CHAOS_EVERYTHING=1` another pool judges the turns, which are trained one by one, groups without signal are
//! replaced, and rollouts continue beside steps. With `GRPO_CHAOS_OUTAGE_SECONDS` the API server is down for this time
//! after a third of the kills, and after two thirds no image can be pulled for this time. With `GRPO_CHAOS_RECORD=1`
//! the campaign is recorded ([`campaigns`]), and skipped if it is recorded already.

use super::campaigns::{self, Campaign, Counts, Plan};
use super::{leased_sandbox, no_sandbox_outlives, repeated_tries, undisturbed};
use crate::overlap;
use crate::support::bucket::Bucket;
use crate::support::hub::Hub;
use crate::support::outage::{self, HiddenImages};
use crate::support::{Result, SOON, Scene, small_run, verdicts, verified};
use grpo_crds::GrpoRun;
use grpo_demo::follow;
use grpo_testing::cluster::wait;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::Api;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const RUN: &str = "random";
/// More iterations than a campaign reaches; the last kill lowers it.
const WITHOUT_END: u32 = 10_000;
/// After this long without news from the driver, the next process is killed anyway.
const SILENCE: Duration = Duration::from_secs(60);
/// Deadline for finding a process, and for its end.
const MOMENT: Duration = Duration::from_secs(30);
/// From the last kill to the end of the run.
const LAST_ITERATIONS: Duration = Duration::from_secs(15 * 60);
const SANDBOXES: u32 = 6;
/// How long a bucket's server stays down.
const STORE_AWAY: Duration = Duration::from_secs(5);
/// The kubelet waits for up to 5 min before it pulls an image again; the last iterations come after that.
const PULLED_AGAIN: Duration = Duration::from_secs(6 * 60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Process {
    Operator,
    Gateway,
    Sandbox,
    Driver,
    TrainerRank0,
    TrainerRank1,
    Engine,
    EngineAgent,
    /// Outside the cluster.
    StoreServer,
}

const PROCESSES: [Process; 8] = [
    Process::Operator,
    Process::Gateway,
    Process::Sandbox,
    Process::Driver,
    Process::TrainerRank0,
    Process::TrainerRank1,
    Process::Engine,
    Process::EngineAgent,
];

impl Process {
    async fn kill(self, scene: &Scene) -> Result<()> {
        let name = format!("{self:?}");
        let role = |role: &str| wait::labelled(&format!("grpo.dev/role={role}"));
        let (which, container) = match self {
            Self::Operator => {
                let system: Api<Pod> = Api::namespaced(scene.client.clone(), "grpo-system");
                let which = wait::labelled("app.kubernetes.io/name=grpo-operator");
                return scene.kill(&name, system, which, None).await.map(drop);
            }
            Self::Gateway => (role("gateway"), None),
            Self::Sandbox => (wait::named(&leased_sandbox(scene, RUN).await?), None),
            Self::Driver => (role("driver"), None),
            Self::TrainerRank0 => (wait::labelled("grpo.dev/role=trainer,grpo.dev/rank=0"), None),
            Self::TrainerRank1 => (wait::labelled("grpo.dev/role=trainer,grpo.dev/rank=1"), None),
            Self::Engine => (role("engine"), Some("engine")),
            Self::EngineAgent => (role("engine"), Some("agent")),
            Self::StoreServer => return Err("it has no pod".into()),
        };
        scene.kill(&name, scene.pods(), which, container).await.map(drop)
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |value| value.parse().unwrap())
}

#[tokio::test]
#[ignore = "takes a cluster apart: make test-chaos"]
async fn a_run_survives_random_kills_of_all_its_processes() -> Result<()> {
    let plan = Plan {
        seed: number("GRPO_CHAOS_SEED", 1),
        kills: number("GRPO_CHAOS_KILLS", 20),
        bucket: number("GRPO_CHAOS_BUCKET", 0) == 1,
        everything: number("GRPO_CHAOS_EVERYTHING", 0) == 1,
        outage_seconds: number("GRPO_CHAOS_OUTAGE_SECONDS", 0),
    };
    let is_recorded = number("GRPO_CHAOS_RECORD", 0) == 1;
    if is_recorded
        && number("GRPO_CHAOS_AGAIN", 0) == 0
        && let Some(done) = campaigns::done(&plan)?
    {
        println!(
            "seed {} with {} kills succeeded at commit {}: not run again",
            plan.seed, plan.kills, done.commit
        );
        return Ok(());
    }
    let (scene, began) = (Scene::new("chaos-random").await?, Instant::now());
    let came_to = campaign(&scene, &plan).await;
    let row = Campaign::ended(plan, &came_to, began.elapsed().as_secs())?;
    scene.say(&serde_json::to_string(&row)?);
    if is_recorded {
        campaigns::append(&row)?;
    }
    came_to?;
    scene.clear().await
}

async fn campaign(scene: &Scene, plan: &Plan) -> Result<Counts> {
    let kills = plan.kills;
    let manifest = match plan.everything {
        true => overlap::with_everything(scene, small_run(RUN)?).await?,
        false => small_run(RUN)?,
    };
    let manifest = manifest
        .with("/rollout/iterations", json!(WITHOUT_END))
        .with("/checkpoint/every", json!(3))
        .with("/sandboxes/pool/max", json!(SANDBOXES));
    // The hub serves while this lives.
    let (mut bucket, _hub, manifest) = match plan.bucket {
        true => {
            let (bucket, hub) = (Bucket::new(scene).await?, Hub::new(scene).await?);
            let manifest = hub.holds(bucket.holds(manifest));
            (Some(bucket), Some(hub), manifest)
        }
        false => (None, None, manifest),
    };
    // After the hub, which sets variables of the trainer too.
    let manifest = undisturbed::with_same_bits(manifest);
    let mut outages = Outages::begin(Duration::from_secs(plan.outage_seconds), kills)?;
    let mut processes = PROCESSES.to_vec();
    processes.extend(bucket.iter().map(|_| Process::StoreServer));
    scene.apply(&manifest).await?;
    let mut random = StdRng::seed_from_u64(plan.seed);
    let (mut killed, mut missed): (BTreeMap<Process, u32>, u32) = Default::default();
    let mut heard = None;
    while u64::from(killed.values().sum::<u32>()) < kills {
        outages.after(killed.values().sum(), scene).await?;
        for _ in 0..random.random_range(1..=3) {
            heard = next_word(scene, heard).await?;
        }
        let Some(process) = processes.choose(&mut random) else {
            break;
        };
        let kill = async {
            match &mut bucket {
                Some(bucket) if *process == Process::StoreServer => bucket.is_away(STORE_AWAY).await,
                _ => process.kill(scene).await,
            }
        };
        match tokio::time::timeout(MOMENT, kill).await {
            Ok(Ok(())) => *killed.entry(*process).or_default() += 1,
            // The process was just starting, or the leased sandbox was released.
            missing => {
                missed += 1;
                let why = missing.map_or_else(|_| "it is not there".to_owned(), |ended| format!("{:?}", ended.err()));
                scene.say(&format!("{process:?} was not killed: {why}"));
            }
        }
    }
    outages.end(scene).await?;
    let iteration = scene.until_run(RUN, SOON, "an iteration", iteration_of).await?;
    scene
        .apply(&manifest.with("/rollout/iterations", json!(iteration + 2)))
        .await?;
    let ended = follow::follow(&scene.runs(), RUN, LAST_ITERATIONS + PULLED_AGAIN).await?;

    let folder = match &bucket {
        Some(bucket) => bucket.store_of(&ended.run)?,
        None => scene.store_of(&ended.run).await?,
    };
    let mut checks = verified(&folder)?;
    let once = verdicts(&folder)?;
    let iterations = folder.state.finished_iterations();
    if iterations == 0 {
        return Err("the run succeeded without an iteration".into());
    }
    checks.push(undisturbed::same_bits(scene, &ended.run, &folder).await?);
    no_sandbox_outlives(scene, &ended.run).await?;

    let by_process = killed.iter().map(|(process, n)| (format!("{process:?}"), *n));
    Ok(Counts {
        killed: Some(by_process.collect()),
        missed: Some(missed),
        iterations,
        verdicts: once.len(),
        voids: folder.state.voids.values().sum(),
        repeated_tries: Some(repeated_tries(&folder)?),
        same_steps: Some(iterations),
        checks: checks.len(),
    })
}

/// Temporary outages of the cluster at fixed counts of kills, so that the seed's order of kills stays the same.
struct Outages {
    length: Duration,
    api_server_at: Option<u32>,
    images_at: Option<u32>,
    images: Option<(HiddenImages, Instant)>,
}

impl Outages {
    fn begin(length: Duration, kills: u64) -> Result<Self> {
        let third = (!length.is_zero()).then_some(u32::try_from(kills)? / 3);
        if third.is_some() {
            HiddenImages::show()?;
        }
        Ok(Self {
            length,
            api_server_at: third,
            images_at: third.map(|third| 2 * third),
            images: None,
        })
    }

    /// Processes are killed while images are hidden, but not while the API server is down, because it names them.
    async fn after(&mut self, kills: u32, scene: &Scene) -> Result<()> {
        if self.api_server_at.take_if(|at| kills >= *at).is_some() {
            scene.say(&format!("the API server is away for {:?}", self.length));
            outage::of_api_server(self.length).await?;
            scene.say("the API server is back");
        }
        if self.images_at.take_if(|at| kills >= *at).is_some() {
            scene.say(&format!("no image can be pulled for {:?}", self.length));
            self.images = Some((HiddenImages::hide()?, Instant::now()));
        }
        if self
            .images
            .take_if(|(_, since)| since.elapsed() >= self.length)
            .is_some()
        {
            scene.say("images can be pulled again");
        }
        Ok(())
    }

    async fn end(&mut self, scene: &Scene) -> Result<()> {
        if let Some((images, since)) = self.images.take() {
            tokio::time::sleep(self.length.saturating_sub(since.elapsed())).await;
            drop(images);
            scene.say("images can be pulled again");
        }
        Ok(())
    }
}

/// Waits until the driver reports something new, but with a deadline: it may be the killed process.
async fn next_word(scene: &Scene, heard: Option<Time>) -> Result<Option<Time>> {
    let said = |run: &GrpoRun| {
        if follow::has_ended(run) {
            return Some(Err(format!("the run ended: {}", follow::line(run))));
        }
        let at = run.status.as_ref()?.progress.as_ref()?.updated_at.clone()?;
        (Some(&at) != heard.as_ref()).then_some(Ok(at))
    };
    match tokio::time::timeout(SILENCE, scene.until_run(RUN, 2 * SILENCE, "a word of the driver", said)).await {
        Ok(word) => Ok(Some(word??)),
        Err(_) => Ok(heard),
    }
}

fn iteration_of(run: &GrpoRun) -> Option<u32> {
    run.status.as_ref()?.progress.as_ref()?.iteration
}
