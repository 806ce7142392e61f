//! Results of unmodified agents that ran through the driver: files that their test writes, a table, and figures.

use crate::{Bench, Row};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

/// One agent, through one API. `rollout-image/driver/tests/harnesses` writes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Harness {
    /// The agent's name; after a comma, the special part of its call.
    pub name: String,
    pub version: String,
    pub api: String,
    pub streams: bool,
    /// Tasks whose episodes are all resolved.
    pub tasks: Vec<String>,
    pub episodes: usize,
    pub turns: usize,
    pub rows: usize,
    /// Rows by the reason why they were opened.
    pub branches: BTreeMap<String, usize>,
    /// Turns with messages of the agent's own before them.
    pub injected: usize,
    pub replays: usize,
    /// Request fields that the run's settings overruled.
    pub overruled: Vec<String>,
    /// Seconds of all processes of the agent together.
    pub seconds: f64,
    pub sampled: usize,
    pub trained: usize,
    pub trained_not_sampled: usize,
    pub sampled_not_trained: usize,
}

/// Every file of a folder, in the order of their names. An error if one of them cannot be read.
pub fn read(folder: &Path) -> std::io::Result<Vec<Harness>> {
    let mut files: Vec<_> = std::fs::read_dir(folder)?.collect::<Result<_, _>>()?;
    files.sort_by_key(std::fs::DirEntry::file_name);
    let read = |file: std::fs::DirEntry| Ok(serde_json::from_slice(&std::fs::read(file.path())?)?);
    files.into_iter().map(read).collect()
}

impl Harness {
    fn first_row(&self) -> String {
        let streams = if self.streams { "streamed" } else { "whole" };
        format!("{} {}, {}, {streams}", self.name, self.version, self.api)
    }

    fn rows(&self) -> Vec<Row> {
        let figure = |what: &str| format!("1: {}: {what}", self.first_row());
        let count = |what: &str, value: usize, unit: &str, bar| Row::new(figure(what), Some(value as f64), unit, bar);
        let rows_of_episode = Some(self.rows as f64 / self.episodes.max(1) as f64);
        vec![
            count(
                "tasks whose episodes are all resolved",
                self.tasks.len(),
                "tasks",
                Some(">= 20"),
            ),
            count("tokens trained on", self.trained, "tokens", Some("> 0")),
            count(
                "trained tokens that were not sampled",
                self.trained_not_sampled,
                "tokens",
                Some("= 0"),
            ),
            count(
                "sampled tokens that are not trained on",
                self.sampled_not_trained,
                "tokens",
                Some("= 0"),
            ),
            Row::new(figure("rows of an episode"), rows_of_episode, "rows", None),
        ]
    }
}

/// The figures of all agents.
pub fn bench(harnesses: &[Harness]) -> Bench {
    let distinct = |of: &dyn Fn(&Harness) -> String| harnesses.iter().map(of).collect::<BTreeSet<_>>();
    let agents = distinct(&|harness| format!("{} {}", plain(&harness.name), harness.version));
    let apis = distinct(&|harness| harness.api.clone());
    let mut rows = vec![
        Row::new("1: agents", Some(agents.len() as f64), "agents", Some(">= 6")),
        Row::new("1: APIs", Some(apis.len() as f64), "APIs", Some(">= 3")),
    ];
    rows.extend(harnesses.iter().flat_map(Harness::rows));
    Bench::of_this_machine(&rows).with_versions(&Vec::from_iter(agents))
}

fn plain(name: &str) -> &str {
    name.split(',').next().unwrap_or(name)
}

/// A table for people.
pub fn table(harnesses: &[Harness]) -> String {
    let mut text = String::new();
    let line = |columns: [&str; 11]| {
        let [
            name,
            version,
            api,
            streams,
            tasks,
            episodes,
            turns,
            rows,
            replays,
            seconds,
            rest,
        ] = columns;
        format!(
            "{name:24} {version:9} {api:16} {streams:7} {tasks:>5} {episodes:>8} {turns:>6} {rows:>5} {replays:>7} {seconds:>7}  {rest}\n"
        )
    };
    text.push_str(&line([
        "agent",
        "version",
        "API",
        "streams",
        "tasks",
        "episodes",
        "turns",
        "rows",
        "replays",
        "s each",
        "branches; overruled",
    ]));
    for harness in harnesses {
        let mut rest = String::new();
        for (cause, number) in harness.branches.iter().filter(|(cause, _)| *cause != "First") {
            let _ = write!(rest, "{cause} {number} ");
        }
        if harness.injected > 0 {
            let _ = write!(rest, "messages injected {} ", harness.injected);
        }
        let _ = write!(rest, "; {}", harness.overruled.join(" "));
        let number = |value: usize| value.to_string();
        text.push_str(&line([
            &harness.name,
            &harness.version,
            &harness.api,
            if harness.streams { "yes" } else { "no" },
            &number(harness.tasks.len()),
            &number(harness.episodes),
            &number(harness.turns),
            &number(harness.rows),
            &number(harness.replays),
            &format!("{:.1}", harness.seconds / harness.episodes.max(1) as f64),
            &rest,
        ]));
    }
    text
}

#[cfg(test)]
mod tests;
