//! `kubectl grpo compare`: runs side by side, with the differences of their specs and their progress.
//!
//! Pure except for reading the runs: the input is GrpoRuns as the API server has them, with defaults, the output text.
//! Numbers come from the status; curves and episodes are in the stores.

use crate::arguments::Compare;
use crate::cluster::Cluster;
use crate::error::Error;
use crate::export::pass_at::wilson;
use crate::output;
use crate::text::table;
use grpo_crds::progress::Evaluation;
use grpo_crds::{GrpoRun, Progress};
use grpo_records::paths;
use grpo_records::show::harmless;
use kube::ResourceExt;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Shown for a value that a run does not have.
const ABSENT: &str = "-";
/// Longer values, such as lists of instances or templates, are cut.
const WIDEST: usize = 40;
/// So many evaluations fit into a status.
const EVALUATIONS_KEPT: usize = 64;

pub async fn compare(cluster: &Cluster, wanted: &Compare) -> Result<(), Error> {
    let mut runs = Vec::new();
    for name in &wanted.runs {
        runs.push(cluster.run(name).await?);
    }
    Ok(output::write(Path::new("-"), &screen(&runs))?)
}

/// The tables: differing fields, results, evaluations.
pub fn screen(runs: &[GrpoRun]) -> String {
    let names: Vec<String> = runs.iter().map(ResourceExt::name_any).collect();
    let shown = |title: &str, rows: Vec<Vec<String>>| {
        let head: Vec<&str> = std::iter::once(title).chain(names.iter().map(String::as_str)).collect();
        table(&head, &rows)
    };
    let differing = differences(runs);
    let mut out = match differing.is_empty() {
        true => "The specs are equal.\n".to_owned(),
        false => shown("SPEC", differing),
    };
    out += &format!("\n{}", shown("RESULT", results(runs)));
    let evaluated = evaluations(runs);
    if !evaluated.is_empty() {
        out += &format!("\n{}", shown("EVALUATION", evaluated));
        out += "\nRate of resolved episodes, number of episodes with a verdict, and the 95 % interval (Wilson).\n";
    }
    harmless(&out).into_owned()
}

/// Spec fields whose values differ, with each run's value.
fn differences(runs: &[GrpoRun]) -> Vec<Vec<String>> {
    let specs: Vec<BTreeMap<String, String>> = runs
        .iter()
        .map(|run| {
            let mut fields = BTreeMap::new();
            // A spec that was read from JSON always converts to JSON.
            flatten("", &serde_json::to_value(&run.spec).unwrap_or_default(), &mut fields);
            fields
        })
        .collect();
    let mut paths: Vec<&String> = specs.iter().flat_map(BTreeMap::keys).collect();
    paths.sort_unstable();
    paths.dedup();
    let values = |path: &str| -> Vec<Option<&String>> { specs.iter().map(|spec| spec.get(path)).collect() };
    let differ = paths.into_iter().filter(|path| {
        let values = values(path);
        values.iter().any(|value| *value != values[0])
    });
    differ
        .map(|path| {
            let cells = values(path).into_iter().map(|value| match value {
                Some(value) => crate::text::cut(value, WIDEST),
                None => ABSENT.to_owned(),
            });
            std::iter::once(path.clone()).chain(cells).collect()
        })
        .collect()
}

/// Every value below a field, by its path; a list of plain values counts as one value.
fn flatten(at: &str, value: &Value, fields: &mut BTreeMap<String, String>) {
    let below = |name: &str| match at {
        "" => name.to_owned(),
        at => format!("{at}.{name}"),
    };
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (name, value) in map {
                flatten(&below(name), value, fields);
            }
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            for (index, item) in items.iter().enumerate() {
                // Sets are identified by their names, because their order may differ.
                let name = item["name"].as_str().map_or_else(|| index.to_string(), str::to_owned);
                flatten(&below(&name), item, fields);
            }
        }
        Value::Null => {}
        Value::String(text) => {
            fields.insert(at.to_owned(), text.lines().collect::<Vec<_>>().join(" "));
        }
        other => {
            fields.insert(at.to_owned(), other.to_string());
        }
    }
}

/// Phase and the numbers of the last finished iteration.
fn results(runs: &[GrpoRun]) -> Vec<Vec<String>> {
    let row = |name: &str, of: &dyn Fn(&GrpoRun) -> Option<String>| -> Vec<String> {
        let cells = runs.iter().map(|run| of(run).unwrap_or_else(|| ABSENT.to_owned()));
        std::iter::once(name.to_owned()).chain(cells).collect()
    };
    let number = |of: fn(&Progress) -> Option<f64>, digits: usize| {
        move |run: &GrpoRun| of(progress(run)?).map(|value| format!("{value:.digits$}"))
    };
    let iteration = |run: &GrpoRun| {
        let (at, of) = progress(run).and_then(|progress| progress.iteration.zip(progress.iterations))?;
        Some(format!("{at}/{of}"))
    };
    let rows = [
        row("phase", &|run| Some(format!("{:?}", run.status.as_ref()?.phase?))),
        row("iteration", &iteration),
        row("weights", &|run| progress(run)?.weights.clone()),
        row("resolved", &number(|progress| progress.resolved_rate, 2)),
        row("reward", &number(|progress| progress.reward, 3)),
        row("loss", &number(|progress| progress.loss, 4)),
        row("voids", &|run| progress(run)?.void.map(|void| void.to_string())),
        row("logprob gap", &|run| {
            progress(run)?.logprob_gap_max.map(|gap| format!("{gap:.1e}"))
        }),
    ];
    // A run without a trainer has no loss.
    let told = |row: &Vec<String>| row.iter().skip(1).any(|cell| cell != ABSENT);
    rows.into_iter().filter(told).collect()
}

fn progress(run: &GrpoRun) -> Option<&Progress> {
    run.status.as_ref()?.progress.as_ref()
}

/// The first and the last evaluation of each set.
fn evaluations(runs: &[GrpoRun]) -> Vec<Vec<String>> {
    let of_set = |run: &GrpoRun, set: &str| -> Vec<String> {
        let all = progress(run)
            .map(|progress| progress.evaluations.as_slice())
            .unwrap_or_default();
        let told = all.iter().filter(|evaluation| evaluation.set == set);
        let told = told.map(|evaluation| {
            let episodes = f64::from(evaluation.episodes);
            let (low, high) = wilson(evaluation.resolved_rate, episodes);
            format!(
                "{:.2} of {} ({low:.2} to {high:.2}) {}",
                evaluation.resolved_rate, evaluation.episodes, evaluation.weights
            )
        });
        let mut told: Vec<String> = told.collect();
        if let Some(first) = told.first_mut()
            && !has_first(all, set)
        {
            *first += &format!(", first of the last {EVALUATIONS_KEPT}");
        }
        told
    };
    let evaluated = runs
        .iter()
        .filter_map(progress)
        .flat_map(|progress| &progress.evaluations);
    let mut sets: Vec<&str> = evaluated.map(|evaluation| evaluation.set.as_str()).collect();
    sets.sort_unstable();
    sets.dedup();
    let mut rows = Vec::new();
    for set in sets {
        let told: Vec<Vec<String>> = runs.iter().map(|run| of_set(run, set)).collect();
        let cells = |of: fn(&Vec<String>) -> Option<&String>| -> Vec<String> {
            let cells = told
                .iter()
                .map(|all| of(all).cloned().unwrap_or_else(|| ABSENT.to_owned()));
            cells.collect()
        };
        let first = cells(|all| all.first());
        let last = cells(|all| all.last().filter(|_| all.len() > 1));
        rows.push(std::iter::once(format!("{set}, first")).chain(first).collect());
        if last.iter().any(|cell| cell != ABSENT) {
            rows.push(std::iter::once(format!("{set}, last")).chain(last).collect());
        }
    }
    rows
}

/// Whether a list has the first evaluation of a set. A driver of an older version kept only the newest ones of all
/// sets: its full list begins with a later version, and has no gap behind it.
fn has_first(all: &[Evaluation], set: &str) -> bool {
    if all.len() < EVALUATIONS_KEPT {
        return true;
    }
    let of_set = all.iter().filter(|evaluation| evaluation.set == set);
    let steps: Vec<u32> = of_set
        .map(|evaluation| paths::step_of_weights(&evaluation.weights).unwrap_or(0))
        .collect();
    let between: Vec<u32> = steps.windows(2).map(|two| two[0].abs_diff(two[1])).collect();
    let first = steps.first().copied().unwrap_or(0);
    match between.as_slice() {
        [] => first == 0,
        [every] => first <= *every,
        [gap, every, ..] => first <= *every || gap > every,
    }
}

#[cfg(test)]
mod tests;
