//! Where to go on: the newest checkpoint, then the stored batches up to the last step that was published.
//!
//! A replayed step is compared with what the step published the first time. Equal bits: it is the same version under
//! the same name. Other bits: what engines serve under that name is not what this trainer holds, so a lineage begins
//! that has no such name yet.

use grpo_model::weights;
use grpo_records::paths;
use grpo_records::trainer::{StepMetrics, StepPhase, StepState};
use grpo_records::weights::WeightsManifest;

use super::Rank;
use crate::error::TrainError;
use crate::state::{CheckpointManifest, json, lineage_number};

/// What a step published the first time.
struct Published {
    lineage: String,
    tensors_sha256: String,
}

impl Rank {
    /// Comes back to where the store says the run is.
    pub(super) fn recover(&mut self) -> Result<(), TrainError> {
        // What an attempt before this one still publishes is published before anybody reads.
        if self.is_first() {
            self.model
                .group
                .busy("fencing off earlier attempts", || self.store.fence())?;
        }
        self.model.group.barrier()?;
        self.store.begin()?;
        // Every rank reads before any rank writes.
        let (checkpoint, versions) = self.model.group.busy("reading the store", || {
            Ok::<_, TrainError>((self.store.newest_checkpoint()?, self.store.versions()?))
        })?;
        self.model.group.barrier()?;
        if self.is_first() {
            self.store.sweep()?;
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
        }
        self.publish(parent(&versions, &paths::weights_version(&self.lineage, self.step)))?;
        // Whatever the lineage: a replay that was cut short has published less than the one before it.
        let last = versions.iter().map(|version| version.step).max().unwrap_or(0);
        while self.step < last && self.store.exists(&paths::batch(self.step + 1))? {
            self.replay(self.step + 1, &versions)?;
        }
        if self.is_first() && self.step > 0 {
            self.remember();
        }
        self.idle();
        tracing::info!(step = self.step, weights = self.version, "ready for orders");
        Ok(())
    }

    /// The other ranks wait for the slowest disk.
    fn load(&mut self, checkpoint: &CheckpointManifest) -> Result<(), TrainError> {
        let (store, watch) = (self.store.clone(), self.watch.clone());
        watch.busy("reading a checkpoint", || store.load(&mut self.model, checkpoint))
    }

    fn replay(&mut self, step: u32, versions: &[WeightsManifest]) -> Result<(), TrainError> {
        tracing::info!(step, "replaying a stored batch");
        let metrics = self.train(step, &paths::batch(step), None)?;
        let weights = self.published()?;
        let newest = versions
            .iter()
            .map(|version| lineage_number(&version.lineage))
            .max()
            .unwrap_or(1);
        // A version of an older lineage than this one is of no account: whoever left it does not come back to it.
        let at_least = |known: &Published| lineage_number(&known.lineage) >= lineage_number(&self.lineage);
        let known = self.published_first(step, versions).filter(at_least);
        // Only rank 0 has the weights.
        let is_known = |known: &Published| known.tensors_sha256 == weights::checksum(&weights);
        let repeats = self.is_first() && known.as_ref().is_some_and(is_known);
        let repeats = self.model.sum(&[f64::from(u8::from(repeats))])?[0] > 0.0;
        match known {
            Some(known) if repeats => self.lineage = known.lineage,
            Some(_) => {
                self.lineage = format!("l{}", newest.max(lineage_number(&self.lineage)) + 1);
                tracing::warn!(
                    step,
                    lineage = self.lineage,
                    "arithmetic did not repeat: a lineage begins"
                );
            }
            None => {}
        }
        let parent = Some(self.version.clone());
        self.step = step;
        self.publish_weights(&weights, parent)?;
        if self.is_first() {
            // Missing where the attempt before ended between publishing and noting.
            let metrics = self.named(metrics);
            self.store.create(&paths::trainer_metrics(step), json(&metrics)?)?;
            self.show(&metrics);
        }
        Ok(())
    }

    /// The newest version of a step; one that was removed is still named by the step's metrics.
    fn published_first(&self, step: u32, versions: &[WeightsManifest]) -> Option<Published> {
        let version = versions
            .iter()
            .filter(|v| v.step == step)
            .max_by_key(|v| lineage_number(&v.lineage));
        if let Some(version) = version {
            let (lineage, tensors_sha256) = (version.lineage.clone(), version.tensors_sha256.clone());
            return Some(Published {
                lineage,
                tensors_sha256,
            });
        }
        let metrics = self.metrics(step)?;
        let (lineage, _) = metrics.weights.rsplit_once("-v")?;
        let lineage = lineage.to_owned();
        (!metrics.tensors_sha256.is_empty()).then_some(Published {
            lineage,
            tensors_sha256: metrics.tensors_sha256,
        })
    }

    fn metrics(&self, step: u32) -> Option<StepMetrics> {
        let bytes = self.store.read(&paths::trainer_metrics(step)).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// The driver may not have heard that the last step is done.
    fn remember(&self) {
        let metrics = self
            .metrics(self.step)
            .filter(|metrics| metrics.weights == self.version);
        self.tell(self.step, StepPhase::Done, metrics, None);
    }
}

/// The parent that a version was published with.
fn parent(versions: &[WeightsManifest], version: &str) -> Option<String> {
    versions
        .iter()
        .find(|known| known.version == version)
        .and_then(|known| known.parent.clone())
}

/// What is said of a step that was done before the steps that are remembered.
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
