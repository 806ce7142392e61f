//! `grpo-engine-agent`: the door of an engine pod as a process.

use clap::Parser;
use grpo_engine_agent::http::Limits;
use grpo_engine_agent::worker::Pace;
use grpo_engine_agent::{Options, new_instance, serve};
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
#[command(version)]
struct Flags {
    #[arg(long, default_value = "0.0.0.0:8000")]
    listen: SocketAddr,
    /// The engine, on loopback.
    #[arg(long, default_value = "http://127.0.0.1:8001")]
    engine: Url,
    /// Where versions are pulled to; the engine sees it under the same path.
    #[arg(long, default_value = "/cache")]
    cache_dir: PathBuf,
    /// Requests at the engine at one time; more are answered 429.
    #[arg(long, default_value_t = 1024)]
    max_inflight: usize,
    #[arg(long, default_value_t = 64)]
    max_request_mib: usize,
    #[arg(long, default_value_t = 256)]
    max_answer_mib: usize,
    /// For one completion, in seconds.
    #[arg(long, default_value_t = 3600)]
    request_seconds: u64,
    #[arg(long, env = "POD_NAME", default_value = "agent")]
    pod_name: String,
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
    let listener = TcpListener::bind(flags.listen)
        .await
        .map_err(|error| format!("cannot listen on {}: {error}; choose another --listen", flags.listen))?;
    let mut terminate = signal(SignalKind::terminate())?;
    let options = Options {
        engine: flags.engine,
        cache_dir: flags.cache_dir,
        max_inflight: flags.max_inflight,
        limits: Limits {
            request_bytes: flags.max_request_mib << 20,
            answer_bytes: flags.max_answer_mib << 20,
        },
        request_deadline: Duration::from_secs(flags.request_seconds),
        instance: new_instance(&flags.pod_name),
        pace: Pace::default(),
    };
    let shutdown = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    Ok(serve(listener, options, shutdown).await?)
}
