//! `grpo-demo`: follows a run, reports on it, verifies its report and shows its episodes.

use clap::{Args, Parser, Subcommand};
use grpo_crds::GrpoRun;
use grpo_demo::claims;
use grpo_demo::follow;
use grpo_demo::report::Report;
use grpo_demo::report_text;
use grpo_demo::show;
use grpo_demo::tasks::Tasks;
use grpo_records::folder::RunFolder;
use grpo_testing::cluster;
use grpo_verify as verify;
use kube::api::Api;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

#[derive(Parser)]
#[command(version, about = "Follow, report on, verify and look into GRPO runs")]
struct Command {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Follow a run until it ends; fails with its own words when it fails.
    Follow {
        #[command(flatten)]
        run: Which,
        /// Give up after so many minutes.
        #[arg(long, default_value_t = 60)]
        minutes: u64,
        /// Write the seconds it took into this file.
        #[arg(long)]
        seconds_to: Option<PathBuf>,
    },
    /// Copy a run's store out of the cluster.
    Copy {
        #[command(flatten)]
        run: Which,
        #[arg(long)]
        to: PathBuf,
    },
    /// Curve, rates with intervals, what was learnt; writes demo-report.json.
    Report {
        #[command(flatten)]
        store: Store,
        /// Where the JSON goes.
        #[arg(long, default_value = "demo-report.json")]
        json: PathBuf,
        #[arg(long)]
        setup_seconds: Option<f64>,
        #[arg(long)]
        run_seconds: Option<f64>,
    },
    /// Recompute rates, voids, verdicts, groups and iterations from token ids and grader logs alone.
    Verify {
        #[command(flatten)]
        store: Store,
        /// The report whose numbers are checked too.
        #[arg(long)]
        report: Option<PathBuf>,
        #[arg(long, default_value = "rollout-image/grader/worker.py")]
        worker: PathBuf,
        /// Folder of the grader's packages; default: the one in the cache.
        #[arg(long)]
        grader_site: Option<PathBuf>,
    },
    /// One episode turn by turn; without a name, a list of all.
    Show {
        #[arg(long, default_value = "out/demo/store")]
        store: PathBuf,
        /// Any part of an episode's folder that names it.
        episode: Option<String>,
    },
}

#[derive(Args)]
struct Which {
    #[arg(long, short, default_value = "default")]
    namespace: String,
    name: String,
}

#[derive(Args)]
struct Store {
    /// Folder of the copied store.
    #[arg(long, default_value = "out/demo/store")]
    store: PathBuf,
    /// Folder of the task rows.
    #[arg(long, default_value = "out/demo/tasks")]
    tasks: PathBuf,
}

#[tokio::main]
async fn main() -> ExitCode {
    match act(Command::parse().what).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn act(what: What) -> Result<ExitCode, Box<dyn Error>> {
    match what {
        What::Follow {
            run,
            minutes,
            seconds_to,
        } => {
            let runs: Api<GrpoRun> = Api::namespaced(cluster::connect().await?, &run.namespace);
            let ended = follow::follow(&runs, &run.name, Duration::from_secs(minutes * 60)).await?;
            if let Some(path) = seconds_to {
                std::fs::write(path, format!("{:.1}\n", ended.seconds))?;
            }
        }
        What::Copy { run, to } => {
            let client = cluster::connect().await?;
            let runs: Api<GrpoRun> = Api::namespaced(client.clone(), &run.namespace);
            let object = runs.get(&run.name).await?;
            cluster::store::copy(&client, &object, &to).await?;
            println!("the store of {} lies in {}", run.name, to.display());
        }
        What::Report {
            store,
            json,
            setup_seconds,
            run_seconds,
        } => {
            let folder = RunFolder::open(&store.store)?;
            let mut report = Report::of(&folder, &Tasks::read(&store.tasks)?)?;
            report.setup_seconds = setup_seconds;
            report.run_seconds = run_seconds.or(report.run_seconds);
            std::fs::write(&json, serde_json::to_string_pretty(&report)? + "\n")?;
            let example = show::worth_reading(&folder)?;
            let example = example.as_ref().map(|e| e.path.as_str());
            print!("{}", report_text::text(&report, &store.store, &json, example));
        }
        What::Verify {
            store,
            report,
            worker,
            grader_site,
        } => {
            let tasks = Tasks::read(&store.tasks)?;
            let claimed = report.map(|path| written(&path)).transpose()?;
            let sources = verify::Sources {
                tasks: tasks.rows.clone(),
                grader: verify::grader::GraderCommand {
                    worker,
                    site: grader_site.unwrap_or_else(|| cluster::cache().join("grader-site")),
                },
            };
            let folder = RunFolder::open(&store.store)?;
            let mut checks = verify::verify(&folder, &sources)?;
            if let Some(claimed) = &claimed {
                checks.push(claims::check(claimed, &Report::of(&folder, &tasks)?));
            }
            print!("{}", verify::text(&checks));
            if !verify::holds(&checks) {
                eprintln!("what the run claims does not follow from its records");
                return Ok(ExitCode::FAILURE);
            }
            println!("everything that was claimed follows from token ids and graders' logs");
        }
        What::Show { store, episode } => {
            let folder = RunFolder::open(&store)?;
            match episode {
                Some(name) => print!("{}", show::text(&folder, &show::find(&folder, &name)?)?),
                None => print!("{}", show::list(&folder)?),
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads an existing report.
fn written(path: &Path) -> Result<Report, Box<dyn Error>> {
    let unread = |why: &dyn Error| format!("{} is no report: {why}; `grpo-demo report` writes one", path.display());
    let bytes = std::fs::read(path).map_err(|error| unread(&error))?;
    Ok(serde_json::from_slice(&bytes).map_err(|error| unread(&error))?)
}
