//! kubectl-grpo: what kubectl starts for `kubectl grpo …`. Exit status 0: it is shown; 1: it could not be; 2: it was
//! asked wrongly.

use clap::Parser;
use grpo_records::show::{self, Detail};
use kubectl_grpo::arguments::{Arguments, ClusterOptions, Episodes, RecordsOptions, Show, What};
use kubectl_grpo::cluster::Cluster;
use kubectl_grpo::error::Error;
use kubectl_grpo::records::{self, Opened, Source};
use kubectl_grpo::{episodes, logs, status};
use std::io::Write;
use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = tokio::select! {
        done = act(&arguments) => done,
        // A pod that reads a store is deleted before this program ends: there the signal is waited for where the pod is
        // known.
        _ = tokio::signal::ctrl_c(), if !makes_a_pod(&arguments.what) => Err(Error::Interrupted),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(Error::Interrupted) => ExitCode::from(130),
        Err(error @ Error::Usage(_)) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn makes_a_pod(what: &What) -> bool {
    matches!(what, What::Episodes(_) | What::Show(_))
}

async fn act(arguments: &Arguments) -> Result<(), Error> {
    match &arguments.what {
        What::Status(wanted) => status::status(&Cluster::connect(&arguments.cluster).await?, wanted).await,
        What::Logs(wanted) => logs::logs(&Cluster::connect(&arguments.cluster).await?, wanted).await,
        What::Episodes(wanted) => {
            let opened = open(&arguments.cluster, wanted.run.as_deref(), &wanted.records).await?;
            with(opened, async |source| list(source, wanted).await).await
        }
        What::Show(wanted) => {
            let (run, words) = wanted.checked().map_err(Error::Usage)?;
            let opened = open(&arguments.cluster, run.as_deref(), &wanted.records).await?;
            with(opened, async |source| tell(source, wanted, &words).await).await
        }
    }
}

async fn open(cluster: &ClusterOptions, run: Option<&str>, options: &RecordsOptions) -> Result<Opened, Error> {
    match (&options.from, run) {
        (Some(dir), _) => records::folder(dir),
        (None, Some(run)) => records::of_run(&Cluster::connect(cluster).await?, run, options).await,
        (None, None) => Err(Error::Usage("name a run, or give --from DIR".into())),
    }
}

/// Does something with the records, and closes them whatever came of it.
async fn with(mut opened: Opened, work: impl AsyncFnOnce(&mut Source) -> Result<(), Error>) -> Result<(), Error> {
    let done = tokio::select! {
        done = work(&mut opened.source) => done,
        _ = tokio::signal::ctrl_c() => Err(Error::Interrupted),
    };
    let closed = opened.close().await;
    done.and(closed)
}

async fn list(source: &mut Source, wanted: &Episodes) -> Result<(), Error> {
    let listing = episodes::list(source, &wanted.part, &wanted.outcome, wanted.limit).await?;
    Ok(anstream::stdout().write_all(episodes::text(&listing).as_bytes())?)
}

async fn tell(source: &mut Source, wanted: &Show, words: &str) -> Result<(), Error> {
    let path = episodes::find(source, &wanted.part, words).await?;
    let view = source.episode(&path).await?;
    let turns = source.turns(&path).await?;
    let detail = Detail { tokens: wanted.tokens };
    Ok(anstream::stdout().write_all(show::text(&view, &turns, detail).as_bytes())?)
}
