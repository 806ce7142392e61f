//! `grpo-bench-sandbox`: what the sandbox gateway and sandboxd cost and bear. Writes bench/sandbox.json.

use clap::Parser;
use grpo_e2e::{
    bench::{Bench, Row},
    cluster::cache,
    sandbox_bench::{SandboxBenchError, leases, refill, restart},
};
use std::{path::PathBuf, process::ExitCode};

/// Measures the sandbox gateway and sandboxd.
#[derive(Parser)]
struct Flags {
    /// Of the figures, only these.
    #[arg(long, value_delimiter = ',', default_value = "3,4,5,7")]
    figures: Vec<u8>,
    /// Small and quick, as `make test` has it.
    #[arg(long)]
    short: bool,
    /// Where the rows go.
    #[arg(long, default_value = "bench/sandbox.json")]
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

/// Whether every bar is met. Rows of figures that are not measured now stay as they were written.
async fn bench(flags: Flags) -> Result<bool, Box<dyn std::error::Error>> {
    let earlier: Option<Bench> = std::fs::read_to_string(&flags.out)
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok());
    let mut rows: Vec<Row> = earlier.map(|bench| bench.rows).unwrap_or_default();
    let mut met = true;
    let mut figures = flags.figures.clone();
    // They are measured together.
    if figures.contains(&3) {
        figures.retain(|figure| *figure != 4);
    }
    for figure in figures {
        eprintln!("figure {figure}");
        let measured = measure(figure, flags.short).await?;
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

async fn measure(figure: u8, short: bool) -> Result<Vec<Row>, SandboxBenchError> {
    match (figure, short) {
        (3 | 4, false) => leases::measure(leases::Scale::FULL).await,
        (3 | 4, true) => leases::measure(leases::Scale::SHORT).await,
        (5, false) => refill::measure(refill::Scale::FULL).await,
        (5, true) => refill::measure(refill::Scale::SHORT).await,
        (7, false) => restart::measure(restart::Scale::FULL).await,
        (7, true) => restart::measure(restart::Scale::SHORT).await,
        _ => Err(SandboxBenchError::Wrong(format!(
            "there is no figure {figure} here: 3, 4, 5 and 7 are"
        ))),
    }
}
