//! The loop of a run: evaluate, roll out, train, promote; and where to go on after a restart.
//!
//! Every decision is in the journal before anything follows from it. An iteration that was begun keeps its tasks; a batch that
//! was written is trained on; weights that were promoted are what engines are made to serve.

use crate::batches::{self, Heading};
use crate::config::{self, Settings};
use crate::episode::Plan;
use crate::fault::{DriverError, Fault};
use crate::ledger::Ledger;
use crate::metrics::{IterationRecord, Metrics};
use crate::progress::Board;
use crate::promote::{self, Target, View};
use crate::rollout::{Rollouts, Tally};
use crate::tasks::{self, Task};
use crate::trainer::TrainerClient;
use grpo_crds::grpo_run::Mode;
use grpo_crds::progress::{Evaluation, Stage};
use grpo_engine_protocol::{BASE_VERSION, WeightsOrder};
use grpo_records::store::sha256_hex;
use grpo_records::trainer::{StepRequest, StepState, TrainerPhase};
use grpo_records::{
    Created, EpisodeHome, EpisodeKey, EpisodeMeta, Event, Outcome, RunStore, WeightsManifest, Writer, paths,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How often the trainer is asked whether it came back with another lineage.
const LINEAGE_EVERY: Duration = Duration::from_secs(5);

/// A run under way.
pub struct Run {
    pub settings: Settings,
    pub store: RunStore,
    pub writer: Writer,
    pub ledger: Arc<Ledger>,
    pub rollouts: Rollouts,
    pub trainer: TrainerClient,
    pub board: Board,
    pub metrics: Arc<Metrics>,
    /// What episodes ask engines for.
    pub wanted: watch::Sender<String>,
    /// What engines are told to serve.
    pub target: watch::Sender<Option<Target>>,
    pub view: watch::Receiver<View>,
    /// What the trainer is waited for, in words.
    pub note: watch::Sender<Option<String>>,
    pub train_tasks: Vec<Arc<Task>>,
    /// In the order of the settings' evaluations.
    pub evaluation_tasks: Vec<Vec<Arc<Task>>>,
}

/// When a set is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    Start,
    After(u32),
}

impl Run {
    /// Everything from here to the end of the run.
    pub async fn go(&self) -> Result<(), DriverError> {
        match self.settings.mode {
            Mode::Train => self.train().await?,
            Mode::Evaluate => self.evaluate_only().await?,
        }
        self.ledger
            .record_if(|state| {
                let done = state.finished.as_ref().is_some_and(|finished| finished.succeeded);
                (!done).then_some(Event::RunFinished {
                    succeeded: true,
                    reason: None,
                    message: None,
                })
            })
            .await?;
        Ok(())
    }

    async fn evaluate_only(&self) -> Result<(), DriverError> {
        self.aim(BASE_VERSION, None, None).await?;
        self.synced(BASE_VERSION).await?;
        for set in 0..self.settings.evaluate.len() {
            self.evaluate(set, BASE_VERSION).await?;
        }
        Ok(())
    }

    async fn train(&self) -> Result<(), DriverError> {
        self.take_up_trainer().await?;
        tokio::select! {
            trained = self.iterations() => trained,
            failed = self.watch_lineage() => Err(failed),
        }
    }

    /// Promotes the weights the trainer stands at, unless they are promoted already; then has the engines follow.
    async fn take_up_trainer(&self) -> Result<(), DriverError> {
        self.board.begin(Stage::Starting);
        let known = self.ledger.read(|state| state.promoted.clone()).await;
        // With promoted weights in the journal engines can follow while the trainer still comes up.
        if let Some(promoted) = &known {
            self.follow(&promoted.weights, &promoted.manifest_sha256).await?;
        }
        let state = self.noting(|note| self.trainer.ready(note)).await?;
        let last_step = self
            .ledger
            .read(|s| s.steps.keys().next_back().copied().unwrap_or(0))
            .await;
        if known.is_none() && state.step > 0 {
            let message = format!(
                "the trainer stands at step {} of lineage {}, but the journal knows of none; the store lost its journal/",
                state.step, state.lineage
            );
            return Err(Fault::new("TrainerAhead", message).into());
        }
        // A step that is done and not in the journal is found again when it is asked for.
        if state.step == last_step && known.is_none_or(|promoted| promoted.weights != state.weights) {
            self.promote(&state.weights, &state.manifest_sha256, state.step).await?;
        }
        let version = self.wanted.borrow().clone();
        self.synced(&version).await?;
        self.board.end(Stage::Starting);
        Ok(())
    }

    async fn iterations(&self) -> Result<(), DriverError> {
        let finished = self.ledger.read(|state| state.finished_iterations()).await;
        if finished == 0 {
            self.evaluations(Moment::Start).await?;
        }
        let mut pending: Option<(u32, StepRequest)> = None;
        for k in finished + 1..=self.settings.iterations {
            self.metrics.iteration.set(i64::from(k));
            let batch = match pending.take() {
                // The next rollout overlaps the step.
                Some((j, request)) => tokio::try_join!(self.step(j, request), self.batch_of(k))?.1,
                None => self.batch_of(k).await?,
            };
            match self.settings.max_staleness {
                0 => self.step(k, batch).await?,
                _ => pending = Some((k, batch)),
            }
        }
        if let Some((k, request)) = pending {
            self.step(k, request).await?;
        }
        if finished >= self.settings.iterations {
            // Everything was done; evaluations that a crash left out are not.
            self.evaluations(Moment::After(self.settings.iterations)).await?;
        }
        Ok(())
    }

    /// The stored batch of an iteration; rolls out what is missing of it first.
    async fn batch_of(&self, k: u32) -> Result<StepRequest, DriverError> {
        let begun = self.ledger.read(|state| state.iterations.get(&k).cloned()).await;
        if let Some(sha256) = begun.as_ref().and_then(|one| one.batch_sha256.clone()) {
            return Ok(StepRequest {
                batch: paths::batch(k),
                sha256,
            });
        }
        let positions = match begun {
            Some(one) => one.tasks,
            None => self.begin_iteration(k).await?,
        };
        let home = EpisodeHome::Iteration { iteration: k };
        let plans = self.plans(
            &home,
            &positions,
            &self.train_tasks,
            self.settings.samples,
            self.settings.seed,
        );
        self.board.change(|progress| progress.iteration = Some(k));
        let metas = self.rolled_out(Stage::Rollout, &home, plans).await?;
        self.write_batch(k, &metas).await
    }

    async fn begin_iteration(&self, k: u32) -> Result<Vec<u32>, DriverError> {
        let Some(training) = &self.settings.train else {
            return Err(Fault::new("NoTasks", "mode Train needs tasks.train").into());
        };
        let tasks = tasks::for_iteration(
            training.order,
            training.seed,
            self.train_tasks.len(),
            self.settings.prompts as usize,
            k,
        );
        let event = Event::IterationStarted {
            iteration: k,
            weights: self.wanted.borrow().clone(),
            tasks: tasks.clone(),
        };
        self.ledger.record(event).await?;
        Ok(tasks)
    }

    fn plans(&self, home: &EpisodeHome, positions: &[u32], tasks: &[Arc<Task>], samples: u32, seed: u64) -> Vec<Plan> {
        let groups = positions.iter().enumerate();
        let planned = groups.flat_map(|(group, position)| {
            let task = tasks.get(*position as usize).cloned();
            task.into_iter().flat_map(move |task| {
                (0..samples).map(move |sample| Plan {
                    key: EpisodeKey {
                        home: home.clone(),
                        instance: task.instance.clone(),
                        group: group as u32,
                        sample,
                    },
                    task: task.clone(),
                    seed,
                })
            })
        });
        planned.collect()
    }

    /// Runs episodes while the board shows how far they are.
    async fn rolled_out(
        &self,
        stage: Stage,
        home: &EpisodeHome,
        plans: Vec<Plan>,
    ) -> Result<Vec<EpisodeMeta>, DriverError> {
        self.board.begin(stage);
        let (tally, seen) = watch::channel(Tally::default());
        let metas = tokio::select! {
            metas = self.rollouts.run(home, plans, &tally) => metas,
            () = self.show(seen) => return Err(DriverError::Other("the board stopped".into())),
        };
        self.board.end(Stage::Grading);
        self.board.end(stage);
        metas
    }

    /// Never ends by itself.
    async fn show(&self, mut tally: watch::Receiver<Tally>) {
        let mut grading = self.rollouts.episodes.grading.subscribe();
        loop {
            let now = *tally.borrow_and_update();
            let is_grading = *grading.borrow_and_update() > 0;
            let void = self.ledger.read(|state| state.voids.values().sum::<u64>()).await;
            self.board.change(|progress| {
                progress.episodes_done = Some(now.done);
                progress.episodes_total = Some(now.total);
                progress.void = Some(void as u32);
                progress.stages.retain(|stage| *stage != Stage::Grading);
                if is_grading {
                    progress.stages.push(Stage::Grading);
                }
            });
            tokio::select! {
                changed = tally.changed() => if changed.is_err() { std::future::pending::<()>().await },
                _ = grading.changed() => {}
            }
        }
    }

    /// Makes the batch, its record in numbers and the entries for what was left out; then the batch is a fact.
    async fn write_batch(&self, k: u32, metas: &[EpisodeMeta]) -> Result<StepRequest, DriverError> {
        let heading = Heading {
            writer: self.writer.clone(),
            run: self.settings.uid.clone(),
            iteration: k,
            step: k,
            max_staleness: self.settings.max_staleness,
        };
        let made = batches::make(&self.store, heading, metas)
            .await
            .map_err(|error| DriverError::Other(format!("making the batch of step {k}: {error}")))?;
        let weights = self
            .ledger
            .read(|s| s.iterations.get(&k).map(|one| one.weights.clone()))
            .await;
        let record = IterationRecord {
            groups_dropped: made.dropped.len() as u32,
            groups_constant: made.constant,
            staleness_max: made.staleness_max,
            ..IterationRecord::of(self.writer.clone(), k, weights.unwrap_or_default(), metas)
        };
        for event in made.dropped {
            self.record_drop_once(event).await?;
        }
        if made.batch.rows.is_empty() {
            return Err(no_valid_episodes(k, metas).into());
        }
        self.store.create(&paths::driver_metrics(k), &record).await?;
        let path = paths::batch(k);
        let sha256 = match self.store.create(&path, &made.batch).await? {
            Created::Written { sha256 } => sha256,
            // Written before a crash that came before its entry.
            Created::Existed => sha256_hex(&self.store.bytes(&path).await?),
        };
        self.ledger
            .record(Event::BatchWritten {
                iteration: k,
                step: k,
                sha256: sha256.clone(),
                rows: made.batch.rows.len() as u32,
            })
            .await?;
        tracing::info!(
            iteration = k,
            resolved = record.resolved,
            episodes = record.episodes,
            voids = record.voids,
            "batch written"
        );
        self.board.change(|progress| {
            progress.resolved_rate = Some(record.resolved_rate);
            progress.reward = Some(record.reward_mean);
            progress.staleness = Some(record.staleness_max);
        });
        Ok(StepRequest { batch: path, sha256 })
    }

    async fn record_drop_once(&self, event: Event) -> Result<(), DriverError> {
        let Event::GroupDropped { iteration, group, .. } = event else {
            return Ok(());
        };
        let noted = self.ledger.record_if(|state| {
            let known = state
                .iterations
                .get(&iteration)
                .is_some_and(|one| one.dropped.contains(&group));
            (!known).then(|| event.clone())
        });
        noted.await.map(|_| ())
    }

    /// Step `k`, promotion of what came out, and the evaluations that are due then.
    async fn step(&self, k: u32, request: StepRequest) -> Result<(), DriverError> {
        self.board.begin(Stage::Training);
        let done = self.noting(|note| self.trainer.step(k, &request, note)).await?;
        let (weights, manifest_sha256) = self.published(k, &done).await?;
        self.ledger
            .record(Event::StepDone {
                step: k,
                weights: weights.clone(),
                manifest_sha256: manifest_sha256.clone(),
            })
            .await?;
        if let Some(metrics) = &done.metrics {
            self.board.change(|progress| {
                progress.loss = Some(metrics.loss);
                progress.logprob_gap_max = Some(metrics.logprob_gap_max);
            });
        }
        self.board.end(Stage::Training);
        self.promote(&weights, &manifest_sha256, k).await?;
        self.synced(&weights).await?;
        self.evaluations(Moment::After(k)).await
    }

    /// The version a step published, from its answer or, where a restarted trainer's answer has none, from its state.
    async fn published(&self, k: u32, done: &StepState) -> Result<(String, String), DriverError> {
        if let (Some(weights), Some(sha256)) = (&done.weights, &done.manifest_sha256) {
            return Ok((weights.clone(), sha256.clone()));
        }
        let state = self.trainer.state().await.map_err(DriverError::Other)?;
        if state.step == k {
            Ok((state.weights, state.manifest_sha256))
        } else {
            Err(DriverError::Other(format!(
                "the trainer says that step {k} is done, but not which weights it published"
            )))
        }
    }

    /// The entry is the promotion; engines and episodes follow.
    async fn promote(&self, weights: &str, manifest_sha256: &str, step: u32) -> Result<(), DriverError> {
        self.ledger
            .record(Event::Promoted {
                weights: weights.to_owned(),
                manifest_sha256: manifest_sha256.to_owned(),
                step,
            })
            .await?;
        tracing::info!(weights, "promoted");
        self.follow(weights, manifest_sha256).await
    }

    async fn follow(&self, weights: &str, manifest_sha256: &str) -> Result<(), DriverError> {
        let path = paths::weights_manifest(weights);
        let bytes = self.store.bytes(&path).await?;
        if sha256_hex(&bytes) != manifest_sha256 {
            let message = format!("{path} is not what the trainer said it published; the store was changed by hand");
            return Err(Fault::new("WeightsCorrupt", message).into());
        }
        let manifest: WeightsManifest = self.store.read_json(&path).await?;
        let order = WeightsOrder {
            version: weights.to_owned(),
            source: format!("{}/weights/{weights}", self.settings.driver.trim_end_matches('/')),
            manifest_sha256: manifest_sha256.to_owned(),
        };
        self.aim(weights, Some(order), Some(manifest.tensors_sha256)).await
    }

    async fn aim(
        &self,
        version: &str,
        order: Option<WeightsOrder>,
        tensors_sha256: Option<String>,
    ) -> Result<(), DriverError> {
        self.wanted.send_replace(version.to_owned());
        self.target.send_replace(Some(Target {
            version: version.to_owned(),
            order,
            tensors_sha256,
        }));
        self.board
            .change(|progress| progress.weights = Some(version.to_owned()));
        Ok(())
    }

    /// Waits until the engines serve `version`.
    async fn synced(&self, version: &str) -> Result<(), DriverError> {
        self.board.begin(Stage::Syncing);
        let mut view = self.view.clone();
        let updated = tokio::select! {
            updated = promote::until_updated(self.view.clone(), version) => updated.map_err(DriverError::Other),
            () = async {
                while view.changed().await.is_ok() {
                    let message = view.borrow_and_update().message.clone();
                    self.board.change(|progress| progress.message = message);
                }
                std::future::pending::<()>().await;
            } => return Ok(()),
        };
        let updated = updated?;
        tracing::info!(
            version,
            replicas = updated.updated,
            absent = updated.absent,
            "engines serve it"
        );
        self.board.change(|progress| progress.message = None);
        self.board.end(Stage::Syncing);
        Ok(())
    }

    async fn evaluations(&self, moment: Moment) -> Result<(), DriverError> {
        let version = self.wanted.borrow().clone();
        for (at, set) in self.settings.evaluate.iter().enumerate() {
            if is_due(set, moment, self.settings.iterations) {
                self.evaluate(at, &version).await?;
            }
        }
        Ok(())
    }

    /// Measures a set under `version`, unless the journal says that it was measured.
    async fn evaluate(&self, at: usize, version: &str) -> Result<(), DriverError> {
        let set = &self.settings.evaluate[at];
        let key = (set.name.clone(), version.to_owned());
        let known = self.ledger.read(|state| state.evaluations.get(&key).cloned()).await;
        let known = match known {
            Some(known) => known,
            None => {
                let home = EpisodeHome::Evaluation {
                    set: set.name.clone(),
                    weights: version.to_owned(),
                };
                let tasks = &self.evaluation_tasks[at];
                let positions: Vec<u32> = (0..tasks.len() as u32).collect();
                let plans = self.plans(&home, &positions, tasks, set.samples, set.seed);
                let metas = self.rolled_out(Stage::Evaluating, &home, plans).await?;
                let count = |of: fn(&Outcome) -> bool| metas.iter().filter(|meta| of(&meta.outcome)).count() as u32;
                let result = grpo_records::state::EvaluationState {
                    resolved: count(|outcome| *outcome == Outcome::Resolved),
                    episodes: count(Outcome::is_verdict),
                    voids: count(|outcome| !outcome.is_verdict()),
                };
                self.ledger
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
                result
            }
        };
        if known.episodes == 0 {
            let message = format!("no episode of the set {} under {version} came to a verdict", set.name);
            return Err(Fault::new("NoValidEpisodes", message).into());
        }
        Ok(())
    }

    /// Looks whether a restarted trainer stands at the promoted step with other weights, and promotes those.
    async fn watch_lineage(&self) -> DriverError {
        loop {
            tokio::time::sleep(LINEAGE_EVERY).await;
            let Ok(state) = self.trainer.state().await else {
                continue;
            };
            let promoted = self.ledger.read(|s| s.promoted.clone()).await;
            let moved = promoted.is_some_and(|p| p.step == state.step && p.weights != state.weights);
            if state.phase == TrainerPhase::Idle && moved {
                tracing::warn!(weights = %state.weights, "the trainer came back with another lineage");
                if let Err(error) = self.promote(&state.weights, &state.manifest_sha256, state.step).await {
                    return error;
                }
            }
        }
    }

    /// Shows what the trainer is waited for while `call` waits for it.
    async fn noting<'a, T, F>(
        &'a self,
        call: impl FnOnce(&'a watch::Sender<Option<String>>) -> F,
    ) -> Result<T, DriverError>
    where
        F: Future<Output = Result<T, DriverError>> + 'a,
    {
        let mut seen = self.note.subscribe();
        let result = tokio::select! {
            result = call(&self.note) => result,
            () = async {
                while seen.changed().await.is_ok() {
                    let message = seen.borrow_and_update().clone();
                    self.board.change(|progress| progress.message = message);
                }
                std::future::pending::<()>().await;
            } => Err(DriverError::Other("nobody waits for the trainer".into())),
        };
        self.board.change(|progress| progress.message = None);
        result
    }
}

fn is_due(set: &config::Evaluation, moment: Moment, iterations: u32) -> bool {
    match moment {
        Moment::Start => set.at_start,
        Moment::After(k) => set.every.is_some_and(|every| k % every == 0) || (k == iterations && set.at_end),
    }
}

fn shown(key: &(String, String), result: &grpo_records::state::EvaluationState) -> Evaluation {
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

/// What earlier drivers of this run evaluated, for the board.
pub fn evaluations_shown(state: &grpo_records::RunState) -> Vec<Evaluation> {
    state
        .evaluations
        .iter()
        .map(|(key, result)| shown(key, result))
        .collect()
}

fn no_valid_episodes(k: u32, metas: &[EpisodeMeta]) -> Fault {
    let example = metas.iter().find_map(|meta| match &meta.outcome {
        Outcome::Void { reason } => Some(format!("{reason:?}: {}", meta.message.clone().unwrap_or_default())),
        _ => None,
    });
    Fault::new(
        "NoValidEpisodes",
        format!(
            "no group of iteration {k} has two valid episodes, {} of {} are void; for example {}",
            metas.iter().filter(|meta| !meta.outcome.is_verdict()).count(),
            metas.len(),
            example.unwrap_or_else(|| "their tokens are too stale".into())
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::Selection;

    fn set(every: Option<u32>, at_start: bool, at_end: bool) -> config::Evaluation {
        config::Evaluation {
            name: "s".into(),
            tasks: Selection::default(),
            samples: 1,
            seed: 0,
            every,
            at_start,
            at_end,
        }
    }

    #[test]
    fn sets_are_due_at_start_at_end_and_every_so_often() {
        let due = |set: &config::Evaluation| {
            let mut moments = vec![Moment::Start];
            moments.extend((1..=5).map(Moment::After));
            moments
                .into_iter()
                .map(|moment| is_due(set, moment, 5))
                .collect::<Vec<_>>()
        };
        assert_eq!(due(&set(None, true, true)), [true, false, false, false, false, true]);
        assert_eq!(
            due(&set(Some(2), false, false)),
            [false, false, true, false, true, false]
        );
        assert_eq!(due(&set(Some(2), false, true)), [false, false, true, false, true, true]);
    }
}
