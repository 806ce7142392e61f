//! The process: one gateway for one SandboxPool.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use grpo_auth::AuthFlags;
use grpo_contracts::RunConfig;
use grpo_contracts::access::{Service, gateway_audience};
use grpo_contracts::listen::{everywhere, listen};
use grpo_crds::SandboxPoolSpec;
use grpo_gateway::api_client;
use grpo_gateway::begin::{Beginning, Begun};
use grpo_gateway::core::prefetch::keep_prefetching;
use grpo_gateway::core::probe::keep_probing;
use grpo_gateway::core::stuck;
use grpo_gateway::index::Bounds;
use grpo_gateway::pod::Template;
use grpo_sandbox_protocol::Signer;
use kube::config::{KubeConfigOptions, Kubeconfig};
use rand::Rng;
use tokio::signal::unix::{SignalKind, signal};

/// Maximum pod creations in progress.
const ORDERS: usize = 32;
/// Maximum waiting leases.
const MAX_WAITING: usize = 10_000;
/// Deadline of the ledger's last writes at the end.
const SETTLE: Duration = Duration::from_secs(3);

/// Deadline of the API server's answer to a request.
const ANSWER: Duration = Duration::from_secs(30);

#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    /// The pool's spec, JSON.
    #[arg(long)]
    pool_file: PathBuf,
    #[arg(long)]
    pool: String,
    #[arg(long)]
    namespace: String,
    #[arg(long)]
    pool_uid: String,
    /// 32 bytes: the private key sandboxds are told to trust.
    #[arg(long)]
    key_file: PathBuf,
    #[arg(long)]
    sandboxd_image: String,
    /// ConfigMap of the leases; repeated, one for every 256 leases that there may be.
    #[arg(long, required = true)]
    ledger: Vec<String>,
    #[arg(long, default_value_t = everywhere(RunConfig::GATEWAY_PORT))]
    listen: SocketAddr,
    /// The API server and the credentials for it, outside of a pod. Default: those of the pod's service account.
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    auth: AuthFlags,
}

#[tokio::main]
async fn main() -> std::process::ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    match run(Arguments::parse()).await {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error, "the gateway ends");
            std::process::ExitCode::FAILURE
        }
    }
}

/// A client with the pod's service account, or with the kubeconfig of a flag. Authors of pools set variables, and the
/// gateway's token may create pods: only a server whose certificate the cluster's authority has signed gets it.
async fn api_client(kubeconfig: Option<&Path>) -> Result<kube::Client, String> {
    let config = match kubeconfig {
        None => kube::Config::incluster().map_err(|error| {
            format!("reading the pod's service account: {error}. Run in a pod, or give --kubeconfig")
        })?,
        Some(path) => {
            let unread = |error: kube::config::KubeconfigError| format!("reading {}: {error}", path.display());
            let read = Kubeconfig::read_from(path).map_err(unread)?;
            kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
                .await
                .map_err(unread)?
        }
    };
    api_client::of(config, ANSWER).map_err(|error| format!("making a client of the API server: {error}"))
}

async fn run(arguments: Arguments) -> Result<(), String> {
    let read = |path: &PathBuf| std::fs::read(path).map_err(|e| format!("reading {}: {e}", path.display()));
    let spec: SandboxPoolSpec = serde_json::from_slice(&read(&arguments.pool_file)?)
        .map_err(|e| format!("{} is not a SandboxPool's spec: {e}", arguments.pool_file.display()))?;
    let seed: [u8; 32] = read(&arguments.key_file)?
        .try_into()
        .map_err(|_| format!("{} must hold 32 bytes", arguments.key_file.display()))?;
    let signer = Signer::from_seed(&seed);
    let guarded = arguments.auth.guard(Service::Gateway, []);
    let (guard, keys) = guarded.map_err(|e| format!("checking tokens: {e}"))?;
    // Drivers of other namespaces have tokens for this pool; all other callers have tokens for any gateway.
    let guard = guard.accepting(gateway_audience(&arguments.namespace, &arguments.pool));
    tokio::spawn(keys);
    let client = api_client(arguments.kubeconfig.as_deref()).await?;
    let beginning = Beginning {
        client: client.clone(),
        bounds: bounds(&spec),
        template: Template {
            pool: arguments.pool,
            pool_uid: arguments.pool_uid,
            namespace: arguments.namespace,
            sandboxd_image: arguments.sandboxd_image,
            public_key: signer.public_key(),
            spec,
            term: 0,
        },
        signer,
        ledgers: arguments.ledger,
        holder: format!("{:016x}", rand::rng().random::<u64>()),
    };
    let Begun {
        core, writer, tasks, ..
    } = beginning.begin().await.map_err(|e| e.to_string())?;
    tokio::spawn(keep_probing(core.clone()));
    let events = kube::Api::namespaced(client.clone(), &core.template.namespace);
    tokio::spawn(stuck::keep_looking(core.clone(), events));
    if core.template.spec.warm.images > 0 {
        tokio::spawn(keep_prefetching(core.clone(), client));
    }

    let listener = listen(arguments.listen)
        .and_then(tokio::net::TcpListener::from_std)
        .map_err(|e| format!("listening on {}: {e}", arguments.listen))?;
    tracing::info!(listen = %arguments.listen, "serving");
    let mut terminate = signal(SignalKind::terminate()).map_err(|e| format!("handling SIGTERM: {e}"))?;
    let router = grpo_gateway::http::guarded(core.clone(), guard);
    let terminated = async move {
        terminate.recv().await;
    };
    tokio::select! {
        () = grpo_auth::serve(listener, router, terminated) => {
            let _ = tokio::time::timeout(SETTLE, core.settle()).await;
            Ok(())
        }
        () = core.replaced() => Err("another gateway has taken the pool over".to_owned()),
        // Fenced: another gateway owns the leases now, so not one more may be given out here.
        ended = writer => match ended {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(error) => Err(format!("the ledger's writer ended: {error}")),
        },
        // Without one of them the process would answer and grant nothing.
        (ended, ..) = futures::future::select_all(tasks) => Err(match ended {
            Ok(()) => "the scheduler or the watch of the pool's pods ended; the gateway must be restarted".to_owned(),
            Err(error) => format!("the scheduler or the watch of the pool's pods ended: {error}"),
        }),
    }
}

fn bounds(spec: &SandboxPoolSpec) -> Bounds {
    let max = spec.max as usize;
    Bounds {
        max,
        reserved: grpo_sandbox_protocol::lease::reserved_for_graders(spec.max) as usize,
        warm_max: spec.warm.max.map_or(max, |n| n as usize),
        orders: ORDERS,
        waiting: MAX_WAITING,
        per_node: spec.max_per_node,
        max_ttl_millis: spec.lease.max_ttl.duration().as_millis() as i64,
        idle_millis: spec.lease.idle_timeout.duration().as_millis() as i64,
    }
}
