//! Recovery: load the newest checkpoint, then replay the stored batches up to the last published step.
//!
//! A replayed step is compared with the weights that it published the first time. With equal bits it is the same
//! version under the same name. With other bits, engines serve other weights under that name than this trainer holds,
//! so a new lineage begins, in which the name is free.
//!
//! Only the last of the replayed steps has to be in the store. So the versions that newer ones of their lineage have
//! replaced are not written again, and those of a new lineage are removed as in training. The last steps of the
//! lineage before stay until the new one has passed them: engines serve them meanwhile, and they say how far to replay.
//!
//! A version whose manifest is damaged was published all the same, so its step is replayed too. The step's metrics have
//! the checksum of its weights. Equal bits are published again under its name. Where no checksum is known, or the batch
//! is lost, the name is not used again: a lineage begins.
//!
//! While the store does not answer, the recovery waits ([`crate::outage`]).
//!
//! Ranks may see a shared volume differently, for a moment or for good. So rank 0 alone reads the store and decides;
//! all ranks continue from its choice, or none does.

use grpo_records::paths;
use grpo_records::trainer::{StepMetrics, StepPhase, StepState};
use grpo_records::weights::WeightsManifest;
use serde::{Deserialize, Serialize};

use super::Rank;
use super::publish::WAITING;
use crate::error::TrainError;
use crate::state::{CheckpointManifest, DamagedVersion, TrainerStore, lineage_number, sha256};
use crate::token_stats::TokenStats;
use grpo_contracts::weights::publishes_adapters;

/// Content of the store, as rank 0 sees it.
#[derive(Serialize, Deserialize)]
struct Found {
    /// The checkpoint to load.
    checkpoint: Option<CheckpointManifest>,
    /// Published versions. One whose manifest is damaged has the checksum of its metrics, or an empty one.
    versions: Vec<WeightsManifest>,
    /// Names of versions whose manifests are damaged.
    damaged: Vec<String>,
}

/// A stored batch to replay.
#[derive(Serialize, Deserialize)]
struct Replay {
    batch_sha256: String,
    /// The weights that its step published before.
    known: Option<Published>,
    /// Whether the step published weights, also in an older lineage.
    published: bool,
    /// The step's learning rate, if its metrics were stored.
    learning_rate: Option<f64>,
}

/// The weights that a step published the first time.
#[derive(Serialize, Deserialize)]
struct Published {
    lineage: String,
    tensors_sha256: String,
}

impl Rank {
    /// Restores the run's state from the store.
    pub(super) fn recover(&mut self) -> Result<(), TrainError> {
        // Fences first, so that an earlier attempt cannot publish after a rank has read the store.
        self.fence(TrainerStore::fence)?;
        self.model.group.barrier()?;
        self.watch.busy("taking a claim", || self.store.begin())?;
        // An earlier attempt that was still starting may have taken its claims in between.
        self.fence(TrainerStore::fence_again)?;
        let Found {
            checkpoint,
            versions,
            damaged,
        } = self.of_rank_0("reading the store", || self.found())?;
        if self.is_first() {
            let group = &self.model.group;
            group.busy("removing unfinished folders", || self.store.sweep())?;
        }
        if let Some(checkpoint) = &checkpoint {
            tracing::info!(
                step = checkpoint.step,
                lineage = checkpoint.lineage,
                "going on from a checkpoint"
            );
            self.load(checkpoint)?;
            (self.lineage, self.step) = (checkpoint.lineage.clone(), checkpoint.step);
            self.board.with(|shared| shared.state.checkpoint_step = checkpoint.step);
        } else {
            self.resume_from_another_run(!versions.is_empty())?;
        }
        self.settle_lineage(&versions)?;
        let version = paths::weights_version(&self.lineage, self.step);
        let mut is_published = self.step == 0 || !self.is_replaced(&versions);
        match is_published {
            true => self.publish_in_room(parent(&versions, &version))?,
            false => self.version = version,
        }
        // Over all lineages: an interrupted replay has published fewer steps than the lineage before it.
        let last = versions.iter().map(|version| version.step).max().unwrap_or(0);
        let mut unsealed = false;
        loop {
            let step = self.step + 1;
            match self.of_rank_0("reading a stored batch", || self.replayed(step, last, &versions))? {
                Some(replay) => {
                    unsealed = replay.published;
                    is_published = self.replay(step, &versions, replay)?;
                }
                None => break,
            }
        }
        // The batch of a later step is missing: the run continues from weights whose version was removed.
        if !is_published {
            self.publish_in_room(parent(&versions, &self.version))?;
        }
        // Its weights are not known, and other weights must not get its name.
        let is_taken = |version: &WeightsManifest| {
            version.lineage == self.lineage && version.step > self.step && damaged.contains(&version.version)
        };
        if versions.iter().any(is_taken) {
            self.begin_lineage(&versions);
            tracing::warn!(
                step = self.step,
                lineage = self.lineage,
                "a later version is damaged, and its batch is lost: a lineage begins with the next step"
            );
        }
        // The previous attempt died between the weights and the checkpoint of a step after which the run may be done.
        // Mode Finetune publishes the steps whose checkpoints it keeps, and this one may be the run's last.
        if unsealed && (self.is_supervised() || self.step >= self.iterations) {
            self.begin_checkpoint(self.step, self.config.spec.checkpoint.keep as usize)?;
            self.finish_checkpoint(true)?;
        }
        // Before the first word that the trainer is idle.
        self.leave_device()?;
        if self.is_first() && self.step > 0 {
            let group = &self.model.group;
            group.busy("reading the metrics", || self.remember())?;
        }
        self.idle();
        tracing::info!(step = self.step, weights = self.version, "ready for orders");
        Ok(())
    }

    /// The state to continue from, on rank 0.
    fn found(&self) -> Result<Found, TrainError> {
        let (mut versions, damaged) = self.store.published()?;
        let mut names = Vec::new();
        for version in damaged {
            let manifest = self.stand_in(&version)?;
            let DamagedVersion { file, .. } = version;
            // One without a checksum tells nothing about the bits.
            let is_later = |other: &WeightsManifest| {
                other.lineage == manifest.lineage && other.step > manifest.step && !other.tensors_sha256.is_empty()
            };
            let is_unknown = manifest.tensors_sha256.is_empty();
            // No engine asks for it any more, and the later version tells whether the replay repeats the bits.
            if is_unknown && !self.is_supervised() && versions.iter().any(is_later) {
                tracing::warn!("{} is damaged ({}), and is left out", file.path, file.message);
                continue;
            }
            let compared = match is_unknown {
                false => "and compared with the checksum in its metrics",
                true => "and named by a new lineage, because no checksum of it is known",
            };
            tracing::warn!(
                "{} is damaged ({}): its weights are computed again, from the newest checkpoint before and the \
                 recorded batches, {compared}",
                file.path,
                file.message
            );
            names.push(manifest.version.clone());
            versions.push(manifest);
        }
        Ok(Found {
            checkpoint: self.store.newest_checkpoint()?,
            versions,
            damaged: names,
        })
    }

    /// What is known of a version whose manifest is damaged.
    fn stand_in(&self, damaged: &DamagedVersion) -> Result<WeightsManifest, TrainError> {
        let version = paths::weights_version(&damaged.lineage, damaged.step);
        let metrics = self.metrics(damaged.step)?.filter(|metrics| metrics.weights == version);
        Ok(WeightsManifest {
            version,
            lineage: damaged.lineage.clone(),
            step: damaged.step,
            parent: None,
            files: Vec::new(),
            deltas: Vec::new(),
            chat_templates: Vec::new(),
            tensors_sha256: metrics.map(|metrics| metrics.tensors_sha256).unwrap_or_default(),
            canary: None,
        })
    }

    /// Fences earlier attempts, on rank 0.
    fn fence(&self, fence: impl FnOnce(&TrainerStore) -> Result<(), TrainError>) -> Result<(), TrainError> {
        let group = &self.model.group;
        match self.is_first() {
            true => group.busy("fencing off earlier attempts", || fence(&self.store)),
            false => Ok(()),
        }
    }

    /// Publishes the current weights, after the versions that are not kept were removed: a long replay must not fill
    /// the store. Every rank calls it.
    fn publish_in_room(&mut self, parent: Option<String>) -> Result<(), TrainError> {
        if self.is_first() {
            let group = &self.model.group;
            group.busy("removing old versions", || self.store.prune_versions())?;
        }
        self.publish(parent)
    }

    /// Whether the store has a later version of the current lineage: then no engine will ask for the version of the
    /// current step, which was kept or removed before. Mode Finetune publishes few steps, and not always the last one,
    /// so there none counts as replaced.
    fn is_replaced(&self, versions: &[WeightsManifest]) -> bool {
        let is_later = |version: &WeightsManifest| version.lineage == self.lineage && version.step > self.step;
        !self.is_supervised() && versions.iter().any(is_later)
    }

    /// All ranks wait for the slowest disk, and all end if one of them cannot read the checkpoint.
    fn load(&mut self, checkpoint: &CheckpointManifest) -> Result<(), TrainError> {
        let (store, watch) = (self.store.clone(), self.watch.clone());
        let loaded = watch.busy("reading a checkpoint", || store.load(&mut self.model, checkpoint));
        self.on_all_ranks(&paths::checkpoint(&checkpoint.lineage, checkpoint.step), loaded)
    }

    /// The replay of a step, on rank 0, or `None` if its batch was not stored or the step was not done. `last`: the
    /// last published step. In mode Finetune later steps may have been done too.
    fn replayed(&self, step: u32, last: u32, versions: &[WeightsManifest]) -> Result<Option<Replay>, TrainError> {
        let metrics = self.metrics(step)?;
        let is_done = step <= last || (self.is_supervised() && metrics.is_some());
        if !is_done || !self.store.exists(&paths::batch(step))? {
            return Ok(None);
        }
        // Ignores a version of an older lineage than this one: a run that left a lineage does not return to it.
        let at_least = |known: &Published| lineage_number(&known.lineage) >= lineage_number(&self.lineage);
        let first = self.published_first(step, versions)?;
        Ok(Some(Replay {
            batch_sha256: sha256(&self.store.read(&paths::batch(step))?),
            published: first.is_some(),
            known: first.filter(at_least),
            learning_rate: metrics.map(|metrics| metrics.learning_rate),
        }))
    }

    /// Returns false if the step's version still has to be published, in case no later step is replayed.
    fn replay(&mut self, step: u32, versions: &[WeightsManifest], replay: Replay) -> Result<bool, TrainError> {
        tracing::info!(step, "replaying a stored batch");
        let (metrics, stats) = self.train_again(step, &replay)?;
        if self.is_supervised() && !replay.published {
            self.step = step;
            self.unpublished();
            return Ok(true);
        }
        let mut repeated = None;
        if let Some(known) = replay.known {
            let found = self.model.published_checksum(publishes_adapters(&self.config.spec))?;
            // Only rank 0 has a checksum.
            let repeats = found.is_some_and(|found| found == known.tensors_sha256);
            match self.model.sum(&[f64::from(u8::from(repeats))])?[0] > 0.0 {
                true => {
                    self.lineage = known.lineage;
                    repeated = Some(known.tensors_sha256);
                }
                false => {
                    self.begin_lineage(versions);
                    let why = match known.tensors_sha256.is_empty() {
                        false => "arithmetic did not repeat",
                        true => "the weights of this step are not known",
                    };
                    tracing::warn!(step, lineage = self.lineage, "{why}: a lineage begins");
                }
            }
        }
        let parent = Some(self.version.clone());
        self.step = step;
        let repeated = repeated.filter(|_| self.is_replaced(versions));
        let is_published = repeated.is_none();
        match repeated {
            Some(tensors_sha256) => {
                self.version = paths::weights_version(&self.lineage, step);
                self.tensors_sha256 = tensors_sha256;
                self.unpublished();
            }
            None => self.publish_in_room(parent)?,
        }
        if self.is_first() {
            // The metrics are missing if the previous attempt ended between publishing and writing them.
            let metrics = self.named(metrics);
            let group = &self.model.group;
            group.busy("writing metrics", || self.store_metrics(step, &metrics, stats))?;
            self.show(&metrics);
        }
        Ok(is_published)
    }

    /// Repeats a step that was done. While the store does not answer a rank, all ranks wait and begin again: they know
    /// each other's errors ([`agreed`](crate::mini_batch::agreed)).
    fn train_again(&mut self, step: u32, replay: &Replay) -> Result<(StepMetrics, Option<TokenStats>), TrainError> {
        let path = paths::batch(step);
        let mut outage = self.store.patience().begin();
        loop {
            let error = match self.train(step, &path, Some(&replay.batch_sha256), replay.learning_rate) {
                Err(error) if error.is_unread() => error,
                Err(error) if error.is_refusal() => return Err(self.irreplaceable(step, &error)),
                trained => {
                    if trained.is_ok() {
                        outage.answered();
                    }
                    return trained;
                }
            };
            let waited = self.watch.busy(WAITING, || outage.wait(error));
            // Each rank has its own clock: if the time of one is over, all end.
            self.on_all_ranks(&path, waited)?;
        }
    }

    /// The next step after a damaged batch: later weights cannot be computed without it.
    fn irreplaceable(&self, step: u32, error: &TrainError) -> TrainError {
        let checkpoint = self.board.with(|shared| shared.state.checkpoint_step);
        let instead = match checkpoint {
            0 => "there is no checkpoint, so begin the run again in another folder".to_owned(),
            checkpoint => format!(
                "begin another run with resumeFrom.path {} (its newest checkpoint is of step {checkpoint})",
                self.config.store_path
            ),
        };
        TrainError::Start(format!(
            "step {step} was done and cannot be replayed: {error}; restore its files from a backup, or {instead}"
        ))
    }

    /// The newest version of a step; the step's metrics still name a removed version.
    fn published_first(&self, step: u32, versions: &[WeightsManifest]) -> Result<Option<Published>, TrainError> {
        let version = versions
            .iter()
            .filter(|v| v.step == step)
            .max_by_key(|v| lineage_number(&v.lineage));
        if let Some(version) = version {
            let (lineage, tensors_sha256) = (version.lineage.clone(), version.tensors_sha256.clone());
            return Ok(Some(Published {
                lineage,
                tensors_sha256,
            }));
        }
        let metrics = self.metrics(step)?.filter(|metrics| !metrics.tensors_sha256.is_empty());
        Ok(metrics.and_then(|metrics| {
            let (lineage, _) = metrics.weights.rsplit_once("-v")?;
            Some(Published {
                lineage: lineage.to_owned(),
                tensors_sha256: metrics.tensors_sha256,
            })
        }))
    }

    /// `None` if no metrics were stored, or if an older trainer wrote them in another format.
    fn metrics(&self, step: u32) -> Result<Option<StepMetrics>, TrainError> {
        let bytes = self.store.read_if_there(&paths::trainer_metrics(step))?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// Reports the last step as done: the driver may not know yet.
    fn remember(&self) -> Result<(), TrainError> {
        let metrics = self
            .metrics(self.step)?
            .filter(|metrics| metrics.weights == self.version || metrics.weights.is_empty());
        self.tell(self.step, StepPhase::Done, metrics, None);
        Ok(())
    }
}

/// The parent with which a version was published.
fn parent(versions: &[WeightsManifest], version: &str) -> Option<String> {
    versions
        .iter()
        .find(|known| known.version == version)
        .and_then(|known| known.parent.clone())
}

/// The state of a step that is older than the remembered steps.
pub(super) fn done_earlier(step: u32) -> StepState {
    StepState {
        step,
        state: StepPhase::Done,
        weights: None,
        manifest_sha256: None,
        metrics: None,
        error: None,
    }
}
