//! A run's store as a folder on disk, opened for reading only: a mounted one, or one that was copied out of the
//! cluster.
//!
//! In goes a folder; out come the journal, the episodes with their turns, the batches and the metrics, as the records
//! that the driver and the trainer wrote. Nothing here judges what it reads.

use crate::event::{Event, JournalEntry};
use crate::record::{DecodeError, Record, SCHEMA, decode};
use crate::{Batch, EndedEpisode, EndedError, EpisodeMeta, EpisodeRecord, EpisodeScope, RunState, TurnRecord, paths};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error("{path} cannot be read: {source}; is this the folder of a run's store (it holds journal/ and rollouts/)?")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} is not the record it should be: {source}")]
    Record { path: PathBuf, source: serde_json::Error },
    #[error("{path} has schema {found}, this build reads schema {SCHEMA}; use a build of the version that wrote it")]
    Schema { path: PathBuf, found: u32 },
    #[error("{path} holds no journal, so it is not the store of a run; give the folder that contains journal/")]
    NoJournal { path: PathBuf },
    #[error("the parts of the episode in {episode} do not belong together: {source}")]
    NotWhole { episode: String, source: EndedError },
}

/// An open store: its journal is read, everything else is read when asked for.
#[derive(Debug)]
pub struct RunFolder {
    dir: PathBuf,
    pub journal: Vec<JournalEntry>,
    pub state: RunState,
    /// Journal entries that were cut off in the middle; nobody was ever told about those.
    pub torn: Vec<String>,
}

/// One attempt of one episode, as it lies in the store.
#[derive(Clone, Debug)]
pub struct EpisodeFolder {
    /// Below the store's root.
    pub path: String,
    pub meta: EpisodeMeta,
}

/// What was decided about the start and the end of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunFacts {
    pub uid: String,
    pub name: String,
    pub namespace: String,
    pub seed: u64,
    pub started_at: i64,
    pub finished_at: Option<i64>,
}

impl RunFolder {
    pub fn open(dir: &Path) -> Result<Self, FolderError> {
        let at = dir.join(paths::JOURNAL);
        if !at.is_dir() {
            return Err(FolderError::NoJournal { path: dir.to_owned() });
        }
        let mut folder = Self {
            dir: dir.to_owned(),
            journal: Vec::new(),
            state: RunState::default(),
            torn: Vec::new(),
        };
        for name in names_in(&at)?.into_iter().filter(|n| n.ends_with(".json")) {
            match read_record::<JournalEntry>(&at.join(&name)) {
                Ok(entry) => {
                    folder.state.apply(&entry);
                    folder.journal.push(entry);
                }
                Err(FolderError::Record { source, .. }) if source.is_eof() => folder.torn.push(name),
                Err(error) => return Err(error),
            }
        }
        Ok(folder)
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Who the run was, and when it began and ended.
    pub fn facts(&self) -> RunFacts {
        let mut facts = RunFacts::default();
        for entry in &self.journal {
            match &entry.event {
                Event::RunStarted {
                    run,
                    namespace,
                    name,
                    seed,
                    ..
                } => {
                    facts.uid = run.clone();
                    facts.name = name.clone();
                    facts.namespace = namespace.clone();
                    facts.seed = *seed;
                    facts.started_at = entry.at;
                }
                Event::RunFinished { .. } => facts.finished_at = Some(entry.at),
                _ => {}
            }
        }
        facts
    }

    /// Evaluations in the order in which they were finished, as (set, weights).
    pub fn evaluations(&self) -> Vec<(String, String)> {
        self.journal
            .iter()
            .filter_map(|entry| match &entry.event {
                Event::EvaluationDone { set, weights, .. } => Some((set.clone(), weights.clone())),
                _ => None,
            })
            .collect()
    }

    /// Every finished attempt (it has its `meta.json`) of an iteration or an evaluation, in order of its name.
    pub fn episodes(&self, scope: &EpisodeScope) -> Result<Vec<EpisodeFolder>, FolderError> {
        let root = paths::scope(scope);
        let at = self.dir.join(&root);
        if !at.is_dir() {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        for name in names_in(&at)? {
            let path = format!("{root}/{name}");
            let meta = self.dir.join(paths::meta(&path));
            if meta.is_file() {
                let meta = read_record(&meta)?;
                found.push(EpisodeFolder { path, meta });
            }
        }
        Ok(found)
    }

    /// Iterations and evaluations that have a folder.
    pub fn scopes(&self) -> Result<Vec<EpisodeScope>, FolderError> {
        let mut scopes: Vec<EpisodeScope> = self
            .state
            .iterations
            .keys()
            .map(|iteration| EpisodeScope::Iteration { iteration: *iteration })
            .collect();
        let sets = self.dir.join(paths::EVALUATIONS);
        if sets.is_dir() {
            for set in names_in(&sets)? {
                for weights in names_in(&sets.join(&set))? {
                    scopes.push(EpisodeScope::Evaluation {
                        set: set.clone(),
                        weights,
                    });
                }
            }
        }
        Ok(scopes)
    }

    /// Record and rows of an attempt whose agent is done; nothing of one that it was still working on.
    pub fn ended(&self, episode: &str) -> Result<Option<EndedEpisode>, FolderError> {
        if !self.dir.join(paths::trajectory(episode)).is_file() {
            return Ok(None);
        }
        let record: EpisodeRecord = read_record(&self.dir.join(paths::trajectory(episode)))?;
        let rows = match &record.rows {
            Some(_) => self.bytes(&paths::rows(episode))?,
            None => Vec::new(),
        };
        EndedEpisode::of(record, &rows).map(Some).map_err(not_whole(episode))
    }

    pub fn turns(&self, episode: &str) -> Result<Vec<TurnRecord>, FolderError> {
        if let Some(ended) = self.ended(episode)? {
            return ended.turns().map_err(not_whole(episode));
        }
        let at = self.dir.join(paths::turns(episode));
        if !at.is_dir() {
            return Ok(Vec::new());
        }
        names_in(&at)?
            .iter()
            .filter(|n| n.ends_with(".json"))
            .map(|n| read_record(&at.join(n)))
            .collect()
    }

    /// The patch, or nothing where none was taken.
    pub fn patch(&self, episode: &str) -> Option<Vec<u8>> {
        std::fs::read(self.dir.join(paths::patch(episode))).ok()
    }

    /// The grader's log, where there is one.
    pub fn grade_log(&self, episode: &str) -> Option<PathBuf> {
        let path = self.dir.join(paths::grade_log(episode));
        path.is_file().then_some(path)
    }

    /// Without the ids of its rows; see [`Batch::fill`].
    pub fn batch(&self, step: u32) -> Result<Batch, FolderError> {
        read_record(&self.dir.join(paths::batch(step)))
    }

    /// The bytes of a file of the store.
    pub fn bytes(&self, path: &str) -> Result<Vec<u8>, FolderError> {
        let path = self.dir.join(path);
        std::fs::read(&path).map_err(|source| FolderError::Read { path, source })
    }

    /// A record that may not be there.
    pub fn json_if_there<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, FolderError> {
        let path = self.dir.join(path);
        if path.is_file() {
            read_json(&path).map(Some)
        } else {
            Ok(None)
        }
    }

    /// A tokenizer that was published with some weights of this run.
    pub fn tokenizer(&self) -> Option<PathBuf> {
        let versions = names_in(&self.dir.join(paths::WEIGHTS)).ok()?;
        versions
            .iter()
            .map(|v| self.dir.join(paths::weights_file(v, "tokenizer.json")))
            .find(|p| p.is_file())
    }
}

fn not_whole(episode: &str) -> impl FnOnce(EndedError) -> FolderError {
    let episode = episode.to_owned();
    move |source| FolderError::NotWhole { episode, source }
}

/// Reads a JSON file.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, FolderError> {
    serde_json::from_slice(&bytes_of(path)?).map_err(|source| FolderError::Record {
        path: path.to_owned(),
        source,
    })
}

/// Reads a record and refuses one of another schema.
pub(crate) fn read_record<T: Record>(path: &Path) -> Result<T, FolderError> {
    let bytes = bytes_of(path)?;
    let path = path.to_owned();
    decode(&bytes).map_err(|error| match error {
        DecodeError::Schema { found } => FolderError::Schema { path, found },
        DecodeError::Json(source) => FolderError::Record { path, source },
    })
}

fn bytes_of(path: &Path) -> Result<Vec<u8>, FolderError> {
    std::fs::read(path).map_err(|source| FolderError::Read {
        path: path.to_owned(),
        source,
    })
}

/// Names in a folder, sorted.
pub(crate) fn names_in(dir: &Path) -> Result<Vec<String>, FolderError> {
    let failed = |source| FolderError::Read {
        path: dir.to_owned(),
        source,
    };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        names.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Of several attempts of one episode, the one that counts.
pub fn counting(all: Vec<EpisodeFolder>) -> Vec<EpisodeFolder> {
    let mut by_name: BTreeMap<String, EpisodeFolder> = BTreeMap::new();
    for episode in all {
        let name = episode.meta.key.name();
        let better = by_name.get(&name).is_none_or(|held| {
            let rank = |e: &EpisodeFolder| (e.meta.outcome.is_verdict(), e.meta.attempt);
            rank(&episode) > rank(held)
        });
        if better {
            by_name.insert(name, episode);
        }
    }
    by_name.into_values().collect()
}
