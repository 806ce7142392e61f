//! The tasks that a run has or would have: ids, images, completed rows, and skipped rows.
//!
//! ```text
//! RUN ──► reports and rows of its store ──┐
//!     rows that are the dataset's own ──┐ ├──► sets ──► table, JSON, ids, images or rows
//! -f FILE ──► a pod: grpo-driver tasks ─┴─┘
//! ```
//!
//! Only the driver's code reads and completes rows: in the run's driver, or in a [`pod`] of its image.

mod answer;
pub mod pod;
pub mod sets;
mod stored;

pub use self::answer::ask;
pub use self::stored::{Stored, read as read_stored};

use self::sets::TaskSet;
use crate::arguments::RecordsOptions;
use crate::arguments::tools::{Form, RunOrFile};
use crate::cluster::Cluster;
use crate::error::Error;
use crate::pods::driver_image::{self, DriverImage};
use crate::pods::serving::ServingPod;
use crate::{manifest, records, sandbox_pool};
use grpo_contracts::RunConfig;
use grpo_contracts::task_sets::{TRAIN, TasksQuestion, evaluation};
use grpo_crds::{GrpoRun, SandboxPoolSpec};
use kube::ResourceExt;
use std::time::Duration;

/// Deadline for the pod's start: a dataset may be a large image.
const STARTS_WITHIN: Duration = Duration::from_secs(600);
/// A reader pod ends after this time.
const READS_WITHIN: Duration = Duration::from_secs(3600);

/// The wanted facts about a run's tasks.
#[derive(Clone, Debug, Default)]
pub struct Wanted<'a> {
    /// Names as in reports; empty for all sets.
    pub sets: &'a [String],
    pub form: Form,
    pub reader_image: Option<&'a String>,
}

/// The answer.
#[derive(Clone, Debug, PartialEq)]
pub struct TasksOfRun {
    pub sets: Vec<TaskSet>,
    /// The pool of the run's sandboxes, and its namespace.
    pub pool: Option<SandboxPoolSpec>,
    pub pool_namespace: String,
    /// Secrets in that namespace with which nodes pull the images.
    pub pull_secrets: Vec<String>,
}

impl TasksOfRun {
    fn new(cluster: &Cluster, run: &GrpoRun, pool: Option<SandboxPoolSpec>, sets: Vec<TaskSet>) -> Self {
        Self {
            sets,
            pool_namespace: sandbox_pool::namespace(cluster, run),
            pull_secrets: sandbox_pool::pull_secrets(run, pool.as_ref()),
            pool,
        }
    }
}

/// The tasks of a run of the cluster, or of a manifest. Deletes every pod that it creates.
pub async fn of(mut cluster: Cluster, of: &RunOrFile, wanted: &Wanted<'_>) -> Result<TasksOfRun, Error> {
    let say = |words: String| eprintln!("{words}");
    match (&of.run, &of.file) {
        (Some(name), None) => {
            let run = cluster.run(name).await?;
            let pool = sandbox_pool::of_run(&cluster, &run, &[], say).await?;
            let sets = of_run(&cluster, &run, wanted).await?;
            Ok(TasksOfRun::new(&cluster, &run, pool, sets))
        }
        (None, Some(file)) => {
            let mut manifest = manifest::read(file, cluster.given.as_deref())?;
            let namespace = manifest.run.metadata.namespace.get_or_insert(cluster.namespace);
            cluster.namespace = namespace.clone();
            let sets = wanted_sets(&manifest.run, wanted.sets)?;
            let pool = sandbox_pool::of_run(&cluster, &manifest.run, &manifest.pools, say).await?;
            let sets = in_a_pod(&cluster, &manifest.run, sets, wanted.reader_image).await?;
            Ok(TasksOfRun::new(&cluster, &manifest.run, pool, sets))
        }
        _ => Err(Error::Usage("name a run, or give its manifest with -f FILE".into())),
    }
}

/// The names of the wanted sets of the run, as in reports.
pub(crate) fn wanted_sets(run: &GrpoRun, wanted: &[String]) -> Result<Vec<String>, Error> {
    let tasks = &run.spec.tasks;
    let train = tasks.train.iter().map(|_| TRAIN.to_owned());
    let all: Vec<String> = train
        .chain(tasks.evaluate.iter().map(|set| evaluation(&set.name)))
        .collect();
    match wanted.iter().find(|name| !all.contains(name)) {
        Some(name) => Err(Error::NoSet {
            run: run.name_any(),
            set: name.clone(),
            there: all.join(", "),
        }),
        None if wanted.is_empty() => Ok(all),
        None => Ok(all.into_iter().filter(|name| wanted.contains(name)).collect()),
    }
}

/// The content of the run's store. Rows that the store leaves to the dataset are read again there, at the run's
/// commits.
async fn of_run(cluster: &Cluster, run: &GrpoRun, wanted: &Wanted<'_>) -> Result<Vec<TaskSet>, Error> {
    let names = wanted_sets(run, wanted.sets)?;
    let options = RecordsOptions {
        from: None,
        reader_image: wanted.reader_image.cloned(),
    };
    let mut opened = records::of_run_until(cluster, run, &options, READS_WITHIN).await?;
    let name = run.name_any();
    let read = tokio::select! {
        read = stored::read(&mut opened.source, &name, &names, wanted.form.needs_rows()) => read,
        _ = tokio::signal::ctrl_c() => Err(Error::Interrupted),
    };
    let closed = opened.close().await;
    let Stored { mut sets, without_rows } = read.and_then(|read| closed.map(|()| read))?;
    if wanted.form.needs_rows() && !without_rows.is_empty() {
        let words = without_rows.join(", ");
        eprintln!("The store has no rows of {words}: they are those of the dataset, and are read there");
        let pinned = at_the_runs_commits(run);
        for read in in_a_pod(cluster, &pinned, without_rows, wanted.reader_image).await? {
            if let Some(set) = sets.iter_mut().find(|set| set.report.set == read.report.set) {
                set.rows = read.rows;
            }
        }
    }
    Ok(sets)
}

/// The run with the dataset revisions that its driver pinned.
fn at_the_runs_commits(run: &GrpoRun) -> GrpoRun {
    let mut pinned = run.clone();
    let progress = run.status.as_ref().and_then(|status| status.progress.as_ref());
    let revisions = progress.map_or(&[][..], |progress| &progress.revisions);
    let tasks = &mut pinned.spec.tasks;
    let train = tasks.train.iter_mut().map(|set| &mut set.dataset);
    let datasets = train.chain(tasks.evaluate.iter_mut().map(|set| &mut set.dataset));
    for hub in datasets.filter_map(|dataset| dataset.hub.as_mut()) {
        let mut of_repo = revisions.iter().filter(|revision| revision.repo == hub.repo);
        // With two revisions of one repository, this set's revision is unknown.
        if let (Some(revision), None) = (of_repo.next(), of_repo.next()) {
            hub.revision = Some(revision.commit.clone());
        }
    }
    pinned
}

/// Reads the rows in a pod.
async fn in_a_pod(
    cluster: &Cluster,
    run: &GrpoRun,
    sets: Vec<String>,
    image: Option<&String>,
) -> Result<Vec<TaskSet>, Error> {
    let mut driver = found_image(cluster, image).await?;
    if let Some(image) = image {
        driver.image.clone_from(image);
    }
    let config = RunConfig::of(run);
    let purpose = format!("reads the tasks of GrpoRun {}", config.name);
    eprintln!(
        "A pod reads the tasks of GrpoRun {} with image {}",
        config.name, driver.image
    );
    let (serving, mut connection) =
        ServingPod::start(cluster, pod::pod(&config, &driver), purpose, STARTS_WITHIN).await?;
    let question = TasksQuestion { config, sets };
    let mut last = String::new();
    let say = |words: &str| {
        if last != words {
            words.clone_into(&mut last);
            eprintln!("{words}");
        }
    };
    let answered = tokio::select! {
        answered = answer::ask(&mut connection, &question, say) => answered,
        _ = tokio::signal::ctrl_c() => Err(Error::Interrupted),
    };
    let removed = serving.remove().await;
    answered.and_then(|sets| removed.map(|()| sets))
}

/// With a `given` image, the other settings of a neighbour are still useful.
async fn found_image(cluster: &Cluster, given: Option<&String>) -> Result<DriverImage, Error> {
    match (driver_image::of_cluster(cluster).await?, given) {
        (Some(found), _) => Ok(found),
        (None, Some(_)) => Ok(DriverImage::default()),
        (None, None) => Err(Error::NoDriverImage {
            namespace: cluster.namespace.clone(),
        }),
    }
}

#[cfg(test)]
mod tests;
