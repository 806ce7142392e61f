//! The loop of a run: evaluate, roll out, train, promote; and where to go on after a restart.
//!
//! Every decision is in the journal before anything follows from it. An iteration that was begun keeps its tasks; a
//! batch that was written is trained on; weights that were promoted are what engines are made to serve. What changes in
//! the run while it runs is taken over before something new is begun.

mod changes;
mod evaluate;
mod weights;

pub use evaluate::evaluations_shown;

use self::evaluate::Moment;
use crate::batches::{self, Heading};
use crate::config::Settings;
use crate::episode::EpisodePlan;
use crate::fault::{DriverError, TerminalFault};
use crate::live::Live;
use crate::metrics::{IterationRecord, Metrics};
use crate::progress::{Board, Topic};
use crate::replicas::switch::{Target, View};
use crate::rollout::{Rollouts, Tally};
use crate::shared_journal::SharedJournal;
use crate::tasks::{Task, selection};
use crate::trainer::TrainerClient;
use grpo_contracts::support;
use grpo_crds::grpo_run::Mode;
use grpo_crds::progress::Stage;
use grpo_records::settings::Sampling;
use grpo_records::store::sha256_hex;
use grpo_records::trainer::{CheckpointOrder, StepRequest};
use grpo_records::{Created, EpisodeKey, EpisodeMeta, EpisodeScope, Event, Outcome, RunStore, Writer, paths};
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::{Mutex, watch};

/// How episodes are drawn.
#[derive(Clone, Debug)]
struct Draw {
    /// Episodes of one task.
    samples: u32,
    seed: u64,
    sampling: Sampling,
    /// The promoted ones, or those that a set is measured under.
    weights: watch::Receiver<String>,
}

/// A run under way.
pub struct Run {
    pub settings: Settings,
    pub store: RunStore,
    pub writer: Writer,
    pub journal: Arc<SharedJournal>,
    pub live: Live,
    pub rollouts: Rollouts,
    pub trainer: TrainerClient,
    pub board: Board,
    pub metrics: Arc<Metrics>,
    /// What episodes of iterations ask engines for.
    pub wanted: watch::Sender<String>,
    pub promoting: Mutex<()>,
    /// What engines are told to serve.
    pub target: watch::Sender<Option<Target>>,
    pub view: watch::Receiver<View>,
    /// What the trainer is waited for, in words.
    pub note: watch::Sender<Option<String>>,
    pub train_tasks: Vec<Arc<Task>>,
    /// In the order of the settings' evaluations.
    pub evaluation_tasks: Vec<Vec<Arc<Task>>>,
}

impl Run {
    /// Everything from here to the end of the run.
    pub async fn go(&self) -> Result<(), DriverError> {
        tokio::select! {
            done = self.in_its_mode() => done?,
            never = self.show_images() => match never {},
            never = self.show_engines() => match never {},
        }
        // What a finished run does not wait for any more.
        for topic in [Topic::Trainer, Topic::Engines, Topic::Images] {
            self.board.say(topic, None);
        }
        self.journal
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

    async fn in_its_mode(&self) -> Result<(), DriverError> {
        match self.settings.mode {
            Mode::Train => self.train().await,
            Mode::Evaluate => self.evaluate_only().await,
            // Refused where the settings are read.
            mode @ (Mode::Validate | Mode::Finetune) => {
                Err(TerminalFault::new(support::REASON, format!("this driver has no mode {mode:?}")).into())
            }
        }
    }

    /// Says on the board which images cannot be pulled.
    async fn show_images(&self) -> Infallible {
        let images = self.rollouts.episodes.gateway.images();
        images.follow(|message| self.board.say(Topic::Images, message)).await
    }

    /// Says on the board what is wrong with engines, whether or not they are waited for.
    async fn show_engines(&self) -> Infallible {
        let mut view = self.view.clone();
        loop {
            let message = view.borrow_and_update().message.clone();
            self.board.say(Topic::Engines, message);
            if view.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    async fn train(&self) -> Result<(), DriverError> {
        self.take_up_trainer().await?;
        tokio::select! {
            trained = self.iterations() => trained,
            failed = self.watch_lineage() => Err(failed),
        }
    }

    async fn iterations(&self) -> Result<(), DriverError> {
        let finished = self.journal.read(|state| state.finished_iterations()).await;
        // Those that a driver before this one did not come to, or did not finish.
        self.evaluations(match finished {
            0 => Moment::Start,
            _ => Moment::After(finished),
        })
        .await?;
        let mut pending: Option<(u32, StepRequest)> = None;
        for k in finished + 1.. {
            if !self.journal.read(|state| state.iterations.contains_key(&k)).await {
                self.take_changes().await?;
            }
            if k > self.live.now().iterations {
                break;
            }
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
        Ok(())
    }

    /// The stored batch of an iteration; rolls out what is missing of it first.
    async fn batch_of(&self, k: u32) -> Result<StepRequest, DriverError> {
        let begun = self.journal.read(|state| state.iterations.get(&k).cloned()).await;
        if let Some(sha256) = begun.as_ref().and_then(|one| one.batch_sha256.clone()) {
            return Ok(StepRequest {
                batch: paths::batch(k),
                sha256,
                checkpoint: None,
            });
        }
        let positions = match begun {
            Some(one) => one.tasks,
            None => self.begin_iteration(k).await?,
        };
        let scope = EpisodeScope::Iteration { iteration: k };
        let sampling = self
            .journal
            .read(|state| state.iterations.get(&k).and_then(|one| one.sampling))
            .await;
        let draw = Draw {
            samples: self.settings.samples,
            seed: self.settings.seed,
            sampling: sampling.unwrap_or_else(|| self.live.now().sampling),
            weights: self.wanted.subscribe(),
        };
        let plans = self.plans(&scope, &positions, &self.train_tasks, draw);
        self.board.change(|progress| progress.iteration = Some(k));
        let metas = self.rolled_out(Stage::Rollout, &scope, plans).await?;
        self.write_batch(k, &metas).await
    }

    async fn begin_iteration(&self, k: u32) -> Result<Vec<u32>, DriverError> {
        let Some(training) = &self.settings.train else {
            return Err(TerminalFault::new("NoTasks", "mode Train needs tasks.train").into());
        };
        let tasks = selection::for_iteration(
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
        self.journal.record(event).await?;
        Ok(tasks)
    }

    fn plans(&self, scope: &EpisodeScope, positions: &[u32], tasks: &[Arc<Task>], draw: Draw) -> Vec<EpisodePlan> {
        let groups = positions.iter().enumerate();
        let planned = groups.flat_map(|(group, position)| {
            let task = tasks.get(*position as usize).cloned();
            let draw = draw.clone();
            task.into_iter().flat_map(move |task| {
                let draw = draw.clone();
                (0..draw.samples).map(move |sample| EpisodePlan {
                    key: EpisodeKey {
                        scope: scope.clone(),
                        instance: task.instance.clone(),
                        group: group as u32,
                        sample,
                    },
                    task: task.clone(),
                    seed: draw.seed,
                    sampling: draw.sampling,
                    weights: draw.weights.clone(),
                })
            })
        });
        planned.collect()
    }

    /// Runs episodes while the board shows how far they are.
    async fn rolled_out(
        &self,
        stage: Stage,
        scope: &EpisodeScope,
        plans: Vec<EpisodePlan>,
    ) -> Result<Vec<EpisodeMeta>, DriverError> {
        self.board.begin(stage);
        let (tally, seen) = watch::channel(Tally::default());
        let metas = tokio::select! {
            metas = self.rollouts.run(scope, plans, &tally) => metas,
            () = self.show(seen) => return Err(DriverError::Other("the board stopped".into())),
        };
        // The last ones may have finished after the last look.
        let last = *tally.borrow();
        self.board.change(|progress| progress.episodes_done = Some(last.done));
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
            let void = self.journal.read(|state| state.voids.values().sum::<u64>()).await;
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
            rows: self.settings.row_rule(),
        };
        let made = batches::make(&self.store, heading, metas)
            .await
            .map_err(|error| DriverError::Other(format!("making the batch of step {k}: {error}")))?;
        let weights = self
            .journal
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
        self.journal
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
        Ok(StepRequest {
            batch: path,
            sha256,
            checkpoint: None,
        })
    }

    async fn record_drop_once(&self, event: Event) -> Result<(), DriverError> {
        let Event::GroupDropped { iteration, group, .. } = event else {
            return Ok(());
        };
        let noted = self.journal.record_if(|state| {
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
        let live = self.live.now();
        let request = StepRequest {
            checkpoint: Some(CheckpointOrder {
                write: live.is_kept(k),
                keep: live.checkpoint.keep,
            }),
            ..request
        };
        let done = self.report_waiting(|note| self.trainer.step(k, &request, note)).await?;
        let (weights, manifest_sha256) = self.published(k, &done).await?;
        self.journal
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
        self.record_and_promote(&weights, &manifest_sha256, k).await?;
        self.wait_synced().await?;
        self.evaluations(Moment::After(k)).await
    }
}

fn no_valid_episodes(k: u32, metas: &[EpisodeMeta]) -> TerminalFault {
    TerminalFault::new(
        "NoValidEpisodes",
        format!(
            "no group of iteration {k} has two valid episodes, {} of {} are void; for example {}",
            metas.iter().filter(|meta| !meta.outcome.is_verdict()).count(),
            metas.len(),
            example_of_void(metas)
        ),
    )
}

fn example_of_void(metas: &[EpisodeMeta]) -> String {
    let example = metas.iter().find_map(|meta| match &meta.outcome {
        Outcome::Void { reason } => Some(format!("{reason:?}: {}", meta.message.clone().unwrap_or_default())),
        _ => None,
    });
    let silent = || {
        let silent = metas.iter().find(|meta| meta.turns == 0)?;
        let folder = silent.key.dir(silent.attempt);
        Some(format!(
            "the agent of {folder} asked its model nothing; traj.json there has what it printed"
        ))
    };
    example
        .or_else(silent)
        .unwrap_or_else(|| "their tokens are too stale".into())
}
