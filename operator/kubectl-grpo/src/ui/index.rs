//! What a viewer knows of a run: its journal, folded entry by entry, and its metrics.
//!
//! The journal has every verdict with its reward, every void with its cause, and the times of all decisions, so tables
//! of episodes need no other file. An index follows a run that works: it continues after the entries that it has.

mod metrics;

pub use self::metrics::{LOOK_AGAIN, MetricsFile, MetricsWanted};

use self::metrics::Metrics;
use super::shown::visible;
use super::trained::StepOf;
use super::wire::{
    Count, EvaluationLine, Found, IterationLine, RunEnd, RunView, TaskScope, TaskView, VersionLine, VoidLine,
};
use grpo_records::look::entries::{EntryPage, MetricsPage};
use grpo_records::{DropReason, EpisodeKey, EpisodeScope, Event, JournalEntry, Outcome, RunAgent, paths};
use std::collections::BTreeMap;
use std::time::Instant;

/// The folded journal and the metrics of one run.
#[derive(Debug, Default)]
pub struct Index {
    run: RunView,
    iterations: BTreeMap<u32, Iteration>,
    evaluations: BTreeMap<String, EvaluationLine>,
    versions: BTreeMap<(u32, String), VersionLine>,
    voids: BTreeMap<String, u64>,
    void_attempts: BTreeMap<String, Vec<VoidLine>>,
    metrics: Metrics,
    /// In the order of their verdicts.
    ended: Vec<Ended>,
}

#[derive(Debug, Default)]
struct Iteration {
    line: IterationLine,
    rewards: f64,
    dropped: BTreeMap<u32, DropReason>,
}

/// An episode with a verdict.
#[derive(Clone, Debug)]
struct Ended {
    path: String,
    resolved: bool,
    reward: f32,
}

impl Index {
    /// The number of the last entry.
    pub fn sequence(&self) -> u64 {
        self.run.sequence
    }

    /// Empty before the first entry.
    pub fn name(&self) -> &str {
        &self.run.name
    }

    pub fn has_ended(&self) -> bool {
        self.run.end.is_some()
    }

    /// Folds a page of the journal. True if the view has changed.
    pub fn take(&mut self, page: EntryPage) -> bool {
        let changed = !page.entries.is_empty() || self.run.reading != page.more;
        for entry in page.entries {
            // Batches and steps have metrics; a run has thousands of verdicts in between.
            if !matches!(entry.event, Event::Verdict { .. } | Event::EpisodeVoided { .. }) {
                self.metrics.expect_more();
            }
            self.fold(entry);
        }
        let has_ended = self.has_ended();
        self.metrics.set_ended(has_ended);
        self.run.sequence = page.after;
        self.run.reading = page.more;
        changed
    }

    /// The metrics to read at this time. They stay wanted until they were added, also after an error.
    pub fn metrics_wanted(&self, now: Instant) -> Option<MetricsWanted> {
        self.metrics.wanted(now)
    }

    /// Adds a page of metrics. True if something is new.
    pub fn measure(&mut self, page: MetricsPage, now: Instant) -> bool {
        self.metrics.add(page, now)
    }

    /// Adds a damaged file of metrics that was read again; `None`: it was deleted. True if something is new.
    pub fn measure_again(&mut self, file: MetricsFile, bytes: Option<&[u8]>, now: Instant) -> bool {
        self.metrics.add_again(file, bytes, now)
    }

    fn fold(&mut self, entry: JournalEntry) {
        let at = entry.at;
        if self.run.began == 0 {
            self.run.began = at;
        }
        self.run.last = at;
        match entry.event {
            Event::RunStarted {
                run,
                namespace,
                name,
                seed,
                tasks,
                agent,
                ..
            } => {
                self.run.uid = run;
                self.run.namespace = namespace;
                self.run.name = name;
                self.run.seed = seed;
                self.run.tasks = tasks;
                self.run.agent = agent_name(&agent);
                // Another run continues this store.
                self.run.end = None;
            }
            Event::DriverStarted { .. } => {
                self.run.drivers += 1;
                self.run.end = None;
            }
            Event::SettingsTaken { .. } => {}
            Event::IterationStarted {
                iteration,
                weights,
                tasks,
                ..
            } => {
                self.version(&weights).iterations.push(iteration);
                let line = &mut self.iteration(iteration, at).line;
                line.groups = count(tasks.len());
                line.weights = weights;
            }
            Event::GroupsAdded { iteration, tasks, .. } => {
                self.iteration(iteration, at).line.groups += count(tasks.len());
            }
            Event::Verdict {
                episode,
                outcome,
                reward,
            } => self.verdict(episode, &outcome, reward, at),
            Event::EpisodeVoided {
                episode,
                reason,
                turns,
                tokens,
                message,
            } => {
                let reason = format!("{reason:?}");
                *self.voids.entry(reason.clone()).or_default() += 1;
                self.run.voided_tokens += tokens as u64;
                let Some((scope, _)) = paths::parse_episode(&episode) else {
                    return;
                };
                match scope {
                    EpisodeScope::Iteration { iteration } => {
                        self.iteration(iteration, at).line.voids += 1;
                    }
                    EpisodeScope::Evaluation { .. } => self.evaluation(&scope).voids += 1,
                }
                let line = VoidLine {
                    path: episode,
                    reason,
                    message: visible(&message),
                    turns,
                    tokens: tokens as u64,
                    at,
                };
                self.void_attempts.entry(paths::scope(&scope)).or_default().push(line);
            }
            Event::GroupDropped {
                iteration,
                group,
                reason,
                ..
            } => {
                let one = self.iteration(iteration, at);
                one.dropped.insert(group, reason);
                one.line.dropped = count(one.dropped.len());
            }
            Event::BatchWritten { iteration, step, .. } => {
                // In mode Finetune this is an iteration's first entry.
                let one = self.iteration(iteration, at);
                one.line.step = Some(step);
                one.line.batch = Some(at);
            }
            Event::StepDone {
                step,
                weights,
                manifest_sha256,
            } => {
                let of_step = self
                    .iterations
                    .values_mut()
                    .rev()
                    .find(|one| one.line.step == Some(step));
                let from = of_step.map(|one| {
                    one.line.stepped = Some(at);
                    one.line.iteration
                });
                let version = self.version(&weights);
                // In mode Finetune steps without a checkpoint name the version before.
                if version.published.is_none() {
                    version.published = Some(at);
                    version.from_iteration = from;
                }
                version.manifest_sha256 = manifest_sha256;
            }
            Event::Promoted {
                weights,
                manifest_sha256,
                ..
            } => {
                let version = self.version(&weights);
                version.promoted = Some(at);
                version.manifest_sha256 = manifest_sha256;
            }
            Event::EvaluationDone { set, weights, .. } => {
                self.evaluation(&EpisodeScope::Evaluation { set, weights }).done = true;
            }
            Event::RunFinished {
                succeeded,
                reason,
                message,
            } => {
                self.run.end = Some(RunEnd {
                    succeeded,
                    reason,
                    message,
                });
            }
        }
    }

    fn verdict(&mut self, path: String, outcome: &Outcome, reward: f32, at: i64) {
        let Some((scope, _)) = paths::parse_episode(&path) else {
            return;
        };
        let resolved = *outcome == Outcome::Resolved;
        match &scope {
            EpisodeScope::Iteration { iteration } => {
                let one = self.iteration(*iteration, at);
                one.line.verdicts += 1;
                one.line.resolved += u32::from(resolved);
                one.rewards += f64::from(reward);
            }
            EpisodeScope::Evaluation { .. } => {
                let one = self.evaluation(&scope);
                one.verdicts += 1;
                one.resolved += u32::from(resolved);
            }
        }
        self.ended.push(Ended { path, resolved, reward });
    }

    fn iteration(&mut self, iteration: u32, at: i64) -> &mut Iteration {
        self.iterations.entry(iteration).or_insert_with(|| Iteration {
            line: IterationLine {
                iteration,
                scope: paths::scope(&EpisodeScope::Iteration { iteration }),
                began: at,
                ..IterationLine::default()
            },
            ..Iteration::default()
        })
    }

    fn evaluation(&mut self, scope: &EpisodeScope) -> &mut EvaluationLine {
        let folder = paths::scope(scope);
        if let (EpisodeScope::Evaluation { set, weights }, false) = (scope, self.evaluations.contains_key(&folder)) {
            self.version(weights).evaluations.push(set.clone());
            let line = EvaluationLine {
                set: set.clone(),
                weights: weights.clone(),
                scope: folder.clone(),
                step: paths::step_of_weights(weights),
                ..EvaluationLine::default()
            };
            self.evaluations.insert(folder.clone(), line);
        }
        self.evaluations.entry(folder).or_default()
    }

    fn version(&mut self, version: &str) -> &mut VersionLine {
        let step = paths::step_of_weights(version).unwrap_or(0);
        self.versions
            .entry((step, version.to_owned()))
            .or_insert_with(|| VersionLine {
                version: version.to_owned(),
                lineage: version
                    .rsplit_once("-v")
                    .map_or(version, |(lineage, _)| lineage)
                    .to_owned(),
                step,
                ..VersionLine::default()
            })
    }

    /// The run as a whole.
    pub fn run(&self) -> RunView {
        let iterations = self.iterations.values().map(|one| IterationLine {
            reward_mean: (one.line.verdicts > 0).then(|| one.rewards / f64::from(one.line.verdicts)),
            ..one.line.clone()
        });
        let versions = self.versions.values().map(|version| VersionLine {
            staleness: self.metrics.staleness(version.step),
            ..version.clone()
        });
        let mut evaluations: Vec<EvaluationLine> = self.evaluations.values().cloned().collect();
        evaluations.sort_by(|a, b| (&a.set, a.step, &a.weights).cmp(&(&b.set, b.step, &b.weights)));
        RunView {
            iterations: iterations.collect(),
            versions: versions.collect(),
            evaluations,
            voids: self
                .voids
                .iter()
                .map(|(name, count)| Count {
                    name: name.clone(),
                    count: *count,
                })
                .collect(),
            curves: self.metrics.curves(self.evaluations.values()),
            damaged: self.metrics.damaged(),
            ..self.run.clone()
        }
    }

    /// Void attempts of a scope.
    pub fn voids_of(&self, scope: &str) -> Vec<VoidLine> {
        self.void_attempts.get(scope).cloned().unwrap_or_default()
    }

    /// Why groups of a scope are not in its batch.
    pub fn dropped(&self, scope: &EpisodeScope) -> BTreeMap<u32, String> {
        let EpisodeScope::Iteration { iteration } = scope else {
            return BTreeMap::new();
        };
        let dropped = self.iterations.get(iteration).map(|one| &one.dropped);
        let named = dropped.into_iter().flatten();
        named.map(|(group, reason)| (*group, format!("{reason:?}"))).collect()
    }

    /// The step that trained on an iteration's batch.
    pub fn step_of(&self, scope: &EpisodeScope) -> Option<StepOf> {
        let EpisodeScope::Iteration { iteration } = scope else {
            return None;
        };
        Some(StepOf {
            run: self.run.uid.clone(),
            step: self.iterations.get(iteration)?.line.step?,
        })
    }

    /// The advantages that a step used: for each group of its batch, in the order of the batch.
    pub fn advantages(&self, step: u32) -> Option<&[Vec<f64>]> {
        self.metrics.advantages(step)
    }

    /// Number of episodes with a verdict.
    pub fn ended(&self) -> usize {
        self.ended.len()
    }

    /// Folder of an episode with a verdict, in the order of verdicts.
    pub fn ended_at(&self, at: usize) -> Option<&str> {
        self.ended.get(at).map(|ended| ended.path.as_str())
    }

    /// The episodes of a task, by scope.
    pub fn task(&self, instance: &str) -> TaskView {
        let mut scopes: BTreeMap<(EpisodeScope, u32), Vec<Found>> = BTreeMap::new();
        for (place, ended) in self.ended.iter().enumerate() {
            let Some((scope, name)) = paths::parse_episode(&ended.path) else {
                continue;
            };
            if instance_of(name) == instance {
                let group = EpisodeKey::group_of(name).unwrap_or(0);
                scopes.entry((scope, group)).or_default().extend(self.found(place));
            }
        }
        let scopes = scopes.into_iter().map(|((scope, group), mut episodes)| {
            episodes.sort_by(|a, b| a.path.cmp(&b.path));
            TaskScope {
                title: scope.to_string(),
                scope: paths::scope(&scope),
                group,
                episodes,
            }
        });
        TaskView {
            instance: instance.to_owned(),
            scopes: scopes.collect(),
        }
    }

    /// An episode with a verdict, as search results show it.
    pub fn found(&self, at: usize) -> Option<Found> {
        let ended = self.ended.get(at)?;
        Some(Found {
            path: ended.path.clone(),
            outcome: outcome_word(ended.resolved).to_owned(),
            reward: Some(ended.reward.into()),
            note: None,
        })
    }

    /// The places of episodes with this word, given in lower case, in their folder or as their outcome.
    pub fn named(&self, word: &str) -> impl Iterator<Item = usize> {
        let fits = move |ended: &Ended| {
            let outcome = outcome_word(ended.resolved);
            outcome.eq_ignore_ascii_case(word) || ended.path.to_ascii_lowercase().contains(word)
        };
        let all = self.ended.iter().enumerate();
        all.filter(move |(_, ended)| fits(ended)).map(|(at, _)| at)
    }
}

fn outcome_word(resolved: bool) -> &'static str {
    if resolved { "Resolved" } else { "Unresolved" }
}

/// The task in an episode's name: `<instance>__g<group>__i<sample>`.
pub fn instance_of(name: &str) -> &str {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let mut rest = name;
    for prefix in ["t", "i", "g"] {
        if let Some((before, last)) = rest.rsplit_once("__")
            && last.strip_prefix(prefix).is_some_and(is_number)
        {
            rest = before;
        }
    }
    rest
}

fn agent_name(agent: &RunAgent) -> String {
    match agent {
        RunAgent::Bash => "bash".to_owned(),
        RunAgent::Tools { format } => format!("tools ({format})"),
        RunAgent::Cli { format, .. } => format!("command line ({format})"),
    }
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
