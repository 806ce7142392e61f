//! `kubectl grpo export`: episodes in the file formats of other projects, one sample of each task.
//!
//! This module writes first what follows from verdicts alone. Then it reads episodes one after another: the two files
//! that have every sample grow with each, because the conversations of an evaluation may not fit into memory.
//! [`mini_swe_agent`], [`atif`] and [`inspect`] define the content. With a format, [`dataset`] writes all samples as
//! rows for supervised training instead.

use crate::arguments::Export;
use crate::episodes;
use crate::error::Error;
use crate::output;
use crate::records::Source;
use grpo_records::{EpisodeMeta, TurnRecord, paths};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;

pub mod atif;
pub mod chat_completions;
pub mod dataset;
mod ended;
pub mod inspect;
pub mod mini_swe_agent;
mod part_file;
pub mod pass_at;
mod progress;
pub mod report;

use self::ended::{ended, unreadable};
use self::part_file::PartFile;
use self::pass_at::PassAt;
use self::progress::Progress;
use self::report::Report;

/// The result of an export.
#[derive(Debug, Default, PartialEq)]
pub struct Exported {
    /// The name of the iteration or evaluation.
    pub scope: String,
    pub episodes: usize,
    /// Episodes of this sample without a verdict, which have no prediction.
    pub without_verdict: usize,
    /// pass@k over all samples.
    pub pass_at: Vec<PassAt>,
}

impl Exported {
    pub fn in_words(&self, wanted: &Export, dest: &Path) -> String {
        let mut words = format!(
            "{}: sample {} of {} tasks is in {}\n",
            self.scope,
            wanted.sample,
            self.episodes,
            dest.display()
        );
        if self.without_verdict > 0 {
            words += &format!(
                "{} episodes of this sample have no verdict and were left out\n",
                self.without_verdict
            );
        }
        for pass_at in &self.pass_at {
            words += &format!("{}\n", pass_at.in_words());
        }
        words
    }
}

/// Exports what the arguments select. Returns the words about it.
pub async fn run(source: &mut Source, wanted: &Export, dest: &Path) -> Result<String, Error> {
    match wanted.format {
        Some(format) => Ok(dataset::export(source, &wanted.part, format, dest).await?.in_words()),
        None => Ok(export(source, wanted, dest).await?.in_words(wanted, dest)),
    }
}

/// Writes `preds.json`, `predictions.jsonl`, `exit_statuses.yaml`, `results.jsonl`, `summary.json`, for each task
/// `<id>/<id>.traj.json` and `<id>/trajectory.json`, and for all samples `chat_completions/<step>.jsonl` and
/// `inspect.json`.
pub async fn export(source: &mut Source, wanted: &Export, dest: &Path) -> Result<Exported, Error> {
    let listing = episodes::list(source, &wanted.part, &[], usize::MAX).await?;
    // A set has one scope for each evaluated version, the newest first.
    let scope = listing.scopes.first();
    let mut done = Exported {
        scope: scope.map(ToString::to_string).unwrap_or_default(),
        ..Exported::default()
    };
    let root = scope
        .map(|scope| format!("{}/", paths::scope(scope)))
        .unwrap_or_default();
    let mut report = Report::default();
    // By place (group, sample), which has one verdict: the order of conversations and of Inspect's epochs.
    let mut verdicts = BTreeMap::new();
    let mut judged: Vec<&EpisodeMeta> = Vec::new();
    // The exported episode of each task.
    let mut exported: BTreeMap<&str, &str> = BTreeMap::new();
    let mut statuses: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for episode in listing
        .episodes
        .iter()
        .filter(|episode| episode.path.starts_with(&root))
    {
        let Some(meta) = &episode.meta else {
            continue;
        };
        let (id, is_wanted) = (&meta.key.instance, meta.key.sample == wanted.sample);
        if !meta.outcome.is_verdict() {
            // Another attempt may have a verdict.
            is_wanted.then(|| report.exported(meta));
            continue;
        }
        report.judged(meta);
        verdicts.entry((meta.key.group, meta.key.sample)).or_insert_with(|| {
            judged.push(meta);
            (meta, episode.path.as_str())
        });
        if is_wanted && !exported.contains_key(id.as_str()) {
            exported.insert(id, &episode.path);
            let status = mini_swe_agent::exit_status(meta.end);
            statuses.entry(status).or_default().push(id.clone());
            report.exported(meta);
        }
    }
    done.pass_at = report.pass_at();
    done.without_verdict = report.errors();
    std::fs::create_dir_all(dest)?;
    // Everything that follows from verdicts alone is there before hours of reading.
    output::write(&dest.join("results.jsonl"), &report.results())?;
    let summary = report.summary(&done.scope, wanted.sample);
    output::write(&dest.join("summary.json"), &pretty(&summary))?;
    // JSON is YAML, and the names need no other quotes.
    let statuses = pretty(&json!({ "instances_by_exit_status": statuses }));
    output::write(&dest.join("exit_statuses.yaml"), &statuses)?;

    let mut predictions = Map::new();
    let chats = scope.map(|scope| PartFile::create(dest.join(chat_completions::file(scope))));
    let mut chats = chats.transpose()?;
    let mut log = inspect::Log::new(&done.scope, judged);
    let mut inspected = PartFile::create(dest.join("inspect.json"))?;
    inspected.write(log.head())?;
    let mut progress = Progress::new(verdicts.len());
    for (meta, path) in verdicts.into_values() {
        let id = &meta.key.instance;
        let is_exported = exported.get(id.as_str()) == Some(&path);
        let turns = match is_exported {
            true => turns_with_ids(source, path).await?,
            false => source.turns(path).await?,
        };
        if let Some(chats) = &mut chats {
            chats.write(&format!("{}\n", chat_completions::line(&turns)))?;
        }
        let patch = patch(source, path).await?;
        inspected.write(&log.sample(meta, &turns, &patch))?;
        if is_exported {
            let folder = dest.join(id);
            std::fs::create_dir_all(&folder)?;
            let trajectory = mini_swe_agent::trajectory(meta, &turns, &patch);
            output::write(&folder.join(format!("{id}.traj.json")), &pretty(&trajectory))?;
            let trajectory = atif::trajectory(meta, &turns, &patch);
            output::write(&folder.join("trajectory.json"), &pretty(&trajectory))?;
            predictions.insert(id.clone(), mini_swe_agent::prediction(meta, &patch));
        }
        progress.episode();
    }
    done.episodes = predictions.len();
    let lines: String = predictions
        .values()
        .map(|prediction| format!("{prediction}\n"))
        .collect();
    output::write(&dest.join("predictions.jsonl"), &lines)?;
    output::write(&dest.join("preds.json"), &pretty(&Value::Object(predictions)))?;
    if let Some(chats) = chats {
        chats.finish()?;
    }
    inspected.write(&log.tail())?;
    inspected.finish()?;
    Ok(done)
}

/// Adds the ids of turns, which the store's pages leave out, from the rows' file.
pub(crate) async fn turns_with_ids(source: &mut Source, episode: &str) -> Result<Vec<TurnRecord>, Error> {
    match ended(source, episode).await? {
        Some(ended) => ended.turns().map_err(|error| unreadable(episode, &error)),
        None => source.turns(episode).await,
    }
}

/// The episode's whole patch; empty if it has none.
pub(crate) async fn patch(source: &mut Source, episode: &str) -> Result<String, Error> {
    let view = source.episode(episode).await?;
    match (view.patch, view.patch_omitted) {
        (Some(patch), 0) => return Ok(patch),
        (Some(_), _) => {}
        (None, _) => return Ok(String::new()),
    }
    let bytes = source.whole_file(&paths::patch(episode)).await?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

#[cfg(test)]
mod tests;
