//! `grpo-engine`: the embedded engine as a process.

use clap::Parser;
use grpo_engine::{Options, serve};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Samples from a model on CPU. An answer is bit for bit reproducible: concurrent requests do not change it.
#[derive(Debug, Parser)]
#[command(version)]
struct Flags {
    /// Folder of config.json and model.safetensors; for conversations in text also of tokenizer and chat template.
    #[arg(long, default_value = "/model")]
    model_dir: PathBuf,
    /// Loopback: the agent beside it forwards requests. The admin API is on this port too.
    #[arg(long, default_value = "127.0.0.1:8001")]
    listen: SocketAddr,
    /// The name that /v1/models lists.
    #[arg(long, default_value = "policy")]
    model_name: String,
    /// Rows in one pass.
    #[arg(long, default_value_t = 64)]
    max_rows: usize,
    /// Longest prompt and continuation together; the model's own limit unless given.
    #[arg(long)]
    max_context: Option<usize>,
    /// Requests that may wait; more are answered 429.
    #[arg(long, default_value_t = 1024)]
    max_waiting: usize,
    #[arg(long, env = "GRPO_THREADS", default_value_t = 1)]
    threads: usize,
    /// Memory for keys and values of shared beginnings.
    #[arg(long, default_value_t = 256)]
    prefix_cache_mib: usize,
    /// Memory for keys and values of running rows; others wait. By default what the container's memory leaves beside
    /// two models.
    #[arg(long)]
    kv_mib: Option<usize>,
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
            tracing::error!("{error}");
            eprintln!("grpo-engine: {error}");
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
        model_dir: flags.model_dir,
        model_name: flags.model_name,
        max_rows: flags.max_rows,
        max_context: flags.max_context,
        max_waiting: flags.max_waiting,
        threads: flags.threads,
        prefix_cache_bytes: flags.prefix_cache_mib << 20,
        kv_bytes: flags.kv_mib.map(|mib| mib << 20),
    };
    let shutdown = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    Ok(serve(listener, options, shutdown).await?)
}
