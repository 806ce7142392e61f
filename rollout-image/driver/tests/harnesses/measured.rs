//! The results of a run with an agent, as a file in `GRPO_HARNESS_RESULTS`; `grpo-harness-report` makes a table of
//! them.

use crate::world::{Passed, World};
use grpo_records::folder::RunFolder;
use grpo_records::{EndedEpisode, EpisodeMeta, RequestRecord};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Measured {
    name: String,
    version: String,
    api: String,
    streams: bool,
    /// Tasks with all episodes resolved.
    tasks: BTreeSet<String>,
    episodes: usize,
    turns: usize,
    pub rows: usize,
    branches: BTreeMap<String, usize>,
    /// Turns before which the agent put messages that are not results of calls.
    injected: usize,
    replays: u32,
    /// Request fields that the run's settings overruled.
    overruled: BTreeSet<String>,
    routes: BTreeMap<String, usize>,
    seconds: f64,
    #[serde(flatten)]
    pub tokens: Tokens,
    /// A streamed request was seen.
    #[serde(skip)]
    streamed: bool,
}

impl Measured {
    pub fn new(name: &str, version: &str, api: &str, streams: bool) -> Self {
        Self {
            name: name.to_owned(),
            version: version.to_owned(),
            api: api.to_owned(),
            streams,
            tasks: BTreeSet::new(),
            episodes: 0,
            turns: 0,
            rows: 0,
            branches: BTreeMap::new(),
            injected: 0,
            replays: 0,
            overruled: BTreeSet::new(),
            routes: BTreeMap::new(),
            seconds: 0.0,
            tokens: Tokens::default(),
            streamed: false,
        }
    }

    /// Adds a resolved episode.
    pub fn add<'a>(&mut self, ended: &EndedEpisode, requests: impl Iterator<Item = &'a RequestRecord>) {
        self.tasks.insert(ended.record.key.instance.clone());
        self.episodes += 1;
        self.turns += ended.record.turns.len();
        self.rows += ended.rows.len();
        for request in requests {
            if let Some(branch) = request.branch {
                *self.branches.entry(format!("{branch:?}")).or_default() += 1;
            }
            self.injected += usize::from(request.injected > 0);
            self.overruled
                .extend(request.overruled.iter().map(|overruled| overruled.field.clone()));
        }
        if let Some(process) = &ended.record.process {
            self.replays += process.replays;
            self.seconds += process.duration_millis as f64 / 1000.0;
        }
    }

    pub fn pass(&mut self, passed: &Passed) {
        // Streaming agents count tokens without a stream, and may ask for a title without one.
        assert!(self.streams || !passed.streams, "{passed:?}");
        self.streamed |= passed.streams;
        let route = format!("{} /{}", passed.method, passed.path);
        *self.routes.entry(route).or_default() += 1;
    }

    pub fn write(&self) {
        assert_eq!(self.streamed, self.streams, "{}", self.name);
        let text = serde_json::to_string_pretty(self).unwrap();
        println!("{text}");
        if let Some(folder) = std::env::var_os("GRPO_HARNESS_RESULTS") {
            let file = self.name.replace(", ", "-") + ".json";
            std::fs::write(std::path::Path::new(&folder).join(file), text).unwrap();
        }
    }
}

/// Tokens that the engine sampled, and tokens that a batch trains on.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tokens {
    sampled: usize,
    trained: usize,
    pub trained_not_sampled: usize,
    pub sampled_not_trained: usize,
}

impl Tokens {
    /// Matches each answer of the engine with the place in the batch that has its prompt before it and trains on its
    /// ids.
    pub fn of(world: &World, folder: &RunFolder, episodes: &[(EpisodeMeta, EndedEpisode)]) -> Self {
        let sampled = world.engine.sampled.lock().unwrap();
        let batch = folder.batch(1).unwrap();
        let files: BTreeMap<String, &EndedEpisode> =
            episodes.iter().map(|(meta, ended)| (meta.key.name(), ended)).collect();
        let mut trained: BTreeMap<(&[u32], &[u32]), usize> = BTreeMap::new();
        let mut tokens = Self::default();
        for row in &batch.rows {
            let ended = files[&row.episode];
            let stored = &ended.rows[row.stored.row as usize];
            tokens.trained += stored.sampled();
            let (mut from, ids) = (0, &stored.tokens);
            while let Some(start) = stored.mask[from..]
                .iter()
                .position(|mask| *mask == 1)
                .map(|at| at + from)
            {
                let length = stored.mask[start..].iter().position(|mask| *mask == 0);
                let end = length.map_or(ids.len(), |length| start + length);
                *trained.entry((&ids[..start], &ids[start..end])).or_default() += 1;
                from = end;
            }
        }
        for (prompt, answer) in sampled.iter() {
            tokens.sampled += answer.len();
            match trained.get_mut(&(&prompt[..], &answer[..])).filter(|times| **times > 0) {
                Some(times) => *times -= 1,
                None => tokens.sampled_not_trained += answer.len(),
            }
        }
        tokens.trained_not_sampled = trained.iter().map(|((_, ids), times)| ids.len() * times).sum();
        tokens
    }
}
