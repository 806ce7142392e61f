//! kubectl-grpo: the program that kubectl starts for `kubectl grpo …`. Exit status 0: success; 1: an error; 2: wrong
//! arguments; 3 and 4 of `wait`: the run failed, or has not ended.

use clap::Parser;
use grpo_records::show::{self, Detail};
use kubectl_grpo::arguments::tools::{Copy, Form, Prepull, Tasks, Validated, WeightsFormat};
use kubectl_grpo::arguments::{Arguments, ClusterOptions, Episodes, RecordsOptions, Show, What};
use kubectl_grpo::cluster::Cluster;
use kubectl_grpo::error::Error;
use kubectl_grpo::pods::driver_image;
use kubectl_grpo::prepull::pulls::{Limits, State};
use kubectl_grpo::prepull::{self, PrepullRequest, Prepulled};
use kubectl_grpo::records::{self, Opened, Source};
use kubectl_grpo::{
    compare, completion, copy, episodes, explain, export, logs, output, plan, sandbox_pool, status, tasks, ui,
    validated, wait,
};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = tokio::select! {
        done = act(&arguments) => done,
        // A pod that reads a store is deleted before this program ends: the code that created the pod waits for the
        // signal.
        _ = tokio::signal::ctrl_c(), if !makes_a_pod(&arguments.what) => Err(Error::Interrupted),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(Error::Interrupted) => ExitCode::from(Error::Interrupted.exit_code()),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn makes_a_pod(what: &What) -> bool {
    let reads_only = matches!(what, What::Status(_) | What::Logs(_) | What::Compare(_) | What::Wait(_));
    let is_offline = matches!(
        what,
        What::Plan(_) | What::Explain(_) | What::Completion(_) | What::Complete(_)
    );
    !reads_only && !is_offline
}

async fn act(arguments: &Arguments) -> Result<(), Error> {
    match &arguments.what {
        What::Status(wanted) => status::status(&Cluster::connect(&arguments.cluster).await?, wanted).await,
        What::Logs(wanted) => logs::logs(&Cluster::connect(&arguments.cluster).await?, wanted).await,
        What::Wait(wanted) => wait::wait(&Cluster::connect(&arguments.cluster).await?, wanted).await,
        What::Compare(wanted) => compare::compare(&Cluster::connect(&arguments.cluster).await?, wanted).await,
        What::Explain(wanted) => {
            let words = explain::explain(wanted.reason.as_deref())?;
            Ok(output::write(Path::new("-"), &words)?)
        }
        What::Completion(wanted) => Ok(output::write(Path::new("-"), &completion::script(wanted.shell))?),
        What::Complete(wanted) => Ok(output::write(Path::new("-"), &completion::candidates(&wanted.words))?),
        What::Plan(wanted) => plan::plan(&arguments.cluster, wanted).await,
        What::Episodes(wanted) => {
            let opened = open(&arguments.cluster, wanted.run.as_deref(), &wanted.records).await?;
            with(opened, async |source| list(source, wanted).await).await
        }
        What::Show(wanted) => {
            let (run, words) = wanted.checked().map_err(Error::Usage)?;
            let opened = open(&arguments.cluster, run.as_deref(), &wanted.records).await?;
            with(opened, async |source| tell(source, wanted, &words).await).await
        }
        What::Ui(wanted) => ui::ui(&arguments.cluster, wanted).await,
        What::Export(wanted) => {
            let (run, dest) = wanted.checked().map_err(Error::Usage)?;
            let opened = match run {
                Some(run) if wanted.records.from.is_none() => {
                    let cluster = Cluster::connect(&arguments.cluster).await?;
                    let run = cluster.run(&run).await?;
                    records::of_run_until(&cluster, &run, &wanted.records, copy::DEADLINE).await?
                }
                run => open(&arguments.cluster, run.as_deref(), &wanted.records).await?,
            };
            let work = async |source: &mut Source| {
                let words = export::run(source, wanted, &dest).await?;
                Ok(output::write(Path::new("-"), &words)?)
            };
            with(opened, work).await
        }
        What::Tasks(wanted) => list_tasks(Cluster::connect(&arguments.cluster).await?, wanted).await,
        What::Validated(wanted) => list_fit(&arguments.cluster, wanted).await,
        What::Prepull(wanted) => pull(Cluster::connect(&arguments.cluster).await?, wanted).await,
        What::Copy(wanted) => copy_out(&Cluster::connect(&arguments.cluster).await?, wanted).await,
    }
}

async fn copy_out(cluster: &Cluster, wanted: &Copy) -> Result<(), Error> {
    let options = RecordsOptions {
        from: None,
        reader_image: wanted.reader_image.clone(),
    };
    let run = cluster.run(&wanted.run).await?;
    let mut opened = records::of_run_until(cluster, &run, &options, copy::DEADLINE).await?;
    let copied = tokio::select! {
        copied = copy::copy(&mut opened.source, wanted) => copied,
        _ = tokio::signal::ctrl_c() => Err(Error::Interrupted),
    };
    let closed = opened.close().await;
    let mut copied = copied.and_then(|copied| closed.map(|()| copied))?;
    if let (Some(WeightsFormat::Merged), Some(base), Some(adapter)) = (wanted.format, &wanted.base, &copied.weights) {
        copied.weights = Some(tokio::select! {
            merged = copy::merged(base, adapter) => merged?,
            _ = tokio::signal::ctrl_c() => return Err(Error::Interrupted),
        });
    }
    Ok(output::write(Path::new("-"), &copied.in_words(&wanted.dest))?)
}

async fn pull(mut cluster: Cluster, wanted: &Prepull) -> Result<(), Error> {
    let mut pull_secrets = wanted.pull_secret.clone();
    let (images, pool) = match &wanted.images {
        Some(file) => (prepull::read_images(file)?, None),
        None => {
            let of = tasks::Wanted {
                form: Form::Images,
                reader_image: wanted.reader_image.as_ref(),
                ..tasks::Wanted::default()
            };
            let found = tasks::of(cluster.clone(), &wanted.of, &of).await?;
            pull_secrets.extend(found.pull_secrets);
            // Those that the operator gives every sandbox.
            let of_cluster = driver_image::of_cluster(&cluster).await.ok().flatten();
            let of_cluster = of_cluster.into_iter().flat_map(|found| found.pull_secrets);
            for secret in of_cluster.map(|secret| secret.name) {
                if !pull_secrets.contains(&secret) {
                    pull_secrets.push(secret);
                }
            }
            cluster.namespace = found.pool_namespace;
            (tasks::sets::images(&found.sets, found.pool.as_ref()), found.pool)
        }
    };
    let order = PrepullRequest {
        images,
        selector: wanted.selector.clone(),
        limits: Limits {
            parallel: wanted.parallel,
            retries: wanted.retries,
            deadline: wanted.deadline,
        },
        pull_secrets,
        overlay: sandbox_pool::overlay(pool.as_ref()),
        look: prepull::LOOK,
    };
    let began = Instant::now();
    let Prepulled { pulls, ended } = prepull::prepull(&cluster, &prepull::call_name(), &order).await?;
    output::write(Path::new("-"), &prepull::report::result(&pulls, began.elapsed()))?;
    ended?;
    let failed = pulls
        .iter()
        .filter(|pull| matches!(pull.state, State::Failed { .. }))
        .count();
    match failed {
        0 => Ok(()),
        failed => Err(Error::PullsFailed {
            failed,
            all: pulls.len(),
        }),
    }
}

async fn list_tasks(cluster: Cluster, wanted: &Tasks) -> Result<(), Error> {
    let of = tasks::Wanted {
        sets: &wanted.set,
        form: wanted.output,
        reader_image: wanted.reader_image.as_ref(),
    };
    let found = tasks::of(cluster, &wanted.of, &of).await?;
    let text = tasks::sets::shown(&found.sets, wanted.output, found.pool.as_ref());
    Ok(output::write(&wanted.out, &text)?)
}

/// Refuses a run that cannot have such a list before creating a pod for it.
async fn list_fit(options: &ClusterOptions, wanted: &Validated) -> Result<(), Error> {
    let (opened, known) = match (&wanted.run, &wanted.records.from) {
        (Some(name), None) => {
            let cluster = Cluster::connect(options).await?;
            let set = validated::set_of_run(&cluster.run(name).await?, wanted.set.as_deref())?;
            (records::of_run(&cluster, name, &wanted.records).await?, Some(set))
        }
        (run, _) => (open(options, run.as_deref(), &wanted.records).await?, None),
    };
    let work = async |source: &mut Source| {
        let text = match (&wanted.run, &known) {
            (Some(run), Some(set)) => validated::list(source, run, set).await?,
            _ => validated::list_of_copy(source, wanted.set.as_deref()).await?,
        };
        Ok(output::write(&wanted.out, &text)?)
    };
    with(opened, work).await
}

async fn open(cluster: &ClusterOptions, run: Option<&str>, options: &RecordsOptions) -> Result<Opened, Error> {
    match (&options.from, run) {
        (Some(dir), _) => records::folder(dir),
        (None, Some(run)) => records::of_run(&Cluster::connect(cluster).await?, run, options).await,
        (None, None) => Err(Error::Usage("name a run, or give --from DIR".into())),
    }
}

/// Runs `work` on the records, then closes them, also after an error or Ctrl-C.
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
    let (turns, judged) = source.turns_and_votes(&path).await?;
    let detail = Detail {
        tokens: wanted.tokens,
        votes: wanted.votes,
    };
    Ok(anstream::stdout().write_all(show::text(&view, &turns, &judged, detail).as_bytes())?)
}
