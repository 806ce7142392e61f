//! One run in a viewer: its records, what was read of them, and the answers to the page.
//!
//! [`Viewed::follow`] reads the journal and the metrics while the run works; [`Viewed::answer`] makes a view when the
//! page asks for it. Both read through the same [`Source`] as the other commands.

use super::index::{Index, MetricsWanted, instance_of};
use super::kept_scopes::{KeptScope, KeptScopes};
use super::tokens::Vocabulary;
use super::trained::{self, Heads};
use super::views;
use super::wanted::Wanted;
use super::wire::{EpisodeLine, Found, Problem, ScopeView, SearchView};
use super::words::Words;
use crate::arguments::RecordsOptions;
use crate::cluster::Cluster;
use crate::error::Error;
use crate::records::{self, Opened, Source};
use grpo_records::look::entries::EntriesOf;
use grpo_records::look::{EPISODES_A_PAGE, Episode, EpisodesOf};
use grpo_records::{EpisodeScope, TurnRecord, paths};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard, OnceCell, watch};

/// How often new entries are looked for: the page shows them within a second.
const LOOK: Duration = Duration::from_millis(500);
/// Pauses after errors, such as a driver that restarts: the first one, and the longest. Each is twice the one before.
const AFTER_AN_ERROR: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A reader pod ends after this time, also if this program could not delete it. A viewer that still runs makes another.
const DEADLINE: Duration = Duration::from_secs(3600);
/// At most so many episodes of one scope.
const MOST_OF_SCOPE: usize = 20_000;
/// In a cluster, texts are read through the driver or a reader pod, and only of so many episodes that had ended when
/// somebody searched first, and of all later ones.
const TEXTS_OF_A_CLUSTER: usize = 1000;
/// At most so many results of a search.
const MOST_FOUND: usize = 200;

/// Where the records of a run are.
#[derive(Clone)]
pub enum Place {
    Folder(PathBuf),
    Run {
        cluster: Cluster,
        name: String,
        reader_image: Option<String>,
    },
}

impl Place {
    async fn open(&self) -> Result<Opened, Error> {
        match self {
            Self::Folder(dir) => records::folder(dir),
            Self::Run {
                cluster,
                name,
                reader_image,
            } => {
                let options = RecordsOptions {
                    from: None,
                    reader_image: reader_image.clone(),
                };
                records::of_run_until(cluster, &cluster.run(name).await?, &options, DEADLINE).await
            }
        }
    }

    fn is_folder(&self) -> bool {
        matches!(self, Self::Folder(_))
    }
}

/// A run that is shown.
pub struct Viewed {
    place: Place,
    /// `None` once the viewer has ended.
    opened: Mutex<Option<Opened>>,
    index: RwLock<Index>,
    words: RwLock<Words>,
    vocabulary: OnceCell<Arc<Vocabulary>>,
    heads: Heads,
    scopes: KeptScopes,
    /// Counts the changes of what the page shows.
    changes: watch::Sender<u64>,
    /// True while the records are read through the run's driver: a reader pod reads those of a run that does not work.
    has_driver: AtomicBool,
    /// Why the records cannot be read now.
    problem: RwLock<Option<String>>,
}

impl Viewed {
    /// Opens the records.
    pub async fn open(place: Place) -> Result<Self, Error> {
        let mut words = Words::default();
        if place.is_folder() {
            words.begin_at(0);
        }
        let opened = place.open().await?;
        Ok(Self {
            has_driver: AtomicBool::new(opened.is_of_driver()),
            opened: Mutex::new(Some(opened)),
            place,
            index: RwLock::default(),
            words: RwLock::new(words),
            vocabulary: OnceCell::new(),
            heads: Heads::default(),
            scopes: KeptScopes::default(),
            changes: watch::channel(0).0,
            problem: RwLock::default(),
        })
    }

    /// Removes the reader pod, if there is one. Later requests are refused.
    pub async fn close(&self) -> Result<(), Error> {
        match self.opened.lock().await.take() {
            Some(opened) => opened.close().await,
            None => Ok(()),
        }
    }

    /// The open source, locked for one question.
    pub(super) async fn source(&self) -> Result<MappedMutexGuard<'_, Source>, Error> {
        let opened = self.opened.lock().await;
        MutexGuard::try_map(opened, |opened| opened.as_mut().map(|opened| &mut opened.source))
            .map_err(|_| Error::Closed)
    }

    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub fn name(&self) -> String {
        match &self.place {
            Place::Folder(dir) => {
                let name = read(&self.index).name().to_owned();
                let folder = dir.file_name().map(|name| name.to_string_lossy().into_owned());
                match name.is_empty() {
                    false => name,
                    true => folder.unwrap_or_default(),
                }
            }
            Place::Run { name, .. } => name.clone(),
        }
    }

    /// True if the records grow.
    pub fn is_live(&self) -> bool {
        self.has_driver.load(Ordering::Relaxed) && !read(&self.index).has_ended()
    }

    /// Reads new entries and metrics until none are left.
    pub async fn catch_up(&self) -> Result<(), Error> {
        self.catch_up_at(Instant::now()).await
    }

    /// The same at this time: a damaged file of metrics is read again now and then.
    pub(super) async fn catch_up_at(&self, now: Instant) -> Result<(), Error> {
        loop {
            let after = read(&self.index).sequence();
            let page = self.source().await?.entries(&EntriesOf { after }).await?;
            let more = page.more;
            if write(&self.index).take(page) {
                self.changed();
            }
            if !more {
                break;
            }
        }
        loop {
            let wanted = read(&self.index).metrics_wanted(now);
            let is_new = match wanted {
                Some(MetricsWanted::Page(of)) => {
                    let page = self.source().await?.metrics(&of).await?;
                    write(&self.index).measure(page, now)
                }
                Some(MetricsWanted::File(file)) => {
                    let bytes = self.source().await?.whole_file(&file.path()).await?;
                    write(&self.index).measure_again(file, bytes.as_deref(), now)
                }
                None => return Ok(()),
            };
            if is_new {
                self.changed();
            }
        }
    }

    /// Follows the run until it is dropped.
    pub async fn follow(&self) {
        let mut after_an_error = AFTER_AN_ERROR;
        loop {
            let began = Instant::now();
            let pause = match self.catch_up().await {
                Ok(()) => {
                    after_an_error = AFTER_AN_ERROR;
                    self.tell(None);
                    // The journal is looked at in between.
                    self.read_words().await;
                    LOOK.saturating_sub(began.elapsed())
                }
                Err(error) => {
                    let told = match error {
                        // The driver has restarted or ended, or the reader pod has reached its deadline.
                        Error::PodConnection { .. } => self.open_again().await.err().unwrap_or(error),
                        error => error,
                    };
                    self.tell(Some(told.to_string()));
                    after_an_error = (after_an_error * 2).min(LONGEST_PAUSE);
                    after_an_error / 2
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Reads from another pod from now on, if the run is in a cluster.
    pub(super) async fn open_again(&self) -> Result<(), Error> {
        let opened = self.place.open().await?;
        self.has_driver.store(opened.is_of_driver(), Ordering::Relaxed);
        let before = self.opened.lock().await.replace(opened);
        match before {
            Some(before) => before.close().await,
            None => Ok(()),
        }
    }

    fn tell(&self, problem: Option<String>) {
        let before = std::mem::replace(&mut *write(&self.problem), problem.clone());
        if before != problem {
            self.changed();
        }
    }

    /// Why the records cannot be read now, if so.
    pub fn problem(&self) -> Option<Problem> {
        read(&self.problem).clone().map(|message| Problem { message })
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Adds the texts of episodes that have ended to the full-text index, for as long as a look may take.
    async fn read_words(&self) {
        let began = Instant::now();
        while began.elapsed() < LOOK {
            let Some(next) = read(&self.words).next() else {
                return;
            };
            let Some(path) = read(&self.index).ended_at(next).map(str::to_owned) else {
                return;
            };
            // An episode whose files are missing or damaged has no words; its view has the error.
            let turns = match self.turns(&path).await {
                Ok(turns) => turns,
                // The driver may have restarted: the episode is read later.
                Err(Error::Closed | Error::PodConnection { .. }) => return,
                Err(_) => Vec::new(),
            };
            let texts = turns.iter().flat_map(|turn| {
                let opening = turn.opening.iter().map(|message| message.content.as_str());
                opening.chain([turn.text.as_str(), turn.observation_text.as_str()])
            });
            write(&self.words).add(u32::try_from(next).unwrap_or(u32::MAX), texts);
            tokio::task::yield_now().await;
        }
    }

    /// A view as JSON.
    pub async fn answer(&self, wanted: &Wanted) -> Result<Vec<u8>, Error> {
        match wanted {
            Wanted::Run => json(&read(&self.index).run()),
            Wanted::Scope(scope) => json(&*self.scope(scope, None).await?),
            Wanted::Group(scope, group) => self.group(scope, *group).await,
            Wanted::Episode(path) => self.episode(path).await,
            Wanted::Tokens(path) => self.tokens(path).await,
            Wanted::Task(instance) => json(&read(&self.index).task(instance)),
        }
    }

    /// The episodes of a scope, and whether there are more.
    pub(super) async fn episodes(&self, scope: &EpisodeScope) -> Result<(Vec<Episode>, bool), Error> {
        let mut wanted = EpisodesOf {
            scope: paths::scope(scope),
            limit: Some(EPISODES_A_PAGE),
            ..EpisodesOf::default()
        };
        let mut episodes = Vec::new();
        loop {
            let page = self.source().await?.episodes(&wanted).await?;
            episodes.extend(page.episodes);
            match page.next {
                Some(_) if episodes.len() >= MOST_OF_SCOPE => return Ok((episodes, true)),
                Some(next) => wanted.after = Some(next),
                None => return Ok((episodes, false)),
            }
        }
    }

    /// The view of a scope. `fits`: the last one will do, if nothing has changed since and it has what is needed.
    async fn scope(
        &self,
        scope: &EpisodeScope,
        fits: Option<&(dyn Fn(&ScopeView) -> bool + Sync)>,
    ) -> Result<Arc<ScopeView>, Error> {
        let slot = self.scopes.slot(scope);
        let mut kept = slot.lock().await;
        let change = *self.changes.borrow();
        if let (Some(fits), Some(known)) = (fits, &*kept)
            && known.change == change
            && fits(&known.view)
        {
            return Ok(Arc::clone(&known.view));
        }
        let (episodes, cut) = self.episodes(scope).await?;
        let advantages = self.advantages(scope).await?;
        let none = BTreeMap::new();
        let of_step = advantages.as_ref().unwrap_or(&none);
        let view = Arc::new(views::scope(&read(&self.index), scope, &episodes, of_step, cut));
        // Without advantages that exist, the next view reads it again: the store may answer then.
        *kept = advantages.map(|_| KeptScope {
            change,
            view: Arc::clone(&view),
        });
        Ok(view)
    }

    /// The advantages of a scope's episodes, by their folders. Empty before its step is done; `None` if they cannot be
    /// read.
    async fn advantages(&self, scope: &EpisodeScope) -> Result<Option<BTreeMap<String, f64>>, Error> {
        let known = {
            let index = read(&self.index);
            let of = index.step_of(scope);
            of.and_then(|of| Some((index.advantages(of.step)?.to_vec(), of)))
        };
        let Some((lists, of)) = known.filter(|(lists, _)| !lists.is_empty()) else {
            return Ok(Some(BTreeMap::new()));
        };
        let mut source = self.source().await?;
        match trained::advantages(&mut source, &self.heads, &of, &lists).await {
            // The tables are of use without them.
            Err(Error::Records(_)) => Ok(None),
            found => found.map(Some),
        }
    }

    async fn group(&self, scope: &EpisodeScope, group: u32) -> Result<Vec<u8>, Error> {
        let has_group = |view: &ScopeView| view.cut || view.groups.iter().any(|found| found.group == group);
        let view = self.scope(scope, Some(&has_group)).await?;
        let Some(found) = view.groups.iter().find(|found| found.group == group) else {
            let message = format!("{} has no group {group}", paths::scope(scope));
            return Err(Error::NoEpisode(message));
        };
        let mut samples = Vec::new();
        for line in &found.episodes {
            let turns = self.turns(&line.path).await?;
            samples.push((line.clone(), turns));
        }
        let vocabulary = self.vocabulary().await;
        json(&views::group(scope, found, samples, vocabulary.as_deref()))
    }

    async fn episode(&self, path: &str) -> Result<Vec<u8>, Error> {
        let view = self.source().await?.episode(path).await?;
        let (turns, judged) = self.source().await?.turns_and_votes(path).await?;
        let line = self.line(path, &view.episode).await?;
        json(&views::episode(&view, line, &turns, &judged))
    }

    /// The line of an episode with what follows from its group: its advantage, and equal patches.
    async fn line(&self, path: &str, episode: &Episode) -> Result<EpisodeLine, Error> {
        let alone = views::line(episode);
        let Some((scope, _)) = paths::parse_episode(path) else {
            return Ok(alone);
        };
        // An episode may have ended before the journal says so.
        let has_line = |view: &ScopeView| match line_in(view, path) {
            Some(line) => line.outcome == alone.outcome,
            None => view.cut,
        };
        let view = self.scope(&scope, Some(&has_line)).await?;
        Ok(line_in(&view, path).cloned().unwrap_or(alone))
    }

    async fn turns(&self, path: &str) -> Result<Vec<TurnRecord>, Error> {
        self.source().await?.turns(path).await
    }

    async fn tokens(&self, path: &str) -> Result<Vec<u8>, Error> {
        let turns = self.turns(path).await?;
        let vocabulary = self.vocabulary().await;
        let step = paths::parse_episode(path).and_then(|(scope, _)| read(&self.index).step_of(&scope));
        let mut trained = match step {
            None => Ok(BTreeMap::new()),
            Some(of) => {
                let mut source = self.source().await?;
                trained::numbers(&mut source, &self.heads, &of, path, &turns).await
            }
        };
        let view = |turn: &TurnRecord| {
            let of_turn = match &mut trained {
                Ok(by_turn) => Ok(by_turn.remove(&turn.turn)),
                Err(error) => Err(error.to_string()),
            };
            views::tokens(turn, vocabulary.as_deref(), of_turn)
        };
        json(&turns.iter().map(view).collect::<Vec<_>>())
    }

    async fn vocabulary(&self) -> Option<Arc<Vocabulary>> {
        let found = self.vocabulary.get_or_try_init(|| async {
            let mut source = self.source().await?;
            Vocabulary::newest(&mut source).await.map(Arc::new)
        });
        // Without one, tokens are shown by their numbers. The next view looks again: the first version may come.
        found.await.ok().cloned()
    }

    /// Episodes that have all words of a query, in their name, outcome or text, the newest first.
    pub fn search(&self, query: &str) -> Result<Vec<u8>, Error> {
        let ended = read(&self.index).ended();
        if read(&self.words).next().is_none() {
            write(&self.words).begin_at(ended.saturating_sub(TEXTS_OF_A_CLUSTER));
        }
        let (index, words) = (read(&self.index), read(&self.words));
        let lower = query.to_lowercase();
        let mut fitting: Option<BTreeSet<usize>> = None;
        for part in lower.split_whitespace() {
            let in_texts = words.find(part).unwrap_or_default();
            let mut places: BTreeSet<usize> = in_texts.into_iter().map(|episode| episode as usize).collect();
            places.extend(index.named(part));
            fitting = Some(match fitting {
                Some(before) => before.intersection(&places).copied().collect(),
                None => places,
            });
        }
        let places = fitting.unwrap_or_default();
        let shown = places.iter().rev().take(MOST_FOUND);
        let found: Vec<Found> = shown.filter_map(|place| index.found(*place)).collect();
        json(&SearchView {
            found,
            all: places.len() as u64,
            read: words.read() as u64,
            ended: index.ended() as u64,
            reading: words.next().is_some_and(|next| next < index.ended()),
        })
    }

    /// Every view of the run, for a bundle.
    pub async fn every(&self) -> Result<Vec<Wanted>, Error> {
        let scopes = self.source().await?.contents().await?.scopes;
        let mut all = vec![Wanted::Run];
        let mut instances = BTreeSet::new();
        for scope in scopes {
            let (episodes, _) = self.episodes(&scope).await?;
            let mut groups = BTreeSet::new();
            for episode in &episodes {
                instances.insert(instance_of(episode.name()).to_owned());
                groups.extend(grpo_records::EpisodeKey::group_of(episode.name()));
                all.push(Wanted::Episode(episode.path.clone()));
                all.push(Wanted::Tokens(episode.path.clone()));
            }
            all.extend(groups.into_iter().map(|group| Wanted::Group(scope.clone(), group)));
            all.push(Wanted::Scope(scope));
        }
        all.extend(instances.into_iter().map(Wanted::Task));
        Ok(all)
    }
}

fn line_in<'a>(view: &'a ScopeView, path: &str) -> Option<&'a EpisodeLine> {
    let mut lines = view.groups.iter().flat_map(|group| &group.episodes);
    lines.find(|line| line.path == path)
}

pub(super) fn json(view: &impl Serialize) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(view).map_err(|error| Error::Viewer(format!("a view cannot be put into JSON: {error}")))
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(std::sync::PoisonError::into_inner)
}
