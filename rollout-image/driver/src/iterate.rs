//! The loop of a run: evaluate, roll out, train, promote; and where to continue after a restart.
//!
//! Every decision is in the journal before anything follows from it. An iteration that began keeps its tasks; the
//! trainer steps on every written batch; engines must serve the promoted weights. Changes to the run take effect before
//! new work begins.

mod batch;
mod changes;
mod evaluate;
mod replacing;
mod validate;
mod weights;

pub use evaluate::evaluations_shown;

use self::evaluate::Moment;
use crate::config::{Settings, Training};
use crate::episode::EpisodePlan;
use crate::fault::{DriverError, TerminalFault};
use crate::live::Live;
use crate::metrics::Metrics;
use crate::progress::{Board, Topic};
use crate::replicas::switch::asleep::Turn;
use crate::replicas::switch::{Target, View};
use crate::rollout::{Rollouts, Supply, Tally};
use crate::shared_journal::SharedJournal;
use crate::tasks::{Task, selection};
use crate::trainer::TrainerClient;
use grpo_contracts::reason::Reason;
use grpo_crds::grpo_run::{Mode, OnSync};
use grpo_crds::progress::Stage;
use grpo_records::settings::Sampling;
use grpo_records::trainer::{CheckpointOrder, StepRequest};
use grpo_records::{EpisodeKey, EpisodeMeta, EpisodeScope, Event, RunStore, Writer, paths};
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::{Mutex, mpsc, watch};
use tokio_util::sync::CancellationToken;

/// How episodes are sampled.
#[derive(Clone, Debug)]
struct Draw {
    /// Episodes per task.
    samples: u32,
    seed: u64,
    sampling: Sampling,
    /// The promoted version, or the version under evaluation.
    weights: watch::Receiver<String>,
    on_sync: OnSync,
    /// Cancelled when the episodes are no longer needed.
    stop: CancellationToken,
}

/// A run in progress.
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
    /// The weights version that episodes of iterations request.
    pub wanted: watch::Sender<String>,
    pub promoting: Mutex<()>,
    /// The weights that engines are ordered to serve.
    pub target: watch::Sender<Option<Target>>,
    pub view: watch::Receiver<View>,
    /// Of a run whose trainer shares its devices with engines.
    pub turn: Option<Turn>,
    /// Why the driver waits for the trainer, as a message.
    pub note: watch::Sender<Option<String>>,
    pub train_tasks: Vec<Arc<Task>>,
    /// In the order of the settings' evaluations.
    pub evaluation_tasks: Vec<Vec<Arc<Task>>>,
}

impl Run {
    /// Runs to the end.
    pub async fn go(&self) -> Result<(), DriverError> {
        let done = tokio::select! {
            done = self.in_its_mode() => done,
            never = self.show_images() => match never {},
            never = self.show_queue() => match never {},
            never = self.show_engines() => match never {},
            superseded = self.superseded() => Err(superseded),
        };
        self.board.say(Topic::Sandboxes, None);
        done?;
        // A finished run waits for none of these.
        for topic in [Topic::Trainer, Topic::Engines, Topic::Images] {
            self.board.say(topic, None);
        }
        self.journal.succeeded().await
    }

    async fn in_its_mode(&self) -> Result<(), DriverError> {
        match self.settings.mode {
            Mode::Train => self.train().await,
            Mode::Evaluate => self.evaluate_only().await,
            Mode::Validate => self.validate().await,
            Mode::Finetune => Err(DriverError::Other("mode Finetune rolls out nothing".into())),
        }
    }

    /// Shows on the board which images cannot be pulled.
    async fn show_images(&self) -> Infallible {
        let images = self.rollouts.episodes.gateway.images();
        images.follow(|message| self.board.say(Topic::Images, message)).await
    }

    /// Shows on the board that the run gets no sandbox.
    async fn show_queue(&self) -> Infallible {
        let queue = self.rollouts.episodes.gateway.queue();
        queue.follow(|message| self.board.say(Topic::Sandboxes, message)).await
    }

    /// Shows problems of engines on the board, whether or not the driver waits for engines.
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

    /// Returns when an engine agent refuses this driver's orders, because a later attempt gives them.
    async fn superseded(&self) -> DriverError {
        let mut view = self.view.clone();
        loop {
            let superseded = view.borrow_and_update().superseded;
            if let Some(superseded) = superseded {
                return superseded.into();
            }
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
        // Evaluations that an earlier driver did not begin or did not finish.
        self.evaluations(match finished {
            0 => Moment::Start,
            _ => Moment::After(finished),
        })
        .await?;
        let ahead = self.settings.max_staleness;
        // The last iteration whose step, promotion and evaluations are done.
        let (done, mut seen) = watch::channel(finished);
        let (give, mut given) = mpsc::channel::<(u32, StepRequest)>(ahead.max(1) as usize);
        let rollouts = async {
            for k in finished + 1.. {
                // Rollout `k` is sampled by weights of step `k - 1 - ahead` or later.
                if seen.wait_for(|done| done + ahead + 1 >= k).await.is_err() {
                    break;
                }
                if !self.has_iteration(k).await? {
                    // Steps and their evaluations apply changes too: after the last one, `k` may be part of the run.
                    if seen.wait_for(|done| done + 1 >= k).await.is_err() {
                        break;
                    }
                    if !self.has_iteration(k).await? {
                        break;
                    }
                }
                self.metrics.iteration.set(i64::from(k));
                let batch = self.batch_of(k).await?;
                if give.send((k, batch)).await.is_err() {
                    break;
                }
            }
            drop(give);
            Ok(())
        };
        let steps = async {
            while let Some((k, batch)) = given.recv().await {
                self.step(k, batch).await?;
                done.send_replace(k);
            }
            Ok(())
        };
        let done: Result<((), ()), DriverError> = tokio::try_join!(rollouts, steps);
        done?;
        // The last step may have become the last one after its evaluations.
        match self.journal.read(|state| state.finished_iterations()).await {
            0 => Ok(()),
            last => self.evaluations_of_the_end(last).await,
        }
    }

    /// Whether the run has iteration `k`, by the newest settings. One that has begun belongs to it.
    async fn has_iteration(&self, k: u32) -> Result<bool, DriverError> {
        // Also after a restart: the loop that began it would have gone on to its step.
        if self.journal.read(|state| state.iterations.contains_key(&k)).await {
            return Ok(true);
        }
        self.take_changes().await?;
        Ok(k <= self.live.now().iterations)
    }

    /// The stored batch of an iteration; rolls out missing episodes first.
    async fn batch_of(&self, k: u32) -> Result<StepRequest, DriverError> {
        let begun = self.journal.read(|state| state.iterations.get(&k).cloned()).await;
        if let Some(sha256) = begun.as_ref().and_then(|one| one.batch_sha256.clone()) {
            return Ok(StepRequest {
                batch: paths::batch(k),
                sha256,
                checkpoint: None,
                iterations: None,
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
            on_sync: self.settings.on_sync,
            stop: CancellationToken::new(),
        };
        let plans = self.plans(&scope, (0..).zip(positions), &self.train_tasks, &draw)?;
        self.board.change(|progress| progress.iteration = Some(k));
        let Some(dynamic) = &self.settings.dynamic else {
            let metas = self.rolled_out(Stage::Rollout, &scope, plans, None).await?;
            return self.write_batch(k, &metas, None).await;
        };
        let mut replacing = self.replacing(dynamic, k, draw).await?;
        let mut metas = self
            .rolled_out(Stage::Rollout, &scope, plans, Some(&mut replacing))
            .await?;
        let chosen = replacing.chosen;
        let chosen =
            chosen.ok_or_else(|| DriverError::Other(format!("iteration {k} ended before its groups were chosen")))?;
        self.note_surplus(k, &chosen, &metas).await?;
        metas.retain(|meta| meta.key.group < chosen.needed);
        self.write_batch(k, &metas, Some(chosen)).await
    }

    async fn begin_iteration(&self, k: u32) -> Result<Vec<u32>, DriverError> {
        let (tasks, dynamic) = match &self.settings.dynamic {
            Some(dynamic) => {
                let (tasks, start) = self.first_groups(dynamic, k).await?;
                (tasks, Some(start))
            }
            None => {
                let (training, prompts) = (self.training()?, self.settings.prompts as usize);
                let (order, seed) = (training.order, training.seed);
                let tasks = selection::for_iteration(order, seed, self.train_tasks.len(), prompts, k);
                (tasks, None)
            }
        };
        let event = Event::IterationStarted {
            iteration: k,
            weights: self.wanted.borrow().clone(),
            tasks: tasks.clone(),
            dynamic,
        };
        self.journal.record(event).await?;
        Ok(tasks)
    }

    fn training(&self) -> Result<&Training, TerminalFault> {
        let missing = || TerminalFault::new(Reason::NoTasks, "mode Train needs tasks.train");
        self.settings.train.as_ref().ok_or_else(missing)
    }

    /// `groups`: group numbers with the positions of their tasks. A position without a task is an error: a batch
    /// without the group would not be the one that the journal describes.
    fn plans(
        &self,
        scope: &EpisodeScope,
        groups: impl Iterator<Item = (u32, u32)>,
        tasks: &[Arc<Task>],
        draw: &Draw,
    ) -> Result<Vec<EpisodePlan>, TerminalFault> {
        let mut planned = Vec::new();
        for (group, position) in groups {
            let task = tasks.get(position as usize).ok_or_else(|| {
                let message = format!(
                    "group {group} of {} is about task {position}, but its set has {} tasks: the store at {} was begun \
                     with other tasks; give this run another store.path",
                    paths::scope(scope),
                    tasks.len(),
                    self.settings.store.1
                );
                TerminalFault::new(Reason::TasksChanged, message)
            })?;
            planned.extend((0..draw.samples).map(|sample| EpisodePlan {
                key: EpisodeKey {
                    scope: scope.clone(),
                    instance: task.instance.clone(),
                    group,
                    sample,
                },
                task: task.clone(),
                seed: draw.seed,
                sampling: draw.sampling,
                weights: draw.weights.clone(),
                on_sync: draw.on_sync,
                stop: draw.stop.clone(),
            }));
        }
        Ok(planned)
    }

    /// Runs episodes and shows their progress on the board.
    async fn rolled_out(
        &self,
        stage: Stage,
        scope: &EpisodeScope,
        plans: Vec<EpisodePlan>,
        supply: Option<&mut dyn Supply>,
    ) -> Result<Vec<EpisodeMeta>, DriverError> {
        self.board.begin(stage);
        let (tally, seen) = watch::channel(Tally::default());
        let metas = tokio::select! {
            metas = self.rollouts.run(scope, plans, &tally, supply) => metas,
            () = self.show(seen) => return Err(DriverError::Other("the board stopped".into())),
        };
        // The last episodes may have finished after the last update.
        let last = *tally.borrow();
        self.board.change(|progress| progress.episodes_done = Some(last.done));
        self.board.end(Stage::Grading);
        self.board.end(stage);
        metas
    }

    /// Never returns.
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

    /// Step `k`, promotion of its weights, and the evaluations that are due after it.
    async fn step(&self, k: u32, request: StepRequest) -> Result<(), DriverError> {
        self.board.begin(Stage::Training);
        // The last step writes a checkpoint, and a change may make this one the last.
        self.take_changes().await?;
        let live = self.live.now();
        let request = StepRequest {
            checkpoint: Some(CheckpointOrder {
                write: live.is_kept(k),
                keep: live.checkpoint.keep,
            }),
            iterations: Some(live.iterations),
            ..request
        };
        self.leave_devices().await?;
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
