//! A run's trainer: rank 0 answers the driver over HTTP, every rank follows rank 0's orders.
//!
//! At start every rank loads the newest complete checkpoint from the store and replays the stored batches up to the
//! last published step. If a replayed step gives other bits than the published ones, a new lineage begins. Rank 0
//! broadcasts orders to the other ranks; an idle order every few seconds lets every rank notice that another rank is
//! gone, and end. The [`watchdog`] finds a rank that hangs. With `trainer.colocate` engines use the same devices in
//! turns, and `devices` keeps the turns.

mod agreement;
mod board;
mod checkpoints;
mod devices;
mod http;
mod model;
mod publish;
mod recover;
mod refusals;
mod resumed;
mod tensorboard;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use grpo_auth::AuthFlags;
use grpo_contracts::RunConfig;
use grpo_crds::algorithm::Algorithm;
use grpo_crds::grpo_run::Mode;
use grpo_memory::{Facts, ParallelDims};
use grpo_model::Config;
use grpo_model::weights::Source;
use grpo_native::{Arrived, Rendezvous, Watch, device};
use grpo_object_storage::run_store_blocking;
use grpo_objective::rate::rate;
use grpo_records::trainer::{CheckpointOrder, StepMetrics, StepPhase, StepRequest, StepState, TrainerPhase};
use grpo_records::{RunStore, paths};
use serde::{Deserialize, Serialize};
use tch::{Device, Tensor};

use self::board::{Board, Devices};
use self::http::Orders;
use self::model::adapter_of;
use crate::compute::Compute;
use crate::error::TrainError;
use crate::flops;
use crate::grpo;
use crate::memory;
use crate::mesh::{self, Mesh};
use crate::mini_batch::agreed;
use crate::outage::Patience;
use crate::sharded::Sharded;
use crate::state::{Epoch, TrainerStore, json};
use crate::supervised;
use crate::token_stats::TokenStats;
use crate::watchdog::{self, Limits};

/// Longest interval between rank 0's orders to idle ranks; shortened to a quarter of the collective's deadline.
const IDLE: Duration = Duration::from_secs(5);
/// The interval while a checkpoint is being written: the checkpoint counts when all ranks know that all have written.
const UNSEALED: Duration = Duration::from_millis(100);
/// Room for one command's JSON: a path has up to 512 bytes, and JSON may write each as six.
const COMMAND_BYTES: usize = 4096;
/// An order from rank 0 to the other ranks.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum RankCommand {
    Idle,
    Step { step: u32, request: StepRequest },
}

/// One rank of a run's trainer.
struct Rank {
    config: RunConfig,
    store: TrainerStore,
    model: Sharded,
    model_dir: PathBuf,
    /// Peak operations per second of a rank's device, if known.
    peak: Option<f64>,
    lineage: String,
    step: u32,
    /// The run's number of iterations, by the driver's last order.
    iterations: u32,
    version: String,
    /// Checksum of the current weights, on rank 0.
    tensors_sha256: String,
    board: Board,
    /// This rank's state for the watchdog.
    watch: Watch,
    pending: Option<checkpoints::Pending>,
    /// On rank 0, after the first metrics.
    curves: Option<tensorboard::Curves>,
}

/// This process among the ranks.
#[derive(Clone, Debug)]
pub struct Process {
    pub rendezvous: Rendezvous,
    /// Attempt of the pod group.
    pub attempt: u32,
    /// Its number among the ranks of its pod: the number of its GPU, if there are GPUs.
    pub local_rank: u32,
    /// Address on which the first rank of a pod listens; `None` for the pod's other ranks.
    pub listen: Option<SocketAddr>,
    /// Who, besides the run's driver, may order steps, and which signatures are trusted.
    pub auth: AuthFlags,
    pub limits: Limits,
}

/// Trains as the run's config says until it is told to stop.
pub fn serve(config: RunConfig, process: &Process) -> Result<(), TrainError> {
    let rendezvous = &process.rendezvous;
    let board = Board::new(process.attempt, rendezvous.world, Devices::of(&config));
    let orders = match (rendezvous.rank, process.listen) {
        (0, Some(listen)) => Some(http::start(listen, board.clone(), process.auth.clone(), &config)?),
        (_, Some(listen)) => {
            http::start_without_orders(listen, board.clone())?;
            None
        }
        (_, None) => None,
    };
    let mut watch = None;
    let trained = train(config, process, &board, orders, &mut watch);
    let trained = match (trained, &watch) {
        (Err(TrainError::Collective(error)), Some(watch)) => Err(explained(error, watch, process)),
        (trained, _) => trained,
    };
    if let Err(error) = &trained {
        board.with(|shared| {
            shared.state.phase = TrainerPhase::Failed;
            shared.state.error = Some(error.to_string());
        });
    }
    trained
}

/// The reason for a failed collective: another rank's verdict on a hang, if there is one.
fn explained(error: grpo_native::CollectiveError, watch: &Watch, process: &Process) -> TrainError {
    match watchdog::verdict_of_others(watch) {
        Some(hang) => {
            watchdog::write_last_word(&process.limits.termination_log, &hang);
            TrainError::Hung(hang)
        }
        None => error.into(),
    }
}

fn train(
    config: RunConfig,
    process: &Process,
    board: &Board,
    orders: Option<Orders>,
    watch: &mut Option<Watch>,
) -> Result<(), TrainError> {
    let rendezvous = &process.rendezvous;
    let shared = Devices::of(&config) == Devices::Awaited;
    let compute_of = || Compute::of(config.spec.trainer.as_ref(), process.local_rank);
    // Before any file is read, and before any rank waits for this one. A shared device must not be used yet.
    let own = (!shared).then(compute_of).transpose()?;
    let model_dir = PathBuf::from(&config.model_path);
    let model_config = Config::read(&model_dir)?;
    // Refuses a damaged model before any rank waits for this one.
    let source = Source::open(&model_dir, &model_config)?;
    let dims = ParallelDims::of(config.spec.trainer.as_ref(), process.limits.per_pod);
    mesh::check(&dims, &model_config, rendezvous.world)?;
    let context = model_config.max_position_embeddings as u64;
    let longest = config
        .spec
        .longest_row()
        .map_or(context, |limit| context.min(limit.into()));
    let trained = match &config.spec.model.lora {
        Some(lora) => model_config.clone().with_lora(adapter_of(lora, &model_config)?)?,
        None => model_config.clone(),
    };
    let (compute, waited) = match own {
        Some(compute) => (compute, None),
        None => {
            let arrived = reach(rendezvous, board)?;
            devices::wait(&arrived, orders.as_ref().map(|orders| &orders.devices))?;
            (compute_of()?, Some(arrived))
        }
    };
    let room = match compute.device {
        // Total instead of free memory: the number of waves must be the same after a restart.
        Device::Cuda(index) if compute.deterministic => device::gpu_total(index)
            .ok()
            .map(|total| total.saturating_sub(memory::reserved(shared))),
        Device::Cuda(index) => device::gpu_free(index).ok(),
        _ => memory::room(process.limits.per_pod),
    };
    let facts = Facts::of_run(
        memory::geometry(&trained),
        &config.spec,
        process.limits.per_pod,
        rendezvous.world,
    );
    let estimate = memory::announce(&facts, longest, room)?;
    memory::announce_host(compute.device, &facts, longest, process.limits.per_pod);
    board.with(|shared| shared.memory = [Some(estimate.total()), room]);
    tracing::info!(rank = rendezvous.rank, world = rendezvous.world, "joining the group");
    let peak = flops::peak(&compute)?;
    let arrived = match waited {
        Some(arrived) => arrived,
        None => reach(rendezvous, board)?,
    };
    let arrived = arrived.with_gpu_deadline(process.limits.gpu_collective());
    let group = arrived.join(|seen| {
        watchdog::start(seen.clone(), process.limits.clone());
        *watch = Some(seen);
    })?;
    let epoch = Epoch {
        run: config.uid.clone(),
        attempt: process.attempt,
        rank: rendezvous.rank,
    };
    let seen = group.watch();
    let patience = Patience::of_run(board.store_waits.clone());
    let records = seen.busy("opening the store", || patience.retry(|| opened(&config)))?;
    let store = TrainerStore::of_attempt(records.clone(), epoch).with_patience(patience);
    let mesh = Mesh::new(group, dims)?;
    // Nodes read at different speeds: the ranks that are done must not take the slower ones for hanging.
    let model = seen.busy("reading the model", || {
        model::read(model_config, mesh, compute, &config.spec, &source, &records)
    })?;
    let mut rank = Rank {
        lineage: "l1".to_owned(),
        step: 0,
        iterations: config.spec.rollout.iterations,
        version: String::new(),
        tensors_sha256: String::new(),
        board: board.clone(),
        watch: seen,
        pending: None,
        curves: None,
        model,
        store,
        config,
        model_dir,
        peak,
    };
    rank.model.shares_device = shared;
    // Inputs kept aside are not in this memory.
    if let Some(room) = room.filter(|_| !rank.model.computes().kept_aside().activations) {
        // The memory that a row of full length and this rank's part of the gradients leave.
        let gradients: usize = rank.model.shards.iter().map(|shard| 4 * shard.values.numel()).sum();
        let left = room.saturating_sub(estimate.total() + gradients as u64) as usize;
        rank.model.input_bytes = rank.model.input_bytes.min(left);
    }
    let recovered = rank.recover();
    let ended = recovered.and_then(|()| rank.follow(orders.map(|orders| orders.steps), &process.limits));
    // The process ends with this error. The groups' destructors might first wait for ranks that wait for this one.
    std::mem::forget(rank);
    ended
}

/// The run's store.
fn opened(config: &RunConfig) -> Result<RunStore, TrainError> {
    let Some(bucket) = &config.spec.store.object_store else {
        return Ok(RunStore::make(&config.store_root())?);
    };
    let opened = run_store_blocking(bucket, RunConfig::store_secret(bucket), &config.store_path);
    opened.map_err(|error| match error.is_final() {
        true => TrainError::Start(error.to_string()),
        false => TrainError::Unopened(error.to_string()),
    })
}

/// Joins the rendezvous; from then on the pod is ready.
fn reach(rendezvous: &Rendezvous, board: &Board) -> Result<Arrived, TrainError> {
    let arrived = Arrived::reach(rendezvous)?;
    board.arrived.store(true, Ordering::Relaxed);
    Ok(arrived)
}

impl Rank {
    fn is_first(&self) -> bool {
        self.model.group.rank() == 0
    }

    /// Metrics of the step that published the current weights.
    fn named(&self, metrics: StepMetrics) -> StepMetrics {
        StepMetrics {
            weights: self.version.clone(),
            tensors_sha256: self.tensors_sha256.clone(),
            ..metrics
        }
    }

    fn idle(&self) {
        self.board.with(|shared| shared.state.phase = TrainerPhase::Idle);
    }

    /// Gives orders (rank 0) or follows them, until an error.
    fn follow(&mut self, jobs: Option<Receiver<(u32, StepRequest)>>, limits: &Limits) -> Result<(), TrainError> {
        let usual = IDLE.min(limits.collective / 4);
        loop {
            let idle = if self.pending.is_some() { UNSEALED } else { usual };
            let command = match &jobs {
                None => None,
                Some(jobs) => Some(match jobs.recv_timeout(idle) {
                    Ok((step, request)) => RankCommand::Step { step, request },
                    Err(RecvTimeoutError::Timeout) => RankCommand::Idle,
                    Err(RecvTimeoutError::Disconnected) => {
                        return Err(TrainError::Start("the HTTP server ended".to_owned()));
                    }
                }),
            };
            let command = self.broadcast_command(command)?;
            self.finish_checkpoint(false)?;
            match command {
                RankCommand::Idle => {}
                RankCommand::Step { step, request } => self.obey(step, &request)?,
            }
        }
    }

    /// Rank 0's command, on every rank.
    fn broadcast_command(&self, command: Option<RankCommand>) -> Result<RankCommand, TrainError> {
        let mut bytes = match &command {
            Some(command) => serde_json::to_vec(command).map_err(|e| TrainError::Start(e.to_string()))?,
            None => Vec::new(),
        };
        bytes.resize(COMMAND_BYTES, b' ');
        let mut tensor = Tensor::from_slice(&bytes);
        self.model.group.broadcast(&mut tensor, 0)?;
        let bytes = Vec::<u8>::try_from(tensor)?;
        serde_json::from_slice(&bytes).map_err(|e| TrainError::Start(format!("reading rank 0's order: {e}")))
    }

    fn obey(&mut self, step: u32, request: &StepRequest) -> Result<(), TrainError> {
        self.tell(step, StepPhase::Running, None, None);
        self.iterations = request.iterations.unwrap_or(self.iterations);
        let (metrics, stats) = match self.train(step, &request.batch, Some(&request.sha256), None) {
            Ok(trained) => trained,
            Err(error) if error.is_refusal() => {
                tracing::error!(step, %error, "step refused");
                self.leave_device()?;
                self.tell(step, StepPhase::Failed, None, Some(error.to_string()));
                return Ok(());
            }
            // A refused batch may end the run, and an outage of the store must not.
            Err(error) if error.is_unread() => {
                tracing::error!(step, %error, "step not taken");
                self.leave_device()?;
                self.board.with(|shared| shared.put_back(step, error.to_string()));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let order = request.checkpoint.unwrap_or_else(|| self.usual_checkpoint(step));
        let parent = Some(self.version.clone());
        self.step = step;
        let metrics = match self.publishes(&order) {
            true => {
                self.publish(parent)?;
                self.named(metrics)
            }
            false => {
                self.unpublished();
                metrics
            }
        };
        if self.is_first() {
            self.model.group.busy("removing old versions", || {
                self.store_metrics(step, &metrics, stats)?;
                self.store.prune_versions()
            })?;
            self.show(&metrics);
            tracing::info!(
                step,
                loss = metrics.loss,
                seconds = metrics.seconds,
                weights = self.version,
                "step done"
            );
        }
        // After the metrics: a step that a checkpoint holds is never computed again.
        if order.write {
            self.begin_checkpoint(step, order.keep as usize)?;
        }
        // When the driver says that the run is done, the trainer may be taken away. In mode Finetune only the driver
        // knows which step is the last.
        let may_be_last = match self.is_supervised() {
            true => order.write,
            false => step >= self.iterations,
        };
        if may_be_last {
            self.finish_checkpoint(true)?;
        }
        self.leave_device()?;
        self.tell(step, StepPhase::Done, Some(metrics), None);
        Ok(())
    }

    /// The metrics come last: a step that has them has its token statistics.
    fn store_metrics(&self, step: u32, metrics: &StepMetrics, stats: Option<TokenStats>) -> Result<(), TrainError> {
        if let Some(stats) = stats {
            self.store.create(&paths::token_stats(step), stats.file()?)?;
        }
        self.store.create(&paths::trainer_metrics(step), json(metrics)?)?;
        Ok(())
    }

    fn is_supervised(&self) -> bool {
        self.config.spec.mode == Mode::Finetune
    }

    /// Whether a step's weights are published: in mode Finetune no engine samples from them, so only kept steps are
    /// published.
    fn publishes(&self, order: &CheckpointOrder) -> bool {
        order.write || !self.is_supervised()
    }

    /// Reports a step whose weights are not published as done.
    fn unpublished(&self) {
        if self.is_first() {
            self.board.with(|shared| shared.state.step = self.step);
        }
    }

    /// The checkpoint order that `run.json` implies for a step.
    fn usual_checkpoint(&self, step: u32) -> CheckpointOrder {
        let checkpoint = &self.config.spec.checkpoint;
        CheckpointOrder {
            write: step.is_multiple_of(checkpoint.every.max(1)) || step == self.iterations,
            keep: checkpoint.keep,
        }
    }

    /// One step, which has a deadline. Steps of mode Finetune have no token statistics. `recorded`: the learning rate
    /// that the step had before, if it is repeated. The run's rate or number of iterations may have changed since, and
    /// other bits would be other weights than those that episodes were sampled from.
    fn train(
        &mut self,
        step: u32,
        path: &str,
        checksum: Option<&str>,
        recorded: Option<f64>,
    ) -> Result<(StepMetrics, Option<TokenStats>), TrainError> {
        self.watch.set_step(Some(step));
        self.model.enter_device();
        // Ranks read at different speeds, and a slow store must not look like a hang.
        let read = || grpo::read(&self.store, step, path, checksum);
        let read = self.watch.busy("reading a batch", read);
        if let Err(error) = &read {
            tracing::error!(step, %error, "this rank cannot read the batch");
        }
        let read = agreed(&self.model, read, path);
        let spec = &self.config.spec;
        let trained = read.and_then(|batch| {
            let supervised = batch.supervised.as_ref();
            let steps = supervised.map_or(self.iterations, |supervised| supervised.steps);
            let planned = rate(&spec.algorithm, step, steps);
            // Text may have cost the recorded one its last bit.
            let recorded = recorded.filter(|recorded| (recorded - planned).abs() > 1e-12 * planned.abs());
            let algorithm = Algorithm {
                learning_rate: recorded.unwrap_or(planned),
                ..spec.algorithm.clone()
            };
            match supervised {
                Some(_) => Ok((
                    supervised::step(&mut self.model, &batch, path, &algorithm, spec.seed)?,
                    None,
                )),
                None => {
                    let trained = grpo::recorded_step(&mut self.model, &batch, path, &algorithm, spec.seed);
                    trained.map(|(metrics, stats)| (metrics, Some(stats)))
                }
            }
        });
        self.watch.set_step(None);
        let world = self.model.group.world();
        let share = |done: &StepMetrics| flops::utilisation(done.model_flops, done.seconds, self.peak?, world);
        trained.map(|(done, stats)| {
            let mfu = share(&done);
            (StepMetrics { mfu, ..done }, stats)
        })
    }

    fn tell(&self, step: u32, state: StepPhase, metrics: Option<StepMetrics>, error: Option<String>) {
        self.board.with(|shared| {
            let done = state == StepPhase::Done;
            // Set together with the step's end: a caller that sees the end may give the next order at once.
            shared.state.phase = match state {
                StepPhase::Queued | StepPhase::Running => TrainerPhase::Stepping,
                StepPhase::Done | StepPhase::Failed => TrainerPhase::Idle,
            };
            let weights = done.then(|| shared.state.weights.clone());
            let manifest_sha256 = done.then(|| shared.state.manifest_sha256.clone());
            shared.put(StepState {
                step,
                state,
                weights,
                manifest_sha256,
                metrics,
                error,
            });
        });
    }
}
