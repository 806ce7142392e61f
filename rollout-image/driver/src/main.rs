//! grpo-driver: reads `run.json`, resumes the run at the point that the store records, and completes it.
//!
//! Exit status 0: the run is done. 42: a terminal fault; retrying cannot help. `status.progress.fault` and the
//! termination message name it. Any other status: this attempt failed, and the next attempt continues the run.

use clap::{Parser, Subcommand};
use futures::future::BoxFuture;
use grpo_auth::AuthFlags;
use grpo_contracts::RunConfig;
use grpo_contracts::access::{self, Service};
use grpo_contracts::listen::{everywhere, listen};
use grpo_contracts::reason::Reason;
use grpo_crds::grpo_run::Mode;
use grpo_crds::progress::{Fault as ShownFault, Stage};
use grpo_crds::sources::ObjectStoreSource;
use grpo_driver::config::{self, Settings};
use grpo_driver::downloads::Downloads;
use grpo_driver::fault::{DriverError, TerminalFault};
use grpo_driver::finetune::{Finetune, FinetuneSettings};
use grpo_driver::metrics::Metrics;
use grpo_driver::progress::{self, Board};
use grpo_driver::recording::server;
use grpo_driver::recording::sessions::Sessions;
use grpo_driver::tasks::listing::{self, Lister};
use grpo_driver::traces::Traces;
use grpo_driver::trackers::Trackers;
use grpo_driver::{live, model, records_server, serve, start};
use grpo_hub::HubSettings;
use grpo_records::look::Records;
use grpo_records::{Event, RunStore};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tokio::sync::watch;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The rollout driver of one GrpoRun.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    instead: Option<Instead>,
    /// What the operator resolved the run to.
    #[arg(long, default_value = RunConfig::PATH)]
    config: PathBuf,
    /// Weights, progress and metrics are served here.
    #[arg(long, default_value_t = everywhere(RunConfig::DRIVER_PORT))]
    listen: SocketAddr,
    /// People look into the run's records here, through the API server's port-forward.
    #[arg(long, default_value_t = records_address())]
    listen_records: SocketAddr,
    /// Where the store's volume is mounted.
    #[arg(long, default_value = RunConfig::STORE_MOUNT)]
    store_mount: PathBuf,
    /// Attempt of the pod group.
    #[arg(long, env = "GRPO_ATTEMPT", default_value_t = 1)]
    attempt: u32,
    /// The grading worker.
    #[arg(long, env = "GRPO_GRADER_WORKER", default_value = WORKER)]
    grader_worker: PathBuf,
    /// Where its packages are.
    #[arg(long, env = "GRPO_GRADER_SITE", default_value = SITE)]
    grader_site: PathBuf,
    /// The folder with tokens for the services that the driver calls.
    #[arg(long, default_value = access::TOKENS)]
    tokens: PathBuf,
    /// Where the last word goes when the run ends with a fault.
    #[arg(long, default_value = "/dev/termination-log")]
    termination_log: PathBuf,
    #[command(flatten)]
    auth: AuthFlags,
    /// Leave status.progress alone; for a driver outside a cluster.
    #[arg(long)]
    no_status: bool,
}

/// What is done instead of driving a run.
#[derive(Subcommand)]
enum Instead {
    /// Show the records of a store, read only, for `kubectl grpo`.
    Records {
        /// Where the store's volume is mounted.
        #[arg(long, default_value = RunConfig::STORE_MOUNT)]
        store_mount: PathBuf,
        /// The run's root inside it.
        #[arg(long)]
        path: String,
        /// The bucket, where the store is no volume: `s3://bucket/prefix`.
        #[arg(long)]
        url: Option<String>,
        /// The URL of the bucket's server, where it is not that of Amazon, Google or Azure.
        #[arg(long, requires = "url")]
        endpoint: Option<String>,
        /// The bucket's region.
        #[arg(long, requires = "url")]
        region: Option<String>,
        /// The folder with the bucket's credentials, one file a variable. Default: the environment.
        #[arg(long, requires = "url")]
        credentials: Option<PathBuf>,
        #[arg(long, default_value_t = records_address())]
        listen: SocketAddr,
    },
    /// Answer which tasks a run would have, for `kubectl grpo tasks`.
    Tasks {
        #[arg(long, default_value_t = records_address())]
        listen: SocketAddr,
        /// A folder for downloads.
        #[arg(long, default_value = "/tmp/tasks")]
        scratch: PathBuf,
        /// The grading worker.
        #[arg(long, env = "GRPO_GRADER_WORKER", default_value = WORKER)]
        grader_worker: PathBuf,
        /// Where its packages are.
        #[arg(long, env = "GRPO_GRADER_SITE", default_value = SITE)]
        grader_site: PathBuf,
    },
}

/// The grading worker and its packages in the driver's image.
const WORKER: &str = "/opt/grader/worker.py";
const SITE: &str = "/opt/grader";

fn records_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], RunConfig::RECORDS_PORT))
}

#[tokio::main]
async fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let traces = Traces::of_environment();
    let logs = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .with_filter(filter);
    let spans = traces.as_ref().ok().and_then(Option::as_ref).map(Traces::layer);
    tracing_subscriber::registry().with(logs).with(spans).init();
    if let Err(error) = &traces {
        tracing::warn!(%error, "no traces are sent: correct the OTEL_EXPORTER_OTLP variables in driver.env");
    }
    let arguments = Arguments::parse();
    let work = async {
        match &arguments.instead {
            Some(Instead::Records {
                store_mount,
                path,
                url,
                endpoint,
                region,
                credentials,
                listen,
            }) => {
                let bucket = url.clone().map(|url| ObjectStoreSource {
                    url,
                    endpoint: endpoint.clone(),
                    region: region.clone(),
                    credentials_secret_ref: None,
                });
                let opened = match &bucket {
                    Some(bucket) => records_server::open_bucket(bucket, credentials.as_deref(), path).await,
                    None => records_server::open_volume(store_mount, path),
                };
                show_records(opened, *listen).await
            }
            Some(Instead::Tasks {
                listen,
                scratch,
                grader_worker,
                grader_site,
            }) => {
                let lister = Lister {
                    grader_worker: grader_worker.clone(),
                    grader_site: grader_site.clone(),
                    hub: HubSettings::from_env(),
                    scratch: scratch.clone(),
                };
                ended(listing::serve(lister, *listen).await, "the tasks cannot be listed")
            }
            None => drive(&arguments).await,
        }
    };
    let code = tokio::select! {
        code = work => code,
        signal = terminated() => {
            tracing::info!(signal, "stopping; everything finished is in the store");
            ExitCode::from(143)
        }
    };
    if let Ok(Some(traces)) = traces {
        traces.shut_down().await;
    }
    code
}

async fn show_records(opened: Result<Records, DriverError>, listen: SocketAddr) -> ExitCode {
    let served = match opened {
        Ok(records) => records_server::serve(records, listen).await,
        Err(error) => Err(error),
    };
    ended(served, "no records to be shown")
}

fn ended(served: Result<(), DriverError>, what: &str) -> ExitCode {
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "{what}");
            ExitCode::FAILURE
        }
    }
}

/// A client with the pod's service account. Authors of runs set variables, so no kubeconfig is read: only the cluster's
/// authority may have signed the server's certificate.
fn api_client() -> Result<kube::Client, Box<dyn std::error::Error>> {
    Ok(kube::Client::try_from(kube::Config::incluster()?)?)
}

async fn drive(arguments: &Arguments) -> ExitCode {
    let config = match read_config(&arguments.config) {
        Ok(config) => config,
        Err(error) => {
            tracing::error!(%error);
            return ExitCode::FAILURE;
        }
    };
    let board = Board::new(&config.uid, config.spec.rollout.iterations);
    let client = match arguments.no_status {
        true => None,
        false => api_client()
            .inspect_err(|error| tracing::warn!(%error, "no API server: status.progress stays empty"))
            .ok(),
    };
    let publishing = client.clone().map(|client| {
        tokio::spawn(progress::publish(
            client,
            config.namespace.clone(),
            config.name.clone(),
            board.watch(),
        ))
    });
    let mut trackers = None;
    let result = driven(arguments, &config, &board, &mut trackers).await;
    if let Some(task) = publishing {
        task.abort();
    }
    let code = conclude(arguments, &board, result);
    if let Some(client) = client {
        progress::write_last(client, &config.namespace, &config.name, &board.now()).await;
    }
    // After everything that others wait for.
    if let Some(trackers) = trackers {
        Trackers::end(trackers).await;
    }
    code
}

async fn opened(config: &RunConfig, mount: &Path) -> Result<RunStore, DriverError> {
    let store = grpo_object_storage::store_of(config, mount).await;
    store.map_err(|error| match error.is_final() {
        true => TerminalFault::new(Reason::StoreUnusable, error.to_string()).into(),
        false => DriverError::Other(error.to_string()),
    })
}

/// `trackers`: the run's, once they work.
async fn driven(
    arguments: &Arguments,
    config: &RunConfig,
    board: &Board,
    trackers: &mut Option<Trackers>,
) -> Result<(), DriverError> {
    config::executable(config)?;
    let store = opened(config, &arguments.store_mount).await?;
    let metrics = Arc::new(Metrics::default());
    let (guard, keys) = (arguments.auth)
        .guard(Service::Driver, serve::callers(config))
        .map_err(|error| DriverError::Other(format!("checking tokens: {error}")))?;
    tokio::spawn(keys);
    let listener = listen(arguments.listen)
        .and_then(tokio::net::TcpListener::from_std)
        .map_err(DriverError::io(format!("listening on {}", arguments.listen)))?;
    records_server::open_beside(&store, arguments.listen_records);
    let (model_told, model) = watch::channel(None);
    let sessions = Sessions::default();
    // Agents in sandboxes have no token: the path of a session and the lease that the gateway names authorize them.
    let router = guard
        .before(serve::router(&store, board.clone(), metrics.clone(), model))
        .merge(server::router(sessions.clone()));
    // Detached when the work ends: requests of agents, whose episodes the next driver continues, wait as long as this
    // process lives. An aborted server would answer each attempt of a client with an error at once.
    let serving = tokio::spawn(grpo_auth::serve(listener, router, std::future::pending()));
    let hub = HubSettings::from_env();
    let downloads = Downloads {
        settings: hub.clone(),
        store: &store,
        cache: (config.model_download.as_ref()).map_or_else(PathBuf::new, |model| PathBuf::from(&model.cache)),
        board,
    };
    model::bring(config, &downloads, &model_told).await?;
    let process = start::Process {
        attempt: arguments.attempt,
        grader_worker: arguments.grader_worker.clone(),
        grader_site: arguments.grader_site.clone(),
        tokens: arguments.tokens.clone(),
        hub,
        sessions,
        changes: live::Source::File {
            path: arguments.config.clone(),
            started_with: Box::new(config.clone()),
        },
    };
    let (journal, work): (_, BoxFuture<'_, Result<(), DriverError>>) = match config.spec.mode {
        Mode::Finetune => {
            let settings = FinetuneSettings::of(config)?;
            let run = Finetune::start(settings, &process, store.clone(), board.clone(), &downloads).await?;
            (run.journal.clone(), Box::pin(async move { run.go().await }))
        }
        _ => {
            let mut settings = Settings::of(config)?;
            settings.store.0.clone_from(&arguments.store_mount);
            let run = start::run(settings, &process, store.clone(), board.clone(), metrics).await?;
            (run.journal.clone(), Box::pin(async move { run.go().await }))
        }
    };
    *trackers = Some(Trackers::start(config, &store, arguments.attempt));
    let result = tokio::select! {
        result = work => result,
        served = serving => Err(DriverError::Other(format!("the weights server ended: {served:?}"))),
    };
    if let Err(DriverError::Terminal(fault)) = &result {
        let event = Event::RunFinished {
            succeeded: false,
            reason: Some(fault.reason.into()),
            message: Some(fault.message.clone()),
        };
        if let Err(error) = journal.record(event).await {
            tracing::warn!(%error, "recording the fault");
        }
    }
    result
}

fn conclude(arguments: &Arguments, board: &Board, result: Result<(), DriverError>) -> ExitCode {
    match result {
        Ok(()) => {
            tracing::info!("the run is done");
            board.change(|progress| progress.stages.clear());
            board.begin(Stage::Finished);
            ExitCode::SUCCESS
        }
        Err(DriverError::Terminal(fault)) => {
            tracing::error!(%fault, "the run cannot go on");
            last_word(&arguments.termination_log, &fault);
            board.change(|progress| {
                progress.fault = Some(ShownFault {
                    reason: fault.reason.into(),
                    message: fault.message.chars().take(4096).collect(),
                });
            });
            ExitCode::from(grpo_contracts::exit::FAULT_CODE)
        }
        Err(error) => {
            tracing::error!(%error, "this attempt failed; the next attempt continues the run");
            ExitCode::FAILURE
        }
    }
}

fn read_config(file: &PathBuf) -> Result<RunConfig, DriverError> {
    let bytes = std::fs::read(file).map_err(DriverError::io(format!("reading {}", file.display())))?;
    serde_json::from_slice(&bytes)
        .map_err(|error| DriverError::Other(format!("{} is no run.json: {error}", file.display())))
}

/// The kubelet shows at most 4 KiB of it.
fn last_word(file: &PathBuf, fault: &TerminalFault) {
    let message: String = fault.message.chars().take(1000).collect();
    let word = serde_json::json!({"reason": fault.reason.text(), "message": message});
    if let Err(error) = std::fs::write(file, word.to_string()) {
        tracing::warn!(%error, file = %file.display(), "writing the termination message");
    }
}

/// As PID 1 of a container, a process must register for the signals that end it.
async fn terminated() -> &'static str {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}
