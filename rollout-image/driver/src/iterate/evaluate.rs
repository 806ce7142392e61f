//! Evaluations of fixed sets when they are due, once for each weights version.

use super::{Draw, Run};
use crate::fault::{DriverError, TerminalFault};
use grpo_contracts::reason::Reason;
use grpo_crds::grpo_run::OnSync;
use grpo_crds::progress::{Evaluation, Stage};
use grpo_engine_protocol::BASE_VERSION;
use grpo_records::settings::Cadence;
use grpo_records::state::EvaluationState;
use grpo_records::{EpisodeMeta, EpisodeScope, Event, Outcome, RunState, paths};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// When a set is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    Start,
    After(u32),
}

impl Run {
    pub(super) async fn evaluate_only(&self) -> Result<(), DriverError> {
        self.sample_base();
        self.wait_synced().await?;
        self.before_evaluating(BASE_VERSION).await?;
        for set in 0..self.settings.evaluate.len() {
            self.evaluate(set, BASE_VERSION).await?;
        }
        Ok(())
    }

    /// Evaluates all sets that are due and not measured; a restarted driver does the same. If a restarted trainer
    /// brings other weights meanwhile, evaluates those instead.
    pub(super) async fn evaluations(&self, moment: Moment) -> Result<(), DriverError> {
        let mut wanted = self.wanted.subscribe();
        loop {
            let version = wanted.borrow_and_update().clone();
            tokio::select! {
                done = self.evaluations_under(moment, &version) => return done,
                _ = wanted.changed() => tracing::info!(version, "evaluating the weights that were promoted meanwhile"),
            }
        }
    }

    /// The same after the last step, `last`, without further changes: nothing follows that could take them up.
    pub(super) async fn evaluations_of_the_end(&self, last: u32) -> Result<(), DriverError> {
        let version = self.wanted.borrow().clone();
        self.due_under(Moment::After(last), &version).await
    }

    async fn evaluations_under(&self, moment: Moment, version: &str) -> Result<(), DriverError> {
        self.before_evaluating(version).await?;
        self.due_under(moment, version).await
    }

    async fn due_under(&self, moment: Moment, version: &str) -> Result<(), DriverError> {
        let live = self.live.now();
        for (at, set) in self.settings.evaluate.iter().enumerate() {
            let cadence = live.evaluate.iter().find(|cadence| cadence.set == set.name);
            if cadence.is_some_and(|cadence| is_due(cadence, moment, live.iterations)) {
                self.evaluate(at, version).await?;
            }
        }
        Ok(())
    }

    /// Applies changes, unless an earlier driver began an evaluation: all episodes of a set are sampled with the same
    /// settings.
    async fn before_evaluating(&self, version: &str) -> Result<(), DriverError> {
        for set in &self.settings.evaluate {
            let key = (set.name.clone(), version.to_owned());
            let scope = EpisodeScope::Evaluation {
                set: key.0.clone(),
                weights: key.1.clone(),
            };
            let (_, begun) = self.store.names_in(&paths::scope(&scope)).await?;
            let done = self.journal.read(|state| state.evaluations.contains_key(&key)).await;
            if !begun.is_empty() && !done {
                return Ok(());
            }
        }
        self.take_changes().await
    }

    /// Measures a set under `version`, unless the journal has its result.
    pub(super) async fn evaluate(&self, at: usize, version: &str) -> Result<(), DriverError> {
        let set = &self.settings.evaluate[at];
        let key = (set.name.clone(), version.to_owned());
        let known = self.journal.read(|state| state.evaluations.get(&key).cloned()).await;
        // Earlier versions recorded evaluations without a verdict.
        if known.is_some_and(|known| known.episodes > 0) {
            return Ok(());
        }
        let scope = EpisodeScope::Evaluation {
            set: set.name.clone(),
            weights: version.to_owned(),
        };
        let tasks = &self.evaluation_tasks[at];
        let draw = Draw {
            samples: set.samples,
            seed: set.seed,
            sampling: self.live.now().sampling,
            weights: watch::channel(version.to_owned()).1,
            // A set is measured under one version.
            on_sync: OnSync::Drain,
            stop: CancellationToken::new(),
        };
        let groups = (0..tasks.len() as u32).map(|at| (at, at));
        let plans = self.plans(&scope, groups, tasks, &draw)?;
        let metas = self.rolled_out(Stage::Evaluating, &scope, plans, None).await?;
        let count = |of: fn(&Outcome) -> bool| metas.iter().filter(|meta| of(&meta.outcome)).count() as u32;
        let result = EvaluationState {
            resolved: count(|outcome| *outcome == Outcome::Resolved),
            episodes: count(Outcome::is_verdict),
            voids: count(|outcome| !outcome.is_verdict()),
        };
        // Not recorded: the next driver measures the set.
        if result.episodes == 0 {
            return Err(nothing_measured(&set.name, version, &metas).into());
        }
        self.journal
            .record(Event::EvaluationDone {
                set: key.0.clone(),
                weights: key.1.clone(),
                resolved: result.resolved,
                episodes: result.episodes,
                voids: result.voids,
            })
            .await?;
        tracing::info!(set = %set.name, version, resolved = result.resolved, episodes = result.episodes, "evaluated");
        self.board.evaluated(shown(&key, &result));
        Ok(())
    }
}

fn nothing_measured(set: &str, version: &str, metas: &[EpisodeMeta]) -> TerminalFault {
    let message = format!(
        "no episode of the set {set} under {version} came to a verdict, {} are void; for example {}",
        metas.len(),
        super::batch::example_of_void(metas)
    );
    TerminalFault::new(Reason::NoValidEpisodes, message)
}

/// The last iteration may exceed the current number of iterations.
fn is_due(cadence: &Cadence, moment: Moment, iterations: u32) -> bool {
    match moment {
        Moment::Start => cadence.at_start,
        Moment::After(k) => {
            cadence.every.is_some_and(|every| k.is_multiple_of(every)) || (k >= iterations && cadence.at_end)
        }
    }
}

fn shown(key: &(String, String), result: &EvaluationState) -> Evaluation {
    Evaluation {
        set: key.0.clone(),
        weights: key.1.clone(),
        resolved_rate: match result.episodes {
            0 => 0.0,
            episodes => f64::from(result.resolved) / f64::from(episodes),
        },
        episodes: result.episodes,
    }
}

/// Evaluations of earlier drivers of this run, for the board, newest version last.
pub fn evaluations_shown(state: &RunState) -> Vec<Evaluation> {
    let mut evaluations: Vec<_> = state.evaluations.iter().collect();
    // As text, l1-v10 comes before l1-v2. The base model has no step.
    evaluations.sort_by_key(|((_, version), _)| {
        let lineage = version.split_once("-v").map_or("", |(lineage, _)| lineage);
        (paths::lineage_number(lineage), paths::step_of_weights(version))
    });
    evaluations
        .into_iter()
        .map(|(key, result)| shown(key, result))
        .collect()
}

#[cfg(test)]
mod tests;
