//! All runs as a table, with the cause of each wait.

use super::waits::waits;
use crate::text::{cut, since, table};
use grpo_crds::GrpoRun;
use grpo_crds::grpo_run::Phase;
use grpo_records::show::harmless;
use jiff::Timestamp;
use kube::ResourceExt;

const MESSAGE: usize = 60;

/// One line per run, in the order of their names.
pub fn overview(runs: &[GrpoRun], namespaces: bool, now: Timestamp) -> String {
    let mut runs: Vec<&GrpoRun> = runs.iter().collect();
    runs.sort_by_key(|run| (run.namespace(), run.name_any()));
    let mut head = vec![
        "NAME",
        "PHASE",
        "STAGE",
        "ITERATION",
        "EPISODES",
        "RESOLVED",
        "WEIGHTS",
        "AGE",
        "WAITS FOR",
    ];
    if namespaces {
        head.insert(0, "NAMESPACE");
    }
    let rows: Vec<Vec<String>> = runs
        .iter()
        .map(|run| {
            let mut row = row(run, now);
            if namespaces {
                row.insert(0, run.namespace().unwrap_or_default());
            }
            row
        })
        .collect();
    harmless(&table(&head, &rows)).into_owned()
}

fn row(run: &GrpoRun, now: Timestamp) -> Vec<String> {
    let status = run.status.clone().unwrap_or_default();
    let progress = status.progress.clone().unwrap_or_default();
    let display = progress.clone().displayed().display.unwrap_or_default();
    // A run without a trainer has no iterations.
    let iteration = display.iteration.filter(|_| run.spec.mode.needs_trainer());
    let stage = progress.stage.filter(|_| status.phase == Some(Phase::Running));
    let made = run.metadata.creation_timestamp.as_ref();
    vec![
        run.name_any(),
        status.phase.map_or_else(String::new, |phase| format!("{phase:?}")),
        stage.map_or_else(String::new, |stage| format!("{stage:?}")),
        iteration.unwrap_or_default(),
        display.episodes.unwrap_or_default(),
        display.resolved.unwrap_or_default(),
        progress.weights.unwrap_or_default(),
        made.map_or_else(String::new, |made| since(made.0, now)),
        why(run),
    ]
}

/// The cause of a run's wait or failure, in a few words.
fn why(run: &GrpoRun) -> String {
    let Some(status) = &run.status else {
        return String::new();
    };
    let waiting = waits(status).into_iter().next().map(|wait| match wait.thing.as_str() {
        "" => wait.message,
        thing => format!("{thing}: {}", wait.message),
    });
    let failed = || status.message.clone().filter(|_| status.phase == Some(Phase::Failed));
    let words = waiting.or_else(failed).unwrap_or_default();
    cut(words.lines().next().unwrap_or_default(), MESSAGE)
}
