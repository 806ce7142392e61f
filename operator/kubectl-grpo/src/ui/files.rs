//! Files for the page: parts of a grader's log, and downloads of an episode or a scope in the formats of
//! `kubectl grpo export`.

use super::shown::visible;
use super::viewed::{Viewed, json};
use super::wire::LogView;
use crate::error::Error;
use crate::export::{atif, inspect, mini_swe_agent, patch, turns_with_ids};
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use grpo_records::look::files::FileAt;
use grpo_records::{EpisodeMeta, EpisodeScope, TurnRecord, paths};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A part of a log, in bytes.
const LOG_PART: u64 = 256 << 10;

/// A file that the page offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Download {
    /// An episode as an Agent Trajectory Interchange Format file.
    Atif(String),
    /// An episode as mini-swe-agent's `traj.json`.
    MiniSweAgent(String),
    /// All samples of a scope as a log of Inspect.
    Inspect(EpisodeScope),
    /// The first sample of each task as a line of SWE-bench's predictions.
    Predictions(EpisodeScope),
}

impl Download {
    /// The file of a path, such as `atif/rollouts/iter-000003/a__g0__i0`. Only paths of a store are accepted.
    pub fn parse(path: &str) -> Option<Self> {
        let (kind, rest) = path.split_once('/')?;
        let episode = || paths::parse_episode(rest).map(|_| rest.to_owned());
        match kind {
            "atif" => episode().map(Self::Atif),
            "mini-swe-agent" => episode().map(Self::MiniSweAgent),
            "inspect" => paths::parse_scope(rest).map(Self::Inspect),
            "predictions" => paths::parse_scope(rest).map(Self::Predictions),
            _ => None,
        }
    }

    /// Its name on the user's machine: letters, digits, `.`, `_`, `-`.
    pub fn name(&self) -> String {
        let last = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
        match self {
            Self::Atif(episode) => format!("{}.atif.json", last(episode)),
            Self::MiniSweAgent(episode) => format!("{}.traj.json", last(episode)),
            Self::Inspect(scope) => format!("{}.inspect.json", paths::scope(scope).replace('/', "-")),
            Self::Predictions(scope) => format!("{}.predictions.jsonl", paths::scope(scope).replace('/', "-")),
        }
    }
}

/// The content of a download, piece by piece.
pub type Pieces = BoxStream<'static, Result<Bytes, Error>>;

impl Viewed {
    /// The content of a download.
    pub async fn download(self: &Arc<Self>, wanted: &Download) -> Result<Pieces, Error> {
        let pretty = |value: serde_json::Value| format!("{value:#}\n").into_bytes();
        let whole = match wanted {
            Download::Atif(path) => {
                let (meta, turns, patch) = self.judged_with_ids(path).await?;
                pretty(atif::trajectory(&meta, &turns, &patch))
            }
            Download::MiniSweAgent(path) => {
                let (meta, turns, patch) = self.judged_with_ids(path).await?;
                pretty(mini_swe_agent::trajectory(&meta, &turns, &patch))
            }
            Download::Inspect(scope) => return self.inspect_log(scope).await,
            Download::Predictions(scope) => self.predictions(scope).await?,
        };
        Ok(stream::once(async move { Ok(Bytes::from(whole)) }).boxed())
    }

    /// The first sample of each task.
    async fn predictions(&self, scope: &EpisodeScope) -> Result<Vec<u8>, Error> {
        let mut first: BTreeMap<String, (u32, String)> = BTreeMap::new();
        for (path, meta) in self.verdicts(scope).await? {
            let (task, sample) = (meta.key.instance.clone(), meta.key.sample);
            if first.get(&task).is_some_and(|(known, _)| *known <= sample) {
                continue;
            }
            let mut source = self.source().await?;
            let patch = patch(&mut source, &path).await?;
            first.insert(
                task,
                (sample, format!("{}\n", mini_swe_agent::prediction(&meta, &patch))),
            );
        }
        let lines: String = first.into_values().map(|(_, line)| line).collect();
        Ok(lines.into_bytes())
    }

    /// Each sample is read when the browser has taken the one before: all conversations of an evaluation may not fit
    /// into memory.
    async fn inspect_log(self: &Arc<Self>, scope: &EpisodeScope) -> Result<Pieces, Error> {
        let mut verdicts = self.verdicts(scope).await?;
        let place = |meta: &EpisodeMeta| (meta.key.group, meta.key.sample);
        let mut places = BTreeSet::new();
        verdicts.retain(|(_, meta)| places.insert(place(meta)));
        let log = inspect::Log::new(&scope.to_string(), verdicts.iter().map(|(_, meta)| meta));
        verdicts.sort_by_key(|(_, meta)| place(meta));
        let head = Bytes::from(log.head().to_owned());
        let begun = Some((Arc::clone(self), log, verdicts.into_iter()));
        let rest = stream::try_unfold(begun, |begun| async move {
            let Some((run, mut log, mut left)) = begun else {
                return Ok(None);
            };
            let Some((path, meta)) = left.next() else {
                return Ok(Some((Bytes::from(log.tail()), None)));
            };
            let sample = run.sample(&mut log, &path, &meta).await?;
            Ok::<_, Error>(Some((Bytes::from(sample), Some((run, log, left)))))
        });
        Ok(stream::once(async move { Ok(head) }).chain(rest).boxed())
    }

    async fn sample(&self, log: &mut inspect::Log, path: &str, meta: &EpisodeMeta) -> Result<String, Error> {
        // The source is free after each sample: other views wait for one episode only.
        let mut source = self.source().await?;
        let turns = source.turns(path).await?;
        let patch = patch(&mut source, path).await?;
        Ok(log.sample(meta, &turns, &patch))
    }

    /// An episode with a verdict, its turns with their ids, and its whole patch.
    async fn judged_with_ids(&self, path: &str) -> Result<(EpisodeMeta, Vec<TurnRecord>, String), Error> {
        let mut source = self.source().await?;
        let Some(meta) = source.episode(path).await?.episode.meta else {
            return Err(Error::NoEpisode(format!(
                "{path} has no verdict, and these formats hold judged episodes: wait until it is graded"
            )));
        };
        let turns = turns_with_ids(&mut source, path).await?;
        let patch = patch(&mut source, path).await?;
        Ok((meta, turns, patch))
    }

    /// The episodes of a scope that have a verdict, by folder.
    async fn verdicts(&self, scope: &EpisodeScope) -> Result<Vec<(String, EpisodeMeta)>, Error> {
        let (episodes, _) = self.episodes(scope).await?;
        let judged = episodes.into_iter().filter_map(|episode| {
            let meta = episode.meta.filter(|meta| meta.outcome.is_verdict())?;
            Some((episode.path, meta))
        });
        Ok(judged.collect())
    }

    /// A part of the grader's log, from this byte on. It ends between characters.
    pub async fn log(&self, episode: &str, from: u64) -> Result<Vec<u8>, Error> {
        let wanted = FileAt {
            path: paths::grade_log(episode),
            from,
            to: Some(from.saturating_add(LOG_PART + 1)),
        };
        let part = self.source().await?.part(&wanted).await?;
        let mut bytes = part.ok_or_else(|| {
            Error::NoEpisode(format!(
                "{} is not in the run's store: no grader has written a log of this episode",
                wanted.path
            ))
        })?;
        let more = bytes.len() as u64 > LOG_PART;
        bytes.truncate(LOG_PART as usize);
        if more
            && let Err(error) = std::str::from_utf8(&bytes)
            && error.error_len().is_none()
        {
            bytes.truncate(error.valid_up_to());
        }
        json(&LogView {
            from,
            to: from + bytes.len() as u64,
            text: visible(&String::from_utf8_lossy(&bytes)),
            more,
        })
    }
}
