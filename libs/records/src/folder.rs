//! A run's store, opened read-only: a mounted store, or one copied out of the cluster.
//!
//! It reads the journal, the episodes with their turns, the batches and the metrics, as the driver and the trainer
//! wrote them. It does not check their contents. Calls block: use threads that may block.

use crate::event::{Event, JournalEntry, RunAgent};
use crate::look::Records;
use crate::store::{LocalCopy, RunStore, StoreError, wait};
use crate::{
    Batch, EndedEpisode, EndedError, EpisodeMeta, EpisodeRecord, EpisodeScope, JudgedTurn, RewardRule, RowRule,
    RunState, TurnRecord, paths,
};
use futures::StreamExt;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::Path;

#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{location} holds no journal, so it is not the store of a run; give the folder that contains journal/")]
    NoJournal { location: String },
    #[error("the parts of the episode in {episode} do not belong together: {source}")]
    NotWhole { episode: String, source: EndedError },
}

/// An open store. The journal is read at once, everything else on request.
#[derive(Debug)]
pub struct RunFolder {
    store: RunStore,
    pub journal: Vec<JournalEntry>,
    pub state: RunState,
    /// Truncated journal entries. The writer never acknowledged them.
    pub torn: Vec<String>,
}

/// One attempt of one episode in the store.
#[derive(Clone, Debug)]
pub struct EpisodeFolder {
    /// Below the store's root.
    pub path: String,
    pub meta: EpisodeMeta,
}

/// The recorded start and end of a run.
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
    /// The folder of a mounted or copied store.
    pub fn open(dir: &Path) -> Result<Self, FolderError> {
        Self::read(RunStore::existing(dir)?)
    }

    pub fn read(store: RunStore) -> Result<Self, FolderError> {
        let (names, _) = wait(store.names_in(paths::JOURNAL))?;
        let mut folder = Self {
            store,
            journal: Vec::new(),
            state: RunState::default(),
            torn: Vec::new(),
        };
        let entries: Vec<&String> = names.iter().filter(|name| name.ends_with(".json")).collect();
        let files: Vec<String> = entries
            .iter()
            .map(|name| format!("{}/{name}", paths::JOURNAL))
            .collect();
        let mut read = std::pin::pin!(folder.store.read_each::<JournalEntry, _>(files));
        for name in entries {
            let Some(entry) = wait(read.next()) else { break };
            match entry {
                Ok(entry) => {
                    folder.state.apply(&entry);
                    folder.journal.push(entry);
                }
                Err(StoreError::Unreadable { source, .. }) if source.is_eof() => folder.torn.push(name.to_owned()),
                Err(error) => return Err(error.into()),
            }
        }
        match names.is_empty() {
            true => Err(FolderError::NoJournal {
                location: folder.location(),
            }),
            false => Ok(folder),
        }
    }

    /// Names the store in messages; not a path to open.
    pub fn location(&self) -> String {
        self.store.location()
    }

    /// The same records, read in pages.
    pub fn records(&self) -> Records {
        Records::of(self.store.clone())
    }

    /// The identity of the run, its start and its end.
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

    /// The agent of a run in this store. A store that a second run resumed can have episodes of both.
    pub fn agent(&self, uid: &str) -> RunAgent {
        self.row_rule(uid).agent
    }

    /// How rows of batches follow from that run's episodes.
    pub fn row_rule(&self, uid: &str) -> RowRule {
        let mut started = self.journal.iter().rev().filter_map(|entry| match &entry.event {
            Event::RunStarted {
                run,
                agent,
                rows_per_turn,
                process,
                ..
            } if run == uid => Some(RowRule {
                agent: agent.clone(),
                per_turn: *rows_per_turn,
                process: *process,
            }),
            _ => None,
        });
        started.next().unwrap_or_default()
    }

    /// How a verdict of that run becomes a reward; `None` if the store is older than this record.
    pub fn reward_rule(&self, uid: &str) -> Option<RewardRule> {
        let mut started = self.journal.iter().rev().filter_map(|entry| match &entry.event {
            Event::RunStarted { run, reward, .. } if run == uid => Some(reward.clone()),
            _ => None,
        });
        started.next().flatten()
    }

    /// Evaluations in the order in which they finished, as (set, weights).
    pub fn evaluations(&self) -> Vec<(String, String)> {
        self.journal
            .iter()
            .filter_map(|entry| match &entry.event {
                Event::EvaluationDone { set, weights, .. } => Some((set.clone(), weights.clone())),
                _ => None,
            })
            .collect()
    }

    /// Folders of all attempts of an iteration or an evaluation, in order, finished or not.
    pub fn attempts(&self, scope: &EpisodeScope) -> Result<Vec<String>, FolderError> {
        let root = paths::scope(scope);
        let (_, folders) = wait(self.store.names_in(&root))?;
        Ok(folders.iter().map(|name| format!("{root}/{name}")).collect())
    }

    /// All finished attempts (with a `meta.json`) of an iteration or an evaluation, in order of their names.
    pub fn episodes(&self, scope: &EpisodeScope) -> Result<Vec<EpisodeFolder>, FolderError> {
        let mut found = Vec::new();
        let attempts = self.attempts(scope)?;
        let files: Vec<String> = attempts.iter().map(|path| paths::meta(path)).collect();
        let mut metas = std::pin::pin!(self.store.read_each::<EpisodeMeta, _>(files));
        for path in attempts {
            match wait(metas.next()) {
                Some(Ok(meta)) => found.push(EpisodeFolder { path, meta }),
                None | Some(Err(StoreError::Missing { .. })) => {}
                Some(Err(error)) => return Err(error.into()),
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
        let (_, sets) = wait(self.store.names_in(paths::EVALUATIONS))?;
        for set in sets {
            let (_, versions) = wait(self.store.names_in(&format!("{}/{set}", paths::EVALUATIONS)))?;
            scopes.extend(versions.into_iter().map(|weights| EpisodeScope::Evaluation {
                set: set.clone(),
                weights,
            }));
        }
        Ok(scopes)
    }

    /// Record and rows of an attempt whose agent has ended; `None` while it is still working.
    pub fn ended(&self, episode: &str) -> Result<Option<EndedEpisode>, FolderError> {
        let record = wait(self.store.read_if_there::<EpisodeRecord>(&paths::trajectory(episode)))?;
        let Some(record) = record else { return Ok(None) };
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
        let folder = paths::turns(episode);
        let (names, _) = wait(self.store.names_in(&folder))?;
        let turns = names.iter().filter(|name| name.ends_with(".json"));
        let turns = turns.map(|name| wait(self.store.read(&format!("{folder}/{name}"))));
        Ok(turns.collect::<Result<_, _>>()?)
    }

    /// The judge's votes on the turns of an episode; empty if the judge was not asked.
    pub fn judged(&self, episode: &str) -> Result<Vec<JudgedTurn>, FolderError> {
        let folder = paths::judge(episode);
        let (names, _) = wait(self.store.names_in(&folder))?;
        let files = names.iter().filter(|name| name.ends_with(".json"));
        let judged = files.map(|name| wait(self.store.read(&format!("{folder}/{name}"))));
        Ok(judged.collect::<Result<_, _>>()?)
    }

    /// The files with the rows that graders received, for sets whose rows were completed: names and texts.
    pub fn task_rows(&self) -> Result<Vec<(String, String)>, FolderError> {
        let (names, _) = wait(self.store.names_in(paths::TASKS))?;
        let files = names.iter().filter(|name| name.ends_with(".jsonl"));
        let files = files.map(|name| {
            let path = format!("{}/{name}", paths::TASKS);
            let text = String::from_utf8_lossy(&self.bytes(&path)?).into_owned();
            Ok((path, text))
        });
        files.collect()
    }

    /// The patch, if the episode has one.
    pub fn patch(&self, episode: &str) -> Option<Vec<u8>> {
        self.bytes(&paths::patch(episode)).ok()
    }

    /// The grader's log, if it exists, as a local file for the grader.
    pub fn grade_log(&self, episode: &str) -> Result<Option<LocalCopy>, FolderError> {
        self.local_copy(&paths::grade_log(episode))
    }

    /// Without the ids of its rows; see [`Batch::fill`].
    pub fn batch(&self, step: u32) -> Result<Batch, FolderError> {
        Ok(wait(self.store.read(&paths::batch(step)))?)
    }

    pub fn exists(&self, path: &str) -> Result<bool, FolderError> {
        Ok(wait(self.store.exists(path))?)
    }

    /// The bytes of a file of the store.
    pub fn bytes(&self, path: &str) -> Result<Vec<u8>, FolderError> {
        Ok(wait(self.store.bytes(path))?.into())
    }

    /// A record that may be missing.
    pub fn json_if_there<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, FolderError> {
        match wait(self.store.read_json(path)) {
            Ok(record) => Ok(Some(record)),
            Err(StoreError::Missing { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A tokenizer that was published with weights of this run, as a local file for its library.
    pub fn tokenizer(&self) -> Result<Option<LocalCopy>, FolderError> {
        let (_, versions) = wait(self.store.names_in(paths::WEIGHTS))?;
        for version in versions {
            if let Some(file) = self.local_copy(&paths::weights_file(&version, "tokenizer.json"))? {
                return Ok(Some(file));
            }
        }
        Ok(None)
    }

    fn local_copy(&self, path: &str) -> Result<Option<LocalCopy>, FolderError> {
        match wait(self.store.local_copy(path)) {
            Ok(file) => Ok(Some(file)),
            Err(StoreError::Missing { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

fn not_whole(episode: &str) -> impl FnOnce(EndedError) -> FolderError {
    let episode = episode.to_owned();
    move |source| FolderError::NotWhole { episode, source }
}

/// For each episode, the attempt that counts.
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
