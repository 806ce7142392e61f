//! `grpo-learning`: runs the demo with several seeds and its two controls on a cluster, and reports whether it learns.
//! With `--arm` it compares runs of another kind with plain ones; with `--rates` it chooses a learning rate; with
//! `--agent` it measures whether the policy improves through that agent.
//!
//! Each run is applied, followed, copied and deleted before the next one, because two runs on one machine would only
//! slow each other down. A run with a finished store in the output folder is not repeated.

mod agents;
mod arms;
mod judge;
mod rates;

use clap::Parser;
use grpo_bench_report::{Bench, Row};
use grpo_crds::GrpoRun;
use grpo_demo::arms::Arm;
use grpo_demo::follow;
use grpo_demo::learning::{self, EVALUATION_SEED, Measured};
use grpo_demo::tasks::Tasks;
use grpo_demo::teacher::Agent;
use grpo_records::folder::RunFolder;
use grpo_testing::cluster::manifest::{RunManifest, delete_run};
use grpo_testing::cluster::{self, store};
use kube::Client;
use kube::api::Api;
use serde_json::json;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const RUN_LIMIT: Duration = Duration::from_secs(60 * 60);
const DELETE_LIMIT: Duration = Duration::from_secs(120);
const FROZEN_ITERATIONS: u32 = 2;

#[derive(Parser)]
#[command(version, about = "Measure learning over seeds, with controls")]
struct Options {
    #[arg(long, default_value = "docs/examples/demo.yaml")]
    manifest: PathBuf,
    #[arg(long, default_value = "out/learning")]
    out: PathBuf,
    #[arg(long, default_value = "out/demo/tasks")]
    tasks: PathBuf,
    #[arg(long, default_value = "bench/results/learning.json")]
    json: PathBuf,
    #[arg(long, short, default_value = "default")]
    namespace: String,
    #[arg(long, value_delimiter = ',', default_value = "0,1,2")]
    seeds: Vec<u64>,
    /// Samples of every fixed task.
    #[arg(long, default_value_t = 8)]
    samples: u32,
    /// Fixed tasks of the training split; of the held-out split all are measured.
    #[arg(long, default_value_t = 24)]
    limit: u32,
    /// Iterations of every run; default: the manifest's.
    #[arg(long)]
    iterations: Option<u32>,
    /// Do not measure learning: choose among these learning rates on the validation split.
    #[arg(long, value_delimiter = ',')]
    rates: Vec<f64>,
    /// Do not measure learning: compare runs of this kind with plain ones.
    #[arg(long, value_enum, conflicts_with = "rates")]
    arm: Option<Arm>,
    /// Do not measure learning: warm a policy up for this agent by a recorded script, and measure its gain.
    #[arg(long, value_enum, conflicts_with_all = ["rates", "arm"])]
    agent: Option<Agent>,
    /// Recorded samples of every task for the warm-up; default: by the agent's prompts.
    #[arg(long, requires = "agent")]
    recorded: Option<u32>,
    /// Leave the two controls out.
    #[arg(long)]
    without_controls: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    match measure(&Options::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("some bars are not met, or another rate is better than the manifest's");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn measure(options: &Options) -> Result<bool, Box<dyn Error>> {
    let client = cluster::connect().await?;
    let tasks = Tasks::read(&options.tasks)?;
    if !options.rates.is_empty() {
        return rates::choose(&client, options, &tasks).await;
    }
    if let Some(arm) = options.arm {
        return arms::compare(&client, options, arm, &tasks).await;
    }
    if let Some(agent) = options.agent {
        return agents::measure(&client, options, agent, &tasks).await;
    }
    let Some((first_seed, other_seeds)) = options.seeds.split_first() else {
        return Err("no seeds were given".into());
    };
    let base = base(options)?;
    let first = run(&client, options, seeded(&base, *first_seed, true)).await?;
    let before = learning::first_evaluations(&first)?;
    let mut measured = Measured::default();
    measured.seeds.insert(
        *first_seed,
        learning::outcome(&first, "the first seed", &before, &tasks)?,
    );
    for seed in other_seeds {
        let folder = run(&client, options, seeded(&base, *seed, false)).await?;
        measured.seeds.insert(
            *seed,
            learning::outcome(&folder, &format!("seed {seed}"), &before, &tasks)?,
        );
    }
    if !options.without_controls {
        let frozen = seeded(&base, *first_seed, false)
            .named("learning-rate-zero")
            .with("/algorithm/learningRate", json!(0.0))
            .with("/rollout/iterations", json!(FROZEN_ITERATIONS));
        let frozen = run(&client, options, frozen).await?;
        let mut differing = (0, 0);
        for (set, first_evaluation) in &before {
            let Some((_, weights)) = frozen.evaluations().into_iter().rev().find(|(name, _)| name == set) else {
                return Err(format!("the run at rate 0 has no evaluation of {set}").into());
            };
            let (d, n) = learning::differing_episodes((&first, &first_evaluation.weights), (&frozen, &weights), set)?;
            differing = (differing.0 + d, differing.1 + n);
        }
        measured.frozen = Some(differing);
        let shuffled = seeded(&base, *first_seed, false)
            .named("learning-shuffled")
            .with("/algorithm/control", json!("ShuffledRewards"));
        // The earlier measurements are worth writing down even without this one.
        match run(&client, options, shuffled).await {
            Ok(folder) => {
                measured.shuffled = Some(learning::outcome(&folder, "the shuffled control", &before, &tasks)?)
            }
            Err(error) => eprintln!("the control with shuffled rewards: {error}"),
        }
    }
    let rows = measured.rows();
    Bench::of_this_machine(&rows).write(&options.json)?;
    print(&rows, &options.json);
    let controlled = options.without_controls || measured.shuffled.is_some();
    Ok(controlled && measured.meets_the_bars())
}

fn print(rows: &[Row], written: &Path) {
    for row in rows {
        let value = row.value.map_or("-".into(), |v| format!("{v:.1}"));
        let peer = row.peer.iter().zip(row.peer_value);
        let peer: String = peer.map(|(peer, value)| format!("  ({peer}: {value:.1})")).collect();
        println!(
            "{:<70} {value:>8} {:<8} {}{peer}",
            row.figure,
            row.unit,
            row.bar.as_deref().unwrap_or("")
        );
    }
    println!("written to {}", written.display());
}

/// The demo's manifest with the fixed sets of this measurement.
fn base(options: &Options) -> Result<RunManifest, Box<dyn Error>> {
    let (samples, limit) = (options.samples, options.limit);
    let mut base = RunManifest::read(&options.manifest)?.for_each_set(|set| {
        set["samples"] = json!(samples);
        set["select"] = if set["name"] == "train" {
            json!({"limit": limit})
        } else {
            json!({})
        };
        set["seed"] = json!(EVALUATION_SEED);
        set["atStart"] = json!(false);
        set["atEnd"] = json!(true);
        if let Some(fields) = set.as_object_mut() {
            fields.remove("every");
        }
    });
    if let Some(iterations) = options.iterations {
        base = base.with("/rollout/iterations", json!(iterations));
    }
    Ok(base)
}

fn seeded(base: &RunManifest, seed: u64, at_start: bool) -> RunManifest {
    base.clone()
        .named(&format!("learning-seed-{seed}"))
        .with("/seed", json!(seed))
        .for_each_set(|set| set["atStart"] = json!(at_start))
}

/// Runs the manifest unless its finished store exists, and opens the store.
async fn run(client: &Client, options: &Options, manifest: RunManifest) -> Result<RunFolder, Box<dyn Error>> {
    run_within(client, options, manifest, RUN_LIMIT).await
}

/// The same, for a run that may take so long.
async fn run_within(
    client: &Client,
    options: &Options,
    manifest: RunManifest,
    limit: Duration,
) -> Result<RunFolder, Box<dyn Error>> {
    let to = options.out.join(manifest.name());
    if let Some(folder) = finished(&to) {
        println!("{}: taken from {}", manifest.name(), to.display());
        return Ok(folder);
    }
    println!("{}: applied", manifest.name());
    let run = manifest.apply(client, &options.namespace).await?;
    let runs = Api::namespaced(client.clone(), &options.namespace);
    let ended = follow::follow(&runs, manifest.name(), limit).await?;
    copy_whole(client, &ended.run, &to).await?;
    delete_run(client, &run, DELETE_LIMIT).await?;
    println!("{}: {:.0} s, store in {}", manifest.name(), ended.seconds, to.display());
    Ok(RunFolder::open(&to)?)
}

/// Copies a store under its name only once it is whole: the journal of half a copy may say that the run is finished.
async fn copy_whole(client: &Client, run: &GrpoRun, to: &Path) -> Result<(), Box<dyn Error>> {
    let half = to.with_extension("half");
    store::copy(client, run, &half).await?;
    if to.exists() {
        std::fs::remove_dir_all(to).map_err(|error| format!("emptying {}: {error}", to.display()))?;
    }
    std::fs::rename(&half, to).map_err(|error| format!("renaming {}: {error}", half.display()))?;
    Ok(())
}

fn finished(to: &Path) -> Option<RunFolder> {
    let folder = RunFolder::open(to).ok()?;
    folder
        .state
        .finished
        .as_ref()
        .is_some_and(|f| f.succeeded)
        .then_some(folder)
}
