//! Reads a run's records from outside, in pages: the answers of the driver to `kubectl grpo`, and what `kubectl grpo`
//! itself reads from a copied store.
//!
//! The caller names a scope or an episode by its path, and the place to continue from. It receives records, without
//! token ids if these are not needed. Everything is bounded: episodes and turns per page, and the size of a file that
//! is read. A path that [`paths`] would not write is refused before any file is read. [`files`] returns whole files,
//! [`bulk`] many of them in one answer, [`entries`] the journal and the metrics.

pub mod bulk;
pub mod entries;
pub mod files;
mod names;
mod refusal;
pub mod worth;

pub use self::refusal::{Refusal, RefusalCause, RefusalCode};

use self::names::RestOfNames;
use self::worth::Worth;
use crate::record::Record;
use crate::reward::Ended;
use crate::store::{READ_AT_ONCE, RunStore, StoreError, wait};
use crate::{
    AgentProcess, EndedEpisode, EpisodeEnd, EpisodeMeta, EpisodeRecord, EpisodeScope, JudgedTurn, Message, TurnRecord,
    ended, paths,
};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The HTTP path of each query.
pub mod routes {
    pub const CONTENTS: &str = "/v1/records";
    pub const EPISODES: &str = "/v1/records/episodes";
    pub const EPISODE: &str = "/v1/records/episode";
    pub const TURNS: &str = "/v1/records/turns";
    pub const ENTRIES: &str = "/v1/records/journal";
    pub const METRICS: &str = "/v1/records/metrics";
    pub const FILES: &str = "/v1/records/files";
    pub const FILE: &str = "/v1/records/file";
    /// GET: the limits. POST: the files.
    pub const BULK: &str = "/v1/records/bulk";
}

/// Maximum episodes per page.
pub const EPISODES_A_PAGE: usize = 200;
/// Maximum turns per page.
pub const TURNS_A_PAGE: usize = 16;
/// A page of turns ends when their total size exceeds this.
const TURN_BYTES_A_PAGE: u64 = 4 << 20;
/// A record's file larger than this is not read.
const LARGEST_RECORD: u64 = 64 << 20;
/// The same for an episode's verdict, of which [`READ_AT_ONCE`] are in memory.
const LARGEST_META: u64 = 4 << 20;
/// At most this much of a patch is shown.
const LARGEST_PATCH: u64 = 1 << 20;

/// Every part of the run that has episodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Contents {
    /// Iterations, then evaluations, each in order.
    pub scopes: Vec<EpisodeScope>,
}

/// Selects episodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EpisodesOf {
    /// Folder of the scope, as [`paths::scope`] writes it.
    pub scope: String,
    /// Only episodes whose name contains this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub containing: Option<String>,
    /// Only episodes after this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// One attempt of one episode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Episode {
    /// Below the store's root.
    pub path: String,
    /// Absent if it has no verdict yet, and for an attempt that was given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta: Option<EpisodeMeta>,
}

impl Episode {
    /// The name of its folder.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

/// A page of episodes, ordered by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EpisodePage {
    pub episodes: Vec<Episode>,
    /// The value of `after` for the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Names one episode's folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EpisodeAt {
    pub path: String,
}

/// One episode without its turns and its token ids.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EpisodeView {
    #[serde(flatten)]
    pub episode: Episode,
    /// Absent until the agent has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<Told>,
    /// Absent if there is no patch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch: Option<String>,
    /// Bytes of the patch that are left out.
    #[serde(default)]
    pub patch_omitted: u64,
    /// The parts of its reward. Absent without a verdict, and in stores without the rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worth: Option<Worth>,
}

/// The trajectory without its token ids.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Told {
    pub image: String,
    pub end: EpisodeEnd,
    pub messages: Vec<Message>,
    pub temperature: f32,
    pub prompt_length: usize,
    pub tokens: usize,
    /// The command-line agent's process, if it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<AgentProcess>,
}

impl From<EpisodeRecord> for Told {
    fn from(record: EpisodeRecord) -> Self {
        Self {
            process: record.process,
            image: record.image,
            end: record.end,
            messages: ended::messages(&record.turns),
            temperature: record.temperature,
            prompt_length: record.turns.first().map_or(0, |turn| turn.prompt_length),
            tokens: record.rows.as_ref().map_or(0, |rows| rows.tokens),
        }
    }
}

/// Selects turns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TurnsOf {
    pub path: String,
    /// The first turn to read.
    #[serde(default)]
    pub from: u32,
}

/// A page of turns, in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TurnPage {
    pub turns: Vec<TurnRecord>,
    /// The judge's votes on these turns. Turns that the judge is not asked about have no entry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub judged: Vec<JudgedTurn>,
    /// The value of `from` for the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u32>,
}

/// The records below a run's root.
#[derive(Clone, Debug)]
pub struct Records {
    store: RunStore,
    rest: RestOfNames,
}

impl Records {
    pub fn of(store: RunStore) -> Self {
        let rest = RestOfNames::default();
        Self { store, rest }
    }

    /// The records in the folder of a mounted or copied store.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        Ok(Self::of(RunStore::existing(dir)?))
    }

    pub fn contents(&self) -> Result<Contents, Refusal> {
        let iterations = self
            .folders(paths::ROLLOUTS)?
            .into_iter()
            .map(|name| format!("{}/{name}", paths::ROLLOUTS));
        let mut evaluations = Vec::new();
        for set in self.folders(paths::EVALUATIONS)? {
            let of_set = format!("{}/{set}", paths::EVALUATIONS);
            evaluations.extend(
                self.folders(&of_set)?
                    .into_iter()
                    .map(|weights| format!("{of_set}/{weights}")),
            );
        }
        let scopes = iterations.chain(evaluations);
        Ok(Contents {
            scopes: scopes.filter_map(|path| paths::parse_scope(&path)).collect(),
        })
    }

    pub fn episodes(&self, wanted: &EpisodesOf) -> Result<EpisodePage, Refusal> {
        let scope = paths::parse_scope(&wanted.scope).ok_or_else(|| Refusal::bad_path(&wanted.scope))?;
        let root = paths::scope(&scope);
        let limit = wanted.limit.unwrap_or(EPISODES_A_PAGE).clamp(1, EPISODES_A_PAGE);
        let mut names = match self.rest.take(&root, wanted.after.as_deref()) {
            Some(names) => names,
            None => self.folders(&root)?,
        };
        names.retain(|name| paths::is_plain_name(name) && wanted.after.as_ref().is_none_or(|after| name > after));
        let fits = |name: &&String| wanted.containing.as_ref().is_none_or(|part| name.contains(part));
        let mut shown: Vec<String> = names.iter().filter(fits).take(limit + 1).cloned().collect();
        let next = (shown.len() > limit).then(|| shown[limit - 1].clone());
        shown.truncate(limit);
        if let Some(next) = &next {
            self.rest.keep(&root, next, names);
        }
        // A bucket answers each after a round trip.
        let found = shown.into_iter().map(|name| self.found(format!("{root}/{name}")));
        let found = futures::stream::iter(found).buffered(READ_AT_ONCE);
        Ok(EpisodePage {
            episodes: wait(found.try_collect())?,
            next,
        })
    }

    pub fn episode(&self, path: &str) -> Result<EpisodeView, Refusal> {
        self.check(path)?;
        let told: Option<EpisodeRecord> = self.record_if_there(&paths::trajectory(path))?;
        let (patch, patch_omitted) = self.patch(path)?;
        let episode = wait(self.found(path.to_owned()))?;
        let turns = told.as_ref().map_or(&[][..], |told| &told.turns);
        Ok(EpisodeView {
            worth: self.worth(&episode, turns)?,
            episode,
            told: told.map(Told::from),
            patch,
            patch_omitted,
        })
    }

    pub fn turns(&self, wanted: &TurnsOf) -> Result<TurnPage, Refusal> {
        self.check(&wanted.path)?;
        let page = match self.ended_turns(&wanted.path)? {
            Some(turns) => page_of(turns, wanted.from),
            None => self.turns_so_far(wanted)?,
        };
        self.with_votes(&wanted.path, page)
    }

    /// The turns of an attempt whose agent is still working.
    fn turns_so_far(&self, wanted: &TurnsOf) -> Result<TurnPage, Refusal> {
        let mut page = TurnPage::default();
        let mut bytes = 0;
        for number in wanted.from.. {
            let path = paths::turn(&wanted.path, number);
            let Some(length) = self.length(&path)? else { break };
            if page.turns.len() == TURNS_A_PAGE || (bytes + length > TURN_BYTES_A_PAGE && !page.turns.is_empty()) {
                page.next = Some(number);
                break;
            }
            let Some(turn) = self.record_if_there(&path)? else {
                break;
            };
            page.turns.push(turn);
            bytes += length;
        }
        Ok(page)
    }

    /// Adds the votes on the page's turns. The page ends before a turn whose votes would make it too large.
    fn with_votes(&self, path: &str, mut page: TurnPage) -> Result<TurnPage, Refusal> {
        let (judged, _) = wait(self.store.names_in(&paths::judge(path)))?;
        if judged.is_empty() {
            return Ok(page);
        }
        let mut bytes = 0;
        for at in 0..page.turns.len() {
            let number = page.turns[at].turn;
            let file = paths::judged(path, number);
            bytes += self.length(&file)?.unwrap_or_default();
            if bytes > TURN_BYTES_A_PAGE && at > 0 {
                page.next = Some(number);
                page.turns.truncate(at);
                break;
            }
            page.judged.extend(self.record_if_there::<JudgedTurn>(&file)?);
        }
        Ok(page)
    }

    /// The turns of an attempt whose agent has ended, with their ids.
    fn ended_turns(&self, path: &str) -> Result<Option<Vec<TurnRecord>>, Refusal> {
        let Some(record) = self.record_if_there::<EpisodeRecord>(&paths::trajectory(path))? else {
            return Ok(None);
        };
        let rows = match &record.rows {
            Some(_) => self.bytes(&paths::rows(path))?,
            None => Bytes::new(),
        };
        let turns = EndedEpisode::of(record, &rows).and_then(|ended| ended.turns());
        turns
            .map(Some)
            .map_err(|error| Refusal::new(RefusalCode::Unreadable, format!("{path}: {error}")))
    }

    fn bytes(&self, path: &str) -> Result<Bytes, Refusal> {
        self.refuse_larger(path, self.length(path)?.unwrap_or_default())?;
        Ok(wait(self.store.bytes(path))?)
    }

    fn refuse_larger(&self, path: &str, bytes: u64) -> Result<(), Refusal> {
        if bytes <= LARGEST_RECORD {
            return Ok(());
        }
        let message =
            format!("{path} has {bytes} bytes, and not more than {LARGEST_RECORD} are read; copy it from the store");
        Err(Refusal::new(RefusalCode::TooLarge, message))
    }

    /// `None` for an episode without a verdict, and if the journal has no rule for its run.
    fn worth(&self, episode: &Episode, turns: &[TurnRecord]) -> Result<Option<Worth>, Refusal> {
        let Some(meta) = episode.meta.as_ref().filter(|meta| meta.outcome.is_verdict()) else {
            return Ok(None);
        };
        let (Some(rule), process) = wait(worth::rules(&self.store, &meta.run))? else {
            return Ok(None);
        };
        // Only a shaped reward counts the patch's lines.
        let patch = paths::patch(&episode.path);
        let patch = match rule.shaping.is_some() && self.length(&patch)?.is_some() {
            true => self.bytes(&patch)?,
            false => Bytes::new(),
        };
        let parts = rule.parts(Ended {
            outcome: &meta.outcome,
            grade: meta.grade.as_ref(),
            turns,
            patch: &patch,
        });
        let answer = self.record_if_there(&paths::reward(&episode.path))?;
        Ok(parts.map(|parts| Worth { parts, answer, process }))
    }

    /// Refuses a path that is not an episode's folder, or does not exist.
    fn check(&self, path: &str) -> Result<(), Refusal> {
        paths::parse_episode(path).ok_or_else(|| Refusal::bad_path(path))?;
        let (files, folders) = wait(self.store.names_in(path))?;
        match files.is_empty() && folders.is_empty() {
            false => Ok(()),
            true => Err(Refusal::not_there(path)),
        }
    }

    async fn found(&self, path: String) -> Result<Episode, Refusal> {
        let file = paths::meta(&path);
        let meta = match self.store.read_within(&file, LARGEST_META).await {
            Ok(Some(meta)) => Some(meta),
            Ok(None) => {
                let message =
                    format!("{file} has more than {LARGEST_META} bytes, which are not read; copy it from the store");
                return Err(Refusal::new(RefusalCode::TooLarge, message));
            }
            Err(StoreError::Missing { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(Episode { path, meta })
    }

    /// Names of folders in a folder; empty if it does not exist.
    fn folders(&self, path: &str) -> Result<Vec<String>, Refusal> {
        let (_, folders) = wait(self.store.names_in(path))?;
        Ok(folders)
    }

    fn length(&self, path: &str) -> Result<Option<u64>, Refusal> {
        Ok(wait(self.store.length(path))?)
    }

    fn record_if_there<T: Record>(&self, path: &str) -> Result<Option<T>, Refusal> {
        match self.length(path)? {
            None => Ok(None),
            Some(bytes) => {
                self.refuse_larger(path, bytes)?;
                Ok(Some(wait(self.store.read(path))?))
            }
        }
    }

    /// The beginning of the patch, and the number of bytes left out.
    fn patch(&self, episode: &str) -> Result<(Option<String>, u64), Refusal> {
        let path = paths::patch(episode);
        let Some(length) = self.length(&path)? else {
            return Ok((None, 0));
        };
        let beginning = match length {
            0 => Bytes::new(),
            _ => wait(self.store.range(&path, 0..length.min(LARGEST_PATCH)))?,
        };
        let beginning = String::from_utf8_lossy(&beginning).into_owned();
        Ok((Some(beginning), length.saturating_sub(LARGEST_PATCH)))
    }
}

/// The turns from a number on, up to the limits of a page.
fn page_of(turns: Vec<TurnRecord>, from: u32) -> TurnPage {
    let mut page = TurnPage::default();
    let mut bytes = 0;
    for turn in turns.into_iter().skip(from as usize) {
        bytes += turn_bytes(&turn);
        if page.turns.len() == TURNS_A_PAGE || (bytes > TURN_BYTES_A_PAGE && !page.turns.is_empty()) {
            page.next = Some(turn.turn);
            break;
        }
        page.turns.push(turn);
    }
    page
}

/// Approximate size of a turn as JSON: its texts, and its ids with their logprobs.
fn turn_bytes(turn: &TurnRecord) -> u64 {
    let ids = turn.prompt.len() + turn.sampled.len() + turn.logprobs.len() + turn.observation.len();
    (turn.text.len() + turn.observation_text.len() + 8 * ids + 1024) as u64
}

#[cfg(test)]
mod tests;
