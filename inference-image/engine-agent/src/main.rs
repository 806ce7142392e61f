//! `grpo-engine-agent`: the agent of an engine pod as a process.

use clap::{Parser, Subcommand, ValueEnum};
use grpo_auth::{AllowedAccount, AuthFlags};
use grpo_contracts::RunConfig;
use grpo_contracts::access::{self, Service};
use grpo_contracts::listen::{everywhere, listen};
use grpo_engine_agent::engine::openai::Probe;
use grpo_engine_agent::http::Limits;
use grpo_engine_agent::http::access::Grants;
use grpo_engine_agent::worker::Pace;
use grpo_engine_agent::{Kind, Options, fetch_model, new_instance, serve};
use reqwest::Url;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Brings ordered weights to the engine beside it and lets sampling requests through to it.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Flags {
    #[command(subcommand)]
    instead: Option<Instead>,
    #[arg(long, default_value_t = everywhere(RunConfig::AGENT_PORT))]
    listen: SocketAddr,
    /// The engine, on loopback unless it is somebody else's.
    #[arg(long, default_value = "http://127.0.0.1:8001")]
    engine: Url,
    #[arg(long, value_enum, default_value_t = KindFlag::Embedded)]
    kind: KindFlag,
    /// Pods of the engine's replica.
    #[arg(long, default_value_t = 1)]
    nodes: u32,
    /// The engine computes on the CPU.
    #[arg(long)]
    cpu: bool,
    /// The name of the model at an engine of kind openai or chat. Default: the first of those it lists.
    #[arg(long)]
    model: Option<String>,
    /// What is sent to the engine as `Authorization: Bearer`.
    #[arg(long, env = "ENGINE_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Token ids that an engine of kind openai is asked to continue before it counts as fit. One of kind chat is asked
    /// in text.
    #[arg(long, value_delimiter = ',', default_value = "1,2,3,4,5,6,7,8")]
    probe_tokens: Vec<u32>,
    /// How often that is done.
    #[arg(long, default_value_t = 60)]
    probe_seconds: u64,
    /// How long it may take.
    #[arg(long, default_value_t = 300)]
    probe_timeout_seconds: u64,
    /// Where versions are pulled to; the engine sees it under the same path.
    #[arg(long, default_value = "/cache")]
    cache_dir: PathBuf,
    /// Requests at the engine at one time; more are answered 429.
    #[arg(long, default_value_t = 1024)]
    max_inflight: u32,
    #[arg(long, default_value_t = 64)]
    max_request_mib: usize,
    #[arg(long, default_value_t = 256)]
    max_answer_mib: usize,
    /// For one completion, in seconds.
    #[arg(long, default_value_t = 3600)]
    request_seconds: u64,
    #[arg(long, env = "POD_NAME", default_value = "agent")]
    pod_name: String,
    /// The folder with tokens for the services that the agent calls.
    #[arg(long, default_value = access::TOKENS)]
    tokens: PathBuf,
    /// Send this pod's own token to the engine, which is another agent of this cluster.
    #[arg(long, conflicts_with = "api_key")]
    own_token: bool,
    /// What comes with the kubelet's order to drain.
    #[arg(long, env = "GRPO_DRAIN_KEY", hide_env_values = true)]
    drain_key: Option<String>,
    /// A service account that gets chunks of weights and may do nothing else, `namespace/name`: the pool's own agents.
    /// Repeated.
    #[arg(long)]
    allow_chunks: Vec<AllowedAccount>,
    /// A service account that may read the agent's report and do nothing else, `namespace/name`: the operator.
    /// Repeated.
    #[arg(long)]
    allow_status: Vec<AllowedAccount>,
    /// A service account that may sample and do nothing else, `namespace/name`: a client outside of runs. Repeated.
    #[arg(long)]
    allow_sampling: Vec<AllowedAccount>,
    /// Requests of such clients at one time; more are answered 429.
    #[arg(long, default_value_t = 64)]
    max_client_inflight: u32,
    #[command(flatten)]
    auth: AuthFlags,
}

/// What is done instead of guarding an engine.
#[derive(Debug, Subcommand)]
enum Instead {
    FetchModel(fetch_model::Flags),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KindFlag {
    Embedded,
    Vllm,
    Sglang,
    /// Somebody else's server that cannot be given weights.
    #[value(name = "openai")]
    OpenAi,
    /// Such a server that speaks only text.
    Chat,
    /// Another engine agent.
    Agent,
}

impl Flags {
    fn kind(&self) -> Kind {
        let no_folders = (self.nodes > 1).then(|| {
            format!(
                "its replica has {} pods, and versions reach the disk of the first only; use nodes: 1",
                self.nodes
            )
        });
        match self.kind {
            KindFlag::Embedded => Kind::Embedded,
            KindFlag::Vllm => Kind::Vllm {
                no_folders,
                cpu: self.cpu,
            },
            KindFlag::Sglang => Kind::Sglang { no_folders },
            KindFlag::OpenAi | KindFlag::Chat => Kind::OpenAi {
                model: self.model.clone(),
                text_only: self.kind == KindFlag::Chat,
                probe: Probe {
                    tokens: self.probe_tokens.clone(),
                    period: Duration::from_secs(self.probe_seconds),
                    timeout: Duration::from_secs(self.probe_timeout_seconds),
                },
            },
            KindFlag::Agent => Kind::Agent,
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_env_filter(EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    match run(Flags::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("grpo-engine-agent: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(flags: Flags) -> Result<(), Box<dyn std::error::Error>> {
    let mut terminate = signal(SignalKind::terminate())?;
    if let Some(Instead::FetchModel(flags)) = &flags.instead {
        return tokio::select! {
            fetched = fetch_model::fetch(flags) => Ok(fetched.map(drop)?),
            _ = terminate.recv() => Err("told to stop; what is downloaded stays in the cache".into()),
        };
    }
    let listener = listen(flags.listen)
        .and_then(TcpListener::from_std)
        .map_err(|error| format!("cannot listen on {}: {error}; choose another --listen", flags.listen))?;
    let options = Options {
        kind: flags.kind(),
        engine: flags.engine,
        api_key: flags.api_key,
        cache_dir: flags.cache_dir,
        max_inflight: flags.max_inflight,
        limits: Limits {
            request_bytes: flags.max_request_mib << 20,
            answer_bytes: flags.max_answer_mib << 20,
        },
        request_deadline: Duration::from_secs(flags.request_seconds),
        instance: new_instance(&flags.pod_name),
        pace: Pace::default(),
        tokens: flags.tokens,
        own_token: flags.own_token,
        drain_key: flags.drain_key,
        grants: Grants {
            everything: flags.auth.allow.clone(),
            chunks: flags.allow_chunks.clone(),
            status: flags.allow_status.clone(),
            sampling: flags.allow_sampling.clone(),
        },
        client_inflight: flags.max_client_inflight.min(flags.max_inflight / 2).max(1),
    };
    let limited = (flags.allow_chunks.into_iter())
        .chain(flags.allow_status)
        .chain(flags.allow_sampling);
    let (guard, keys) = flags.auth.guard(Service::EngineAgent, limited)?;
    tokio::spawn(keys);
    let shutdown = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    Ok(serve(listener, options, guard, shutdown).await?)
}
