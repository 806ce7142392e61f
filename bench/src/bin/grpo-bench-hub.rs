//! `grpo-bench-hub`: measures the cost of downloads from a hub, and the faults that they survive. Writes
//! bench/results/hub.json.

use clap::Parser;
use grpo_bench::hub_bench::clients::Programs;
use grpo_bench::hub_bench::{HUB_CLIENT, same, speed};
use grpo_bench_report::Bench;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measures downloads from a hub.
#[derive(Parser)]
struct Flags {
    /// Of the figures, only these.
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    figures: Vec<u8>,
    /// Bytes of figure 2.
    #[arg(long, default_value_t = 8_000_000_000)]
    bytes: u64,
    /// Rounds of figure 2.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// `grpo-engine-agent`.
    #[arg(long)]
    ours: PathBuf,
    /// A Python that has huggingface_hub.
    #[arg(long)]
    python: PathBuf,
    /// Where files go; it is emptied.
    #[arg(long)]
    work: PathBuf,
    /// Where the rows go.
    #[arg(long, default_value = "bench/results/hub.json")]
    out: PathBuf,
}

#[tokio::main]
async fn main() -> ExitCode {
    match bench(Flags::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("grpo-bench-hub: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether every bar is met.
async fn bench(flags: Flags) -> Result<bool, Box<dyn std::error::Error>> {
    let (ours, python) = (flags.ours, flags.python);
    let programs = Programs { ours, python };
    std::fs::create_dir_all(&flags.work)?;
    let mut met = true;
    for figure in flags.figures {
        eprintln!("figure {figure}");
        let rows = match figure {
            1 => same::measure(&programs, &flags.work).await?,
            2 => {
                let (bytes, rounds) = (flags.bytes, flags.rounds);
                speed::measure(&programs, &flags.work, speed::Scale { bytes, rounds }).await?
            }
            _ => return Err(format!("there is no figure {figure} here: 1 and 2 are").into()),
        };
        for row in &rows {
            let verdict = if row.meets_its_bar() { "  " } else { "! " };
            met &= row.meets_its_bar();
            let peer = row.peer_value.map(|value| format!("  (beside {value})"));
            println!(
                "{verdict}{:<80} {:>10.2} {:<5} {}{}",
                row.figure,
                row.value.unwrap_or(f64::NAN),
                row.unit,
                row.bar.as_deref().unwrap_or(""),
                peer.unwrap_or_default(),
            );
        }
        let versions = [HUB_CLIENT.to_owned()];
        Bench::of_this_machine(&rows)
            .with_versions(&versions)
            .merged_with(&flags.out)
            .write(&flags.out)?;
    }
    Ok(met)
}
