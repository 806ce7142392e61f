//! `grpo-operator`: three controllers, for `GrpoRun`, `InferencePool` and `SandboxPool` of the group `grpo.dev`.
//!
//! ```text
//! watches ─► triggers ─► controller: read ─► decide (pure) ─► apply ─► status
//! ```
//!
//! Every kind has a folder with these four steps; `decide` takes all input as values and returns all changes as values.
//! One replica at a time reconciles, the holder of a Lease; losing it ends the process.

mod admission;
mod agents;
mod api_client;
mod applied;
mod attempt_counts;
mod cluster;
mod context;
mod controller;
mod error;
mod gpu_claims;
mod grpo_run;
mod inference_pool;
mod kueue;
mod lease;
mod metrics;
mod owned_objects;
mod parent;
mod pending_pods;
mod quotas;
mod run_volumes;
mod sandbox_pool;
mod watched_store;
mod watches;

use std::{net::SocketAddr, pin::pin, process::ExitCode, sync::Arc};

use clap::Parser;
use grpo_contracts::listen::everywhere;
use grpo_crds::{InferencePool, SandboxPool};
use grpo_operator_core::settings::Settings;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, PersistentVolumeClaim, Service, ServiceAccount},
    networking::v1::NetworkPolicy,
    rbac::v1::{Role, RoleBinding},
    resource::v1::ResourceClaim,
};
use kube::{Api, Client, runtime::events::Reporter};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::{JoinError, JoinSet},
};

use crate::{
    admission::Admission,
    applied::Applied,
    cluster::{Cluster, Events},
    context::Context,
    controller::api,
    kueue::{Kueue, follow_workloads},
    lease::{Elector, WriteWindow},
    metrics::Metrics,
    watched_store::{WatchedStore, WatchedStores},
    watches::{
        children::follow_children,
        ledgers::{Ledgers, follow_ledgers},
        pods::{PodIndex, follow_pods},
        triggers::triggers,
    },
};

/// Runs GrpoRuns, InferencePools and SandboxPools (grpo.dev).
#[derive(Parser)]
#[command(version)]
struct Flags {
    #[command(flatten)]
    settings: Settings,
    /// Serve this namespace only. Default: all.
    #[arg(long, env = "GRPO_NAMESPACE")]
    namespace: Option<String>,
    /// Name of the Lease that the reconciling replica holds.
    #[arg(long, default_value = "grpo-operator")]
    lease_name: String,
    /// Namespace of the Lease.
    #[arg(long, env = "POD_NAMESPACE", default_value = "default")]
    lease_namespace: String,
    /// This replica's name in the Lease.
    #[arg(long, env = "POD_NAME")]
    identity: Option<String>,
    /// Where /healthz, /readyz and /metrics are served.
    #[arg(long, default_value_t = everywhere(8080))]
    listen: SocketAddr,
    /// What is logged, as RUST_LOG.
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    log: String,
}

/// Why the operator ends.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("failed to find the cluster: {0}. Set KUBECONFIG, or run in a pod with a service account")]
    NoCluster(#[source] kube::Error),
    #[error("failed to listen on {listen}: {source}; choose another --listen")]
    Listen { listen: SocketAddr, source: std::io::Error },
    #[error("{holder} has the Lease {namespace}/{name} now; this replica has to begin anew")]
    Lease {
        namespace: String,
        name: String,
        holder: String,
    },
    #[error("failed to listen for signals: {0}")]
    Signals(#[source] std::io::Error),
    #[error("{0} ended, which it never does by itself")]
    Task(String),
}

#[tokio::main]
async fn main() -> ExitCode {
    let flags = Flags::parse();
    tracing_subscriber::fmt()
        .json()
        .with_span_list(false)
        .with_env_filter(tracing_subscriber::EnvFilter::new(&flags.log))
        .with_writer(std::io::stderr)
        .init();
    match operate(flags).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the operator ends");
            eprintln!("grpo-operator: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Waits for the Lease, reconciles while it is held, and releases it when a signal ends the process.
async fn operate(flags: Flags) -> Result<(), Ended> {
    let (metrics, window) = (Metrics::new(), Arc::new(WriteWindow::new()));
    let client = api_client::connect(&metrics, &window).await.map_err(Ended::NoCluster)?;
    let identity = flags
        .identity
        .clone()
        .unwrap_or_else(|| format!("grpo-operator-{:08x}", rand::random::<u32>()));
    let elector = Elector::new(
        client.clone(),
        &flags.lease_namespace,
        &flags.lease_name,
        &identity,
        window,
    );
    let mut tasks: JoinSet<Ended> = JoinSet::new();
    let (listen, served) = (flags.listen, metrics.clone());
    tasks.spawn(async move {
        match metrics::serve::serve(listen, served).await {
            Ok(()) => Ended::Task("the metrics port".into()),
            Err(source) => Ended::Listen { listen, source },
        }
    });

    let mut told_to_end = pin!(told_to_end()?);
    let lease = tokio::select! {
        lease = elector.acquire() => lease,
        Some(ended) = tasks.join_next() => return Err(ended_by(ended)),
        () = &mut told_to_end => return Ok(()),
    };
    metrics.leading();
    tracing::info!(identity, "this replica reconciles");
    reconcile_all(&client, &flags, &identity, &metrics, &mut tasks);
    let result = tokio::select! {
        holder = elector.hold(lease) => Err(Ended::Lease {
            namespace: flags.lease_namespace.clone(),
            name: flags.lease_name.clone(),
            holder,
        }),
        Some(ended) = tasks.join_next() => Err(ended_by(ended)),
        () = &mut told_to_end => Ok(()),
    };
    // First all writes end, then another replica may write.
    tasks.shutdown().await;
    elector.give_back().await;
    result
}

/// Completes at SIGTERM or SIGINT.
fn told_to_end() -> Result<impl Future<Output = ()>, Ended> {
    let mut terminate = signal(SignalKind::terminate()).map_err(Ended::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Ended::Signals)?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

fn ended_by(ended: Result<Ended, JoinError>) -> Ended {
    ended.unwrap_or_else(|error| Ended::Task(error.to_string()))
}

/// Starts the watches and the three controllers.
fn reconcile_all(client: &Client, flags: &Flags, identity: &str, metrics: &Metrics, tasks: &mut JoinSet<Ended>) {
    let namespace = flags.namespace.clone();
    let scope = namespace.as_deref();
    let reporter = Reporter {
        controller: grpo_operator_core::names::OPERATOR.into(),
        instance: Some(identity.to_owned()),
    };
    let cluster = Arc::new(Cluster {
        client: client.clone(),
        events: Events::new(client.clone(), reporter),
        applied: Applied::default(),
    });
    let (pods, ledgers) = (Arc::new(PodIndex::default()), Arc::new(Ledgers::default()));
    let (triggers, triggered) = triggers(metrics);
    let counted = pods.clone();
    metrics.at_each_look(move |census| counted.count(census));
    let (filled, mut is_filled) = watch::channel(false);

    let mut forever = |name: &'static str, task: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>| {
        tasks.spawn(async move {
            task.await;
            Ended::Task(name.to_owned())
        });
    };
    forever(
        "the watch of pods",
        Box::pin(follow_pods(api(client, scope), pods.clone(), triggers.clone(), filled)),
    );
    forever(
        "the watch of ledgers",
        Box::pin(follow_ledgers(api(client, scope), ledgers.clone(), triggers.clone())),
    );
    // Nodes are cluster-scoped: an operator of one namespace may not read them, and leaves it to the scheduler whether
    // pods fit.
    let admission = Arc::new(Admission::new(scope.is_none(), flags.settings.scale_up()));
    let waiting = admission.clone();
    metrics.at_each_look(move |census| waiting.count(census));
    if scope.is_none() {
        forever(
            "the watch of nodes",
            Box::pin(admission::follow_nodes(Api::all(client.clone()), admission.clone())),
        );
    }
    forever(
        "the watch of all pods",
        Box::pin(admission::follow_all_pods(api(client, scope), admission.clone())),
    );
    forever(
        "admission",
        Box::pin(admission::admit_runs(
            admission.clone(),
            client.clone(),
            triggers.clone(),
        )),
    );
    let kueue = Arc::new(Kueue::default());
    forever(
        "the watch of Workloads",
        Box::pin(follow_workloads(api(client, scope), kueue.clone(), triggers.clone())),
    );
    macro_rules! children {
        ($($kind:ty),+ $(,)?) => {$(
            forever(
                concat!("the watch of ", stringify!($kind)),
                Box::pin(follow_children::<$kind>(api(client, scope), cluster.clone(), triggers.clone())),
            );
        )+};
    }
    children!(
        ConfigMap,
        PersistentVolumeClaim,
        Service,
        ServiceAccount,
        Role,
        RoleBinding,
        Deployment,
        NetworkPolicy,
        ResourceClaim,
        InferencePool,
        SandboxPool
    );

    let (runs, shown_runs) = WatchedStore::of(api(client, scope), triggers.clone());
    let (inference_pools, shown_inference_pools) = WatchedStore::of(api(client, scope), triggers.clone());
    let (sandbox_pools, shown_sandbox_pools) = WatchedStore::of(api(client, scope), triggers.clone());
    let watched = WatchedStores {
        runs,
        inference_pools,
        sandbox_pools,
    };
    let context = Arc::new(Context::new(
        cluster,
        flags.settings.clone(),
        pods,
        ledgers,
        metrics.clone(),
        admission,
        kueue,
        watched,
    ));
    context.forget_what_is_gone();
    let client = client.clone();
    forever(
        "the controllers",
        Box::pin(async move {
            // A pod missing in the index counts as lost: no decision before the index is complete.
            if is_filled.wait_for(|filled| *filled).await.is_err() {
                return;
            }
            let scope = namespace.as_deref();
            tokio::select! {
                () = grpo_run::control(shown_runs, triggered.runs, context.clone()) => {}
                () = inference_pool::control(&client, scope, shown_inference_pools, triggered.inference_pools, context.clone()) => {}
                () = sandbox_pool::control(shown_sandbox_pools, triggered.sandbox_pools, context.clone()) => {}
            }
        }),
    );
}
