//! `grpo-bench-sandbox`: measures the costs of the sandbox gateway and sandboxd, and the faults that they survive.
//! Writes bench/results/sandbox.json.

use clap::Parser;
use grpo_bench::sandbox_bench::{SandboxBenchError, chaos, exec, leases, refill, restart, warm};
use grpo_bench_report::{Bench, Row};
use grpo_testing::cluster::cache;
use std::{path::PathBuf, process::ExitCode, time::Duration};

/// Measures the sandbox gateway and sandboxd.
#[derive(Parser)]
struct Flags {
    /// Of the figures, only these.
    #[arg(long, value_delimiter = ',', default_value = "1,2,3,4,5,6,7")]
    figures: Vec<u8>,
    /// Small and quick, as `make test` has it.
    #[arg(long)]
    short: bool,
    /// Figures 3, 4 and 7 with so many sandboxes.
    #[arg(long)]
    sandboxes: Option<usize>,
    /// Figures 2, 3 and 5 in so many rounds.
    #[arg(long)]
    rounds: Option<usize>,
    /// Figure 3 with leases that come and go for so many seconds.
    #[arg(long)]
    churn_seconds: Option<u64>,
    /// Figure 1 with sandboxes of this image.
    #[arg(
        long,
        default_value = "grpo.dev/demo/task/boltons__cacheutils-cachedmethod-call-zero-one-6e3d:1"
    )]
    image: String,
    /// Where the rows go.
    #[arg(long, default_value = "bench/results/sandbox.json")]
    out: PathBuf,
}

#[tokio::main]
async fn main() -> ExitCode {
    match bench(Flags::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("grpo-bench-sandbox: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether every bar is met. Rows of figures that this call does not measure stay unchanged.
async fn bench(flags: Flags) -> Result<bool, Box<dyn std::error::Error>> {
    let earlier: Option<Bench> = std::fs::read_to_string(&flags.out)
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok());
    let mut rows: Vec<Row> = earlier.map(|bench| bench.rows).unwrap_or_default();
    let mut met = true;
    let mut figures = flags.figures.clone();
    // Figures 3 and 4 are measured together.
    if figures.contains(&3) {
        figures.retain(|figure| *figure != 4);
    }
    for figure in figures {
        eprintln!("figure {figure}");
        let measured = measure(figure, &flags).await?;
        for row in &measured {
            let verdict = if row.meets_its_bar() { "  " } else { "! " };
            met &= row.meets_its_bar();
            println!(
                "{verdict}{:<100} {:>10.2} {:<9} {}{}",
                row.figure,
                row.value.unwrap_or(f64::NAN),
                row.unit,
                row.bar.as_deref().unwrap_or(""),
                row.peer_value
                    .map(|value| format!("  (beside {value})"))
                    .unwrap_or_default(),
            );
        }
        let number = |row: &Row| row.figure.split(':').next().map(str::to_owned);
        rows.retain(|row| measured.iter().all(|new| number(new) != number(row)));
        rows.extend(measured);
        rows.sort_by_key(number);
        let programs = cache().join("bin");
        Bench::of_this_machine(&rows)
            .with_version_of(&programs.join("kube-apiserver"))
            .with_version_of(&programs.join("kwok"))
            .write(&flags.out)?;
    }
    Ok(met)
}

async fn measure(figure: u8, flags: &Flags) -> Result<Vec<Row>, SandboxBenchError> {
    match figure {
        1 => {
            let scale = warm::Scale {
                leases: if flags.short { 10 } else { 200 },
                warm: 8,
                image: flags.image.clone(),
            };
            warm::measure(&scale).await
        }
        2 => {
            let mut scale = if flags.short {
                exec::Scale::SHORT
            } else {
                exec::Scale::FULL
            };
            scale.rounds = flags.rounds.unwrap_or(scale.rounds);
            exec::measure(scale).await
        }
        3 | 4 => {
            let mut scale = if flags.short {
                leases::Scale::SHORT
            } else {
                leases::Scale::FULL
            };
            scale.sandboxes = flags.sandboxes.unwrap_or(scale.sandboxes);
            scale.rounds = flags.rounds.unwrap_or(scale.rounds);
            scale.churn = flags.churn_seconds.map_or(scale.churn, Duration::from_secs);
            leases::measure(scale).await
        }
        5 => {
            let mut scale = if flags.short {
                refill::Scale::SHORT
            } else {
                refill::Scale::FULL
            };
            scale.rounds = flags.rounds.unwrap_or(scale.rounds);
            refill::measure(scale).await
        }
        6 => {
            chaos::measure(if flags.short {
                chaos::Scale::SHORT
            } else {
                chaos::Scale::FULL
            })
            .await
        }
        7 => {
            let mut scale = if flags.short {
                restart::Scale::SHORT
            } else {
                restart::Scale::FULL
            };
            scale.sandboxes = flags.sandboxes.unwrap_or(scale.sandboxes);
            scale.leased = scale.leased.min(scale.sandboxes / 2);
            restart::measure(scale).await
        }
        _ => Err(SandboxBenchError::Wrong(format!(
            "there is no figure {figure} here: 1 to 7 are"
        ))),
    }
}
