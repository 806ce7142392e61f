//! `grpo-bench-driver`: measures the costs of the driver's recording endpoint, of its bash loop and of a long run.
//! Writes bench/results/endpoint.json, bench/results/loop.json and bench/results/long.json.

use clap::{Args, Parser, Subcommand};
use grpo_bench::driver_bench::{LITELLM, MINI_SWE_AGENT, Place, Scale, TOKENIZER};
use grpo_bench::driver_bench::{endpoint, long, memory, serve_passthrough, turns};
use grpo_bench_report::{Bench, Row};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Measures the driver.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// The recording endpoint beside a passthrough and LiteLLM's proxy: bench/results/endpoint.json.
    Endpoint {
        #[command(flatten)]
        flags: Flags,
    },
    /// The bash loop beside mini-swe-agent: bench/results/loop.json.
    Loop {
        #[command(flatten)]
        flags: Flags,
        /// Episodes whose memory is measured.
        #[arg(long, default_value_t = 2000)]
        episodes: usize,
        /// Of turns and memory, only this.
        #[arg(long)]
        only: Option<String>,
    },
    /// A long run and the restart of its driver: bench/results/long.json.
    Long {
        #[command(flatten)]
        flags: Flags,
        /// Of 50 episodes each.
        #[arg(long, default_value_t = 2000)]
        iterations: usize,
    },
    /// Pass requests on to an engine: a peer of the endpoint, as a process of its own.
    #[command(hide = true)]
    Passthrough { listen: SocketAddr, engine: String },
}

#[derive(Args)]
struct Flags {
    /// A Python that has the peers.
    #[arg(long)]
    python: PathBuf,
    /// The folder with Qwen3's tokenizer and chat template.
    #[arg(long)]
    model: PathBuf,
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// How long each is measured in a round.
    #[arg(long, default_value_t = 4)]
    seconds: u64,
    /// The folder for the rows.
    #[arg(long, default_value = "bench/results")]
    out: PathBuf,
}

impl Flags {
    fn place(&self) -> Place {
        Place {
            python: self.python.clone(),
            model: self.model.clone(),
        }
    }

    fn scale(&self) -> Scale {
        Scale {
            rounds: self.rounds,
            round: Duration::from_secs(self.seconds),
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match bench(Arguments::parse().what).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("grpo-bench-driver: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether every bar is met.
async fn bench(what: What) -> Result<bool, Box<dyn std::error::Error>> {
    match what {
        What::Endpoint { flags } => {
            eprintln!("figure 4: the recording endpoint, a passthrough, LiteLLM");
            let rows = endpoint::measure(&flags.place(), flags.scale()).await?;
            Ok(written(&rows, &[LITELLM, TOKENIZER], &flags.out.join("endpoint.json"))?)
        }
        What::Loop { flags, episodes, only } => {
            let mut rows = Vec::new();
            let wanted = |what: &str| only.as_deref().is_none_or(|only| only == what);
            if wanted("turns") {
                eprintln!("figure 5: turns/s of the bash loop, and of mini-swe-agent");
                rows.extend(turns::measure(&flags.place(), flags.scale()).await?);
            }
            if wanted("memory") {
                eprintln!("figure 5: memory of {episodes} live episodes");
                rows.extend(memory::measure(&flags.place(), episodes).await?);
            }
            Ok(written(
                &rows,
                &[MINI_SWE_AGENT, LITELLM, TOKENIZER],
                &flags.out.join("loop.json"),
            )?)
        }
        What::Long { flags, iterations } => {
            eprintln!("a run of {iterations} iterations, and the restart of its driver");
            let rows = long::measure(&flags.place(), iterations).await?;
            Ok(written(&rows, &[TOKENIZER], &flags.out.join("long.json"))?)
        }
        What::Passthrough { listen, engine } => {
            serve_passthrough(listen, engine).await?;
            Ok(true)
        }
    }
}

/// Prints and writes the rows, and returns whether they meet their bars.
fn written(rows: &[Row], peers: &[&str], file: &Path) -> Result<bool, grpo_bench_report::BenchError> {
    for row in rows {
        let verdict = if row.meets_its_bar() { "  " } else { "! " };
        let peer = row.peer.iter().zip(row.peer_value);
        let peer: Vec<String> = peer.map(|(peer, value)| format!("  ({peer}: {value})")).collect();
        println!(
            "{verdict}{:<90} {:>10.2} {:<4} {}{}",
            row.figure,
            row.value.unwrap_or(f64::NAN),
            row.unit,
            row.bar.as_deref().unwrap_or(""),
            peer.concat(),
        );
    }
    let versions: Vec<String> = peers.iter().map(|peer| (*peer).to_owned()).collect();
    Bench::of_this_machine(rows).with_versions(&versions).write(file)?;
    Ok(rows.iter().all(Row::meets_its_bar))
}
