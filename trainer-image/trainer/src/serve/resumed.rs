//! `resumeFrom`: a run that begins with a checkpoint of another one.
//!
//! The state becomes this run's own checkpoint of step 0 before anything is published. From then on the other run may
//! train on, remove its old checkpoints, or be deleted: this run reads it no more. Rank 0 chooses the checkpoint; the
//! other ranks read it, as they do with a checkpoint of their own run.

use std::path::Path;

use grpo_contracts::RunConfig;
use grpo_crds::grpo_run::ResumeFrom;
use grpo_object_storage::read_store_blocking;
use grpo_records::{RunStore, paths};
use serde::{Deserialize, Serialize};

use super::Rank;
use crate::error::TrainError;
use crate::state::{CheckpointManifest, TrainerStore, json};

/// `resumed.json`: the checkpoint that the run began with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResumedFrom {
    /// The other run's folder in the store.
    pub path: String,
    pub lineage: String,
    pub step: u32,
    /// Optimizer steps behind its state.
    pub updates: u64,
    /// Whether the optimizer's state was taken as well.
    pub optimizer: bool,
}

impl Rank {
    /// Takes over the other run's checkpoint, if the spec names one. Every rank calls it, and only if the run has no
    /// checkpoint of its own. `published`: it has published weights.
    pub(super) fn resume_from_another_run(&mut self, published: bool) -> Result<(), TrainError> {
        let Some(from) = self.config.spec.resume_from.clone() else {
            return Ok(());
        };
        let checkpoint: CheckpointManifest = self.of_rank_0("reading the checkpoint of resumeFrom", || {
            let known = self.store.read_if_there(paths::RESUMED)?;
            // A run that lost its own checkpoint has already published versions based on this one. Without versions the
            // choice is free: the other run may have removed that checkpoint meanwhile.
            let known: Option<ResumedFrom> = known
                .filter(|_| published)
                .and_then(|bytes| serde_json::from_slice(&bytes).ok());
            chosen(&self.other_store(&from)?, &from, known.as_ref())
        })?;
        let watch = self.watch.clone();
        let loaded = watch.busy("reading the checkpoint of resumeFrom", || {
            self.other_store(&from)?.load(&mut self.model, &checkpoint)
        });
        let path = format!(
            "{}/{}",
            from.path,
            paths::checkpoint(&checkpoint.lineage, checkpoint.step)
        );
        let loaded = loaded.map_err(|error| match error {
            TrainError::Damaged { message, .. } => refused(&format!(
                "{path} cannot be taken over: {message}; model and model.lora have to be those of the run that wrote it"
            )),
            error => error,
        });
        self.on_all_ranks(&path, loaded)?;
        if !from.optimizer {
            self.model.forget_moments();
        }
        // First: without it, a run that loses its own checkpoint would begin with the other run's newest one.
        if self.is_first() {
            let resumed = ResumedFrom {
                path: from.path.clone(),
                lineage: checkpoint.lineage.clone(),
                step: checkpoint.step,
                updates: checkpoint.updates,
                optimizer: from.optimizer,
            };
            let resumed = json(&resumed)?;
            watch.busy("writing resumed.json", || self.store.put(paths::RESUMED, resumed))?;
        }
        // Before the first version is published: a restart must find these values again.
        self.begin_checkpoint(0, 1)?;
        self.finish_checkpoint(true)?;
        tracing::info!(
            path,
            step = checkpoint.step,
            optimizer = from.optimizer,
            "began with the checkpoint of another run"
        );
        Ok(())
    }

    /// The other run's store, for reading only.
    fn other_store(&self, from: &ResumeFrom) -> Result<TrainerStore, TrainError> {
        let patience = self.store.patience();
        let records = patience.retry(|| other_records(&self.config, from))?;
        Ok(TrainerStore::new(records).with_patience(patience.clone()))
    }
}

fn other_records(config: &RunConfig, from: &ResumeFrom) -> Result<RunStore, TrainError> {
    if from.path == config.store_path {
        let what = "is this run's own folder: leave resumeFrom out, the run continues from its own store by itself";
        return Err(refused(&format!("{} {what}", from.path)));
    }
    match &config.spec.store.object_store {
        None => RunStore::existing(&Path::new(RunConfig::STORE_MOUNT).join(&from.path)).map_err(|error| {
            let said = error.to_string();
            let error = TrainError::from(error);
            match error.is_outage() {
                true => error,
                false => refused(&format!(
                    "{} is not a run's folder in this run's store: {said}; name one, such as namespace/run",
                    from.path
                )),
            }
        }),
        Some(bucket) => {
            let opened = read_store_blocking(bucket, RunConfig::store_secret(bucket), &from.path);
            opened.map_err(|error| match error.is_final() {
                true => TrainError::Start(error.to_string()),
                false => TrainError::Unopened(error.to_string()),
            })
        }
    }
}

/// The checkpoint to begin with: the one with which this run began before, else the spec's step, else the newest
/// complete one.
fn chosen(
    other: &TrainerStore,
    from: &ResumeFrom,
    known: Option<&ResumedFrom>,
) -> Result<CheckpointManifest, TrainError> {
    let wanted = |checkpoint: &CheckpointManifest| match (known, from.step) {
        (Some(known), _) => (&checkpoint.lineage, checkpoint.step) == (&known.lineage, known.step),
        (None, Some(step)) => checkpoint.step == step,
        (None, None) => true,
    };
    if let Some(checkpoint) = other.newest_checkpoint_where(wanted)? {
        return Ok(checkpoint);
    }
    let mut steps: Vec<u32> = other.checkpoints()?.iter().map(|checkpoint| checkpoint.step).collect();
    steps.sort_unstable();
    steps.dedup();
    let step = known.map(|known| known.step).or(from.step);
    let what = match step {
        Some(step) => format!("no whole checkpoint of step {step}"),
        None => "no whole checkpoint".to_owned(),
    };
    let there = match steps.is_empty() {
        true => "it has none: the other run writes them as its checkpoint.every says".to_owned(),
        false => format!("it has steps {steps:?}: give one of them as resumeFrom.step"),
    };
    Err(refused(&format!("{} has {what}; {there}", from.path)))
}

fn refused(what: &str) -> TrainError {
    TrainError::Start(format!("spec.resumeFrom: {what}"))
}
