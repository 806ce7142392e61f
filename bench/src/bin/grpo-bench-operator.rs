//! `grpo-bench-operator`: measures the operator's costs at scale and its behavior in outages, and checks that it places
//! runs whole. Writes bench/results/operator.json.

use clap::Parser;
use grpo_bench::operator_bench::{capacity, outages, rest};
use grpo_bench_report::{Bench, Row};
use grpo_testing::cluster::cache;
use std::{path::PathBuf, process::ExitCode, time::Duration};

/// Measures the operator on a control plane without nodes.
#[derive(Parser)]
struct Flags {
    /// Of the figures, only these.
    #[arg(long, value_delimiter = ',', default_value = "4,6,7")]
    figures: Vec<u8>,
    /// Small and quick, as `make test` has it.
    #[arg(long)]
    short: bool,
    /// Figure 6 with so many runs.
    #[arg(long)]
    runs: Option<usize>,
    /// Figure 6 with so many seconds at rest.
    #[arg(long)]
    idle_seconds: Option<u64>,
    /// Figure 6 with events for so many seconds.
    #[arg(long)]
    events_seconds: Option<u64>,
    /// Where the rows go.
    #[arg(long, default_value = "bench/results/operator.json")]
    out: PathBuf,
}

#[tokio::main]
async fn main() -> ExitCode {
    match bench(Flags::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("grpo-bench-operator: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether every bar is met. Rows of figures that this call does not measure stay unchanged.
async fn bench(flags: Flags) -> Result<bool, Box<dyn std::error::Error>> {
    let earlier: Option<Bench> = std::fs::read_to_string(&flags.out)
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok());
    let kept = |figure: &str| {
        !flags
            .figures
            .iter()
            .any(|number| figure.starts_with(&format!("{number}: ")))
    };
    let mut rows: Vec<Row> = earlier
        .into_iter()
        .flat_map(|bench| bench.rows)
        .filter(|row| kept(&row.figure))
        .collect();
    let mut met = true;
    for figure in &flags.figures {
        eprintln!("figure {figure}");
        let measured = match (figure, flags.short) {
            (4, false) => capacity::measure(capacity::Scale::FULL).await?,
            (4, true) => capacity::measure(capacity::Scale::SHORT).await?,
            (6, short) => {
                let mut scale = if short { rest::Scale::SHORT } else { rest::Scale::FULL };
                scale.runs = flags.runs.unwrap_or(scale.runs);
                scale.idle = flags.idle_seconds.map_or(scale.idle, Duration::from_secs);
                scale.events_for = flags.events_seconds.map_or(scale.events_for, Duration::from_secs);
                rest::measure(scale).await?
            }
            (7, false) => outages::measure(outages::Scale::FULL).await?,
            (7, true) => outages::measure(outages::Scale::SHORT).await?,
            _ => return Err(format!("there is no figure {figure} here: 4, 6 and 7 are").into()),
        };
        for row in &measured {
            let verdict = if row.meets_its_bar() { "  " } else { "! " };
            met &= row.meets_its_bar();
            println!(
                "{verdict}{:<90} {:>10.2} {:<9} {}",
                row.figure,
                row.value.unwrap_or(f64::NAN),
                row.unit,
                row.bar.as_deref().unwrap_or("")
            );
        }
        rows.extend(measured);
        rows.sort_by_key(|row| row.figure.split(':').next().map(str::to_owned));
        let programs = cache().join("bin");
        Bench::of_this_machine(&rows)
            .with_version_of(&programs.join("kube-apiserver"))
            .with_version_of(&programs.join("kwok"))
            .write(&flags.out)?;
    }
    Ok(met)
}
