//! `grpo-bench-trainer`: one GRPO step of our trainer beside TRL's and that of a plain packed PyTorch trainer. Writes
//! bench/results/trainer.json.
//!
//! Every step runs in a process of its own, which gives each its own peak memory. Trainers alternate, and medians are
//! compared. The other trainers are `e2e/peers/trainer_step.py`, in the environment that `e2e/setup/trl.sh` installs.

mod cases;
mod count;
mod delta;
mod division;
mod figures;
mod gpu;
mod median;
mod publish;
mod published;
mod ranks;
mod step;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::cases::Case;
use crate::step::How;

type Failure = Box<dyn std::error::Error>;

#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure, and write the figures.
    Bench(figures::Flags),
    /// Measure steps of published geometries on a GPU, and write the figures.
    Gpu(gpu::Flags),
    /// Count launches, operations and bytes of a block and of the head of every published geometry, without a GPU.
    Count {
        /// Unique tokens of a step.
        #[arg(long, default_value_t = 16_384)]
        tokens: usize,
        /// Print each operation of a block of this geometry as well.
        #[arg(long, value_enum)]
        of: Option<published::Model>,
    },
    /// Measure deltas of published weights between steps, and write the figures.
    Delta(delta::Flags),
    /// Measure the publication of a version, and write the figures.
    Publish(publish::Flags),
    /// Step as one of several ranks, say what it took.
    Rank {
        folder: PathBuf,
        #[command(flatten)]
        how: ranks::How,
    },
    /// Write model, rows and settings of a case.
    Prepare {
        folder: PathBuf,
        #[arg(long)]
        case: Case,
        /// As `make test` has it: a model and rows that take no time.
        #[arg(long)]
        tiny: bool,
    },
    /// Warm up, take one step, say what it took.
    Step {
        folder: PathBuf,
        /// Compute every row alone, nothing shared.
        #[arg(long)]
        unshared: bool,
        /// Unique tokens of one micro-batch.
        #[arg(long, default_value_t = 4096)]
        budget: usize,
        /// Mebibytes of activations that may be kept; 0 computes them again.
        #[arg(long, default_value_t = 2048)]
        keep: usize,
        /// Write the gradients there, and do not warm up.
        #[arg(long)]
        gradients: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Bench(flags) => figures::bench(&flags),
        Command::Gpu(flags) => gpu::bench(&flags),
        Command::Delta(flags) => delta::bench(&flags),
        Command::Publish(flags) => publish::bench(&flags),
        Command::Count { tokens, of } => count::show(tokens, of),
        Command::Prepare { folder, case, tiny } => cases::prepare(&folder, case, tiny).map(|line| {
            println!("{line}");
            true
        }),
        Command::Rank { folder, how } => ranks::rank(&folder, &how).and_then(|said| {
            println!("{}", serde_json::to_string(&said)?);
            Ok(true)
        }),
        Command::Step {
            folder,
            unshared,
            budget,
            keep,
            gradients,
        } => {
            let keep = keep << 20;
            let how = How { unshared, budget, keep };
            step::step(&folder, how, gradients.as_deref()).and_then(|said| {
                println!("{}", serde_json::to_string(&said)?);
                Ok(true)
            })
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("grpo-bench-trainer: {error}");
            ExitCode::FAILURE
        }
    }
}
