//! The judge of `--arm judge` in a cluster: its server on this machine, and an InferencePool whose engine agents pass
//! the driver's questions on to it.
//!
//! If the program is stopped, pool and run stay, and the driver asks again for up to an hour. The next start gives the
//! pool the address of the new server, and the run continues.

use super::{DELETE_LIMIT, Options};
use grpo_crds::InferencePool;
use grpo_demo::chat_server::ChatServer;
use grpo_demo::judge::server::{self, MODEL};
use grpo_demo::judge::{Judge, PROMPT};
use grpo_demo::tasks::Tasks;
use grpo_testing::cluster::manifest::RunManifest;
use grpo_testing::cluster::{self, ClusterError, FIELD_MANAGER, wait};
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::json;
use std::error::Error;

const POOL: &str = "learning-judge";
/// A verdict is worth four times as much as the vote on a turn: votes may guide the policy, and not outweigh tests.
const COEFFICIENT: f64 = 0.25;
/// As many as an episode has: the judge must know of every earlier edit.
const HISTORY_STEPS: u32 = 8;

/// The judge's server and pool.
pub struct Judging {
    _server: ChatServer,
}

impl Judging {
    pub async fn start(
        client: &Client,
        options: &Options,
        base: &RunManifest,
        tasks: &Tasks,
    ) -> Result<Self, Box<dyn Error>> {
        let address = cluster::host_address();
        let server = server::start(&address, Judge::of(tasks)).await;
        let server = server.map_err(|error| format!("serving the judge at {address}: {error}; is the cluster up?"))?;
        let engine = json!({"external": {"url": server.url, "model": MODEL, "api": "Chat", "weights": "Frozen"}});
        let pool = json!({
            "apiVersion": "grpo.dev/v1alpha1",
            "kind": "InferencePool",
            "metadata": {"name": POOL},
            // A pool names a model; this one's server has none.
            "spec": {"model": base.0["spec"]["model"], "engine": engine, "replicas": 1},
        });
        pools(client, options)
            .patch(POOL, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(&pool))
            .await
            .map_err(cluster::api("applying", pool_name(options)))?;
        println!("InferencePool {POOL}: applied, for the judge at {}", server.url);
        Ok(Self { _server: server })
    }

    /// Deletes the pool, and waits until it is gone.
    pub async fn stop(self, client: &Client, options: &Options) -> Result<(), ClusterError> {
        let pools = pools(client, options);
        match pools.delete(POOL, &DeleteParams::default()).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            Err(error) => return Err(cluster::api("deleting", pool_name(options))(error)),
        }
        let gone = |there: &wait::Objects<InferencePool>| there.is_empty().then_some(());
        let what = format!("{} to be gone", pool_name(options));
        Ok(wait::until(pools, wait::named(POOL), DELETE_LIMIT, &what, gone).await?)
    }
}

/// The run with the judge's votes. One vote for each turn: the judge answers equal questions alike.
pub fn judged(run: RunManifest) -> RunManifest {
    let process = json!({
        "poolRef": {"name": POOL},
        "votes": 1,
        "coefficient": COEFFICIENT,
        "historySteps": HISTORY_STEPS,
        "system": "",
        "prompt": PROMPT,
        "sampling": {"maxTokensPerCall": 16},
    });
    run.with("/agent/context", json!({"rows": "PerTurn"}))
        .with("/algorithm/advantage/estimator", json!("StepWise"))
        .with("/reward/process", process)
}

fn pools(client: &Client, options: &Options) -> Api<InferencePool> {
    Api::namespaced(client.clone(), &options.namespace)
}

fn pool_name(options: &Options) -> String {
    format!("InferencePool {}/{POOL}", options.namespace)
}
