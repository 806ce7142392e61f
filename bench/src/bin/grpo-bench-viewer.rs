//! `grpo-bench-viewer`: makes the store of a long run, and measures the viewer of such a run. Writes
//! bench/results/viewer.json.

use clap::{Args, Parser, Subcommand};
use grpo_bench::viewer_bench::measure::{Place, measure};
use grpo_bench::viewer_bench::store::{self, Shape};
use grpo_bench_report::{Bench, Row};
use std::path::PathBuf;
use std::process::ExitCode;

/// Measures the viewer.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Only write a store.
    Store {
        dir: PathBuf,
        #[command(flatten)]
        shape: ShapeFlags,
    },
    /// Write a store and measure a viewer of it.
    Measure {
        /// The program kubectl-grpo.
        #[arg(long)]
        viewer: PathBuf,
        /// An empty folder for the store, which is removed afterwards.
        #[arg(long)]
        work: PathBuf,
        #[command(flatten)]
        shape: ShapeFlags,
        /// The folder for the rows.
        #[arg(long, default_value = "bench/results")]
        out: PathBuf,
    },
}

#[derive(Args)]
struct ShapeFlags {
    #[arg(long, default_value_t = 2000)]
    iterations: u32,
    #[arg(long, default_value_t = 10)]
    groups: u32,
    #[arg(long, default_value_t = 5)]
    samples: u32,
    #[arg(long, default_value_t = 3)]
    turns: u32,
    /// The first episode has what a hostile sandbox could write.
    #[arg(long)]
    hostile: bool,
}

impl ShapeFlags {
    fn shape(&self) -> Shape {
        Shape {
            iterations: self.iterations,
            groups: self.groups,
            samples: self.samples,
            turns: self.turns,
            hostile: self.hostile,
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match bench(Arguments::parse().what).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("grpo-bench-viewer: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether every bar is met.
async fn bench(what: What) -> Result<bool, Box<dyn std::error::Error>> {
    match what {
        What::Store { dir, shape } => {
            let episodes = store::write(&dir, shape.shape())?;
            println!("{episodes} episodes");
            Ok(true)
        }
        What::Measure {
            viewer,
            work,
            shape,
            out,
        } => {
            eprintln!("writing a store");
            let episodes = store::write(&work, shape.shape())?;
            eprintln!("a viewer of {episodes} episodes");
            let place = Place { viewer, store: work };
            let rows = measure(&place, episodes).await?;
            std::fs::remove_dir_all(&place.store)?;
            print(&rows);
            Bench::of_this_machine(&rows).write(&out.join("viewer.json"))?;
            Ok(rows.iter().all(Row::meets_its_bar))
        }
    }
}

fn print(rows: &[Row]) {
    for row in rows {
        let mark = if row.meets_its_bar() { "  " } else { "! " };
        let bar = row.bar.as_deref().unwrap_or_default();
        println!(
            "{mark}{:<70} {:>12} {:<4} {bar}",
            row.figure,
            row.value.unwrap_or(f64::NAN),
            row.unit
        );
    }
}
