//! Shared parts of the end-to-end tests: a namespace for each, small runs, waits for states, and outages.
//!
//! Nothing here sleeps: every wait is on a watch, has a deadline, and reports the last observation. A failed test
//! leaves its namespace for inspection; the next run of the same test deletes it.

pub mod bars;
pub mod bucket;
pub mod gateway;
pub mod helm;
pub mod hub;
pub mod kill;
pub mod memory;
pub mod nodes;
pub mod outage;
pub mod plugin;
pub mod recorder;
pub mod volume;

use grpo_crds::{GrpoRun, SandboxPool};
use grpo_demo::follow::{self, Ended, FollowError};
use grpo_records::Event;
use grpo_records::folder::RunFolder;
use grpo_testing::cluster::manifest::RunManifest;
use grpo_testing::cluster::{self, wait};
use grpo_verify::grader::GraderCommand;
use grpo_verify::rows::TaskRows;
use grpo_verify::{self as verify, Check, Sources};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, DeleteParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use std::collections::BTreeSet;
use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Deadline for deleting a namespace, pulling images or starting pods.
pub const SOON: Duration = Duration::from_secs(120);
/// Deadline of a whole small run, on two busy cores.
pub const RUN_LIMIT: Duration = Duration::from_secs(15 * 60);

/// A namespace of the test's own.
pub struct Scene {
    pub client: Client,
    pub namespace: String,
    began: Instant,
}

impl Scene {
    /// An empty namespace `e2e-<name>`; deletes the remains of an earlier test.
    pub async fn new(name: &str) -> Result<Self> {
        let scene = Self {
            client: cluster::connect().await?,
            namespace: format!("e2e-{name}"),
            began: Instant::now(),
        };
        scene.clear().await?;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": scene.namespace}});
        let namespaces: Api<Namespace> = Api::all(scene.client.clone());
        namespaces
            .create(&PostParams::default(), &serde_json::from_value(namespace)?)
            .await?;
        scene.say("begun");
        Ok(scene)
    }

    /// Removes the namespace and everything in it.
    pub async fn clear(&self) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        match namespaces.delete(&self.namespace, &DeleteParams::default()).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let what = format!("namespace {} to be gone", self.namespace);
        let gone = |there: &wait::Objects<Namespace>| there.is_empty().then_some(());
        Ok(wait::until(namespaces, wait::named(&self.namespace), SOON, &what, gone).await?)
    }

    pub fn say(&self, what: &str) {
        println!(
            "{:7.1}s  {}: {what}",
            self.began.elapsed().as_secs_f64(),
            self.namespace
        );
    }

    pub fn runs(&self) -> Api<GrpoRun> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub async fn apply(&self, manifest: &RunManifest) -> Result<GrpoRun> {
        let run = manifest.apply(&self.client, &self.namespace).await?;
        self.say(&format!("applied GrpoRun {}", run.name_any()));
        Ok(run)
    }

    /// Follows a run to its end; a failed run is an error in the run's own words.
    pub async fn follow(&self, name: &str) -> std::result::Result<Ended, FollowError> {
        follow::follow(&self.runs(), name, RUN_LIMIT).await
    }

    /// The message of a run's failure; an error if the run does not fail.
    pub async fn failure_of(&self, name: &str, limit: Duration) -> Result<String> {
        match follow::follow(&self.runs(), name, limit).await {
            Err(FollowError::Failed { message, .. }) => {
                self.say(&format!("failed as it should: {message}"));
                Ok(message)
            }
            Err(error) => Err(error.into()),
            Ok(_) => Err(format!("GrpoRun {name} succeeded, and should not have").into()),
        }
    }

    /// Waits for a state of a run's status.
    pub async fn until_run<T>(
        &self,
        name: &str,
        limit: Duration,
        what: &str,
        mut found: impl FnMut(&GrpoRun) -> Option<T>,
    ) -> Result<T> {
        let of = |there: &wait::Objects<GrpoRun>| there.get(name).and_then(&mut found);
        Ok(wait::until(self.runs(), wait::named(name), limit, what, of).await?)
    }

    /// Waits for a state of the pods with these labels.
    pub async fn until_pods<T>(
        &self,
        labels: &str,
        limit: Duration,
        what: &str,
        found: impl FnMut(&wait::Objects<Pod>) -> Option<T>,
    ) -> Result<T> {
        Ok(wait::until(self.pods(), wait::labelled(labels), limit, what, found).await?)
    }

    /// A finished run holds no lease.
    pub async fn until_no_sandbox_is_leased(&self) -> Result<()> {
        let pools: Api<SandboxPool> = Api::namespaced(self.client.clone(), &self.namespace);
        let leased = |pool: &SandboxPool| pool.status.as_ref().map_or(0, |status| status.leased);
        let idle = |there: &wait::Objects<SandboxPool>| there.values().all(|pool| leased(pool) == 0).then_some(());
        Ok(wait::until(pools, wait::labelled(""), SOON, "no sandbox to be leased", idle).await?)
    }

    /// The folder to which the store of a run is copied.
    pub fn copy_of(&self, run: &str) -> PathBuf {
        repository().join("out/e2e").join(&self.namespace).join(run)
    }

    /// Copies the store of a run out of the cluster.
    pub async fn store_of(&self, run: &GrpoRun) -> Result<RunFolder> {
        let to = self.copy_of(&run.name_any());
        cluster::store::copy(&self.client, run, &to).await?;
        Ok(RunFolder::open(&to)?)
    }
}

pub use grpo_testing::repository;
pub use helm::helm;

/// The demo's manifest with counts for a test: seconds, not minutes.
pub fn small_run(name: &str) -> Result<RunManifest> {
    let manifest = RunManifest::read(&repository().join("docs/examples/demo.yaml"))?
        .named(name)
        .with("/rollout/iterations", json!(2))
        .with("/rollout/prompts", json!(2))
        .with("/rollout/samples", json!(4))
        .with("/checkpoint/every", json!(1))
        .for_each_set(|set| {
            set["select"]["limit"] = json!(2);
            set["samples"] = json!(1);
        });
    Ok(manifest)
}

/// Rows of the demo's tasks, as `make demo` and the tests build them.
pub fn rows() -> PathBuf {
    cluster::cache().join("demo/rows")
}

/// Episodes with a verdict, of any attempt; an error if one episode has two.
pub fn verdicts(folder: &RunFolder) -> Result<BTreeSet<String>> {
    let mut once = BTreeSet::new();
    for entry in &folder.journal {
        if let Event::Verdict { episode, .. } = &entry.event
            && !once.insert(without_attempt(episode).to_owned())
        {
            return Err(format!("{episode} has two verdicts").into());
        }
    }
    Ok(once)
}

/// The folder of an episode's first attempt, from that of any attempt.
fn without_attempt(folder: &str) -> &str {
    let is_number = |end: &str| end.bytes().all(|byte| byte.is_ascii_digit());
    match folder.rsplit_once("__t") {
        Some((episode, attempt)) if is_number(attempt) => episode,
        _ => folder,
    }
}

/// Recomputes a store's claims; an error if one does not agree.
pub fn verified(folder: &RunFolder) -> Result<Vec<Check>> {
    let sources = Sources {
        tasks: TaskRows::read(&rows())?,
        grader: GraderCommand {
            worker: repository().join("rollout-image/grader/worker.py"),
            site: cluster::cache().join("grader-site"),
        },
    };
    let checks = verify::verify(folder, &sources)?;
    print!("{}", verify::text(&checks));
    if verify::holds(&checks) {
        Ok(checks)
    } else {
        Err(format!("{} does not follow from its records", folder.location()).into())
    }
}
