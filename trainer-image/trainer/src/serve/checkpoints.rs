//! Checkpoints that are written while training goes on.
//!
//! A rank copies its part of the state, a moment, and a thread of its own writes the copy. Whenever an order has come,
//! the ranks count who has written; when all have, rank 0 seals the checkpoint. So one that a rank could not write, or
//! died over, never was. At most one is under way: the next one waits for it, and memory holds one copy at most.

use std::thread::JoinHandle;

use tch::Tensor;

use super::Rank;
use crate::error::TrainError;
use crate::state::{CheckpointManifest, Snapshot};

/// A checkpoint that is under way.
pub(super) struct Pending {
    head: CheckpointManifest,
    keep: usize,
    /// None once it is written.
    writing: Option<JoinHandle<Result<(), TrainError>>>,
}

impl Pending {
    /// Whether this rank's part is written; with `wait`, it is. What kept it from being written is the error.
    fn is_written(&mut self, wait: bool) -> Result<bool, TrainError> {
        match self.writing.take_if(|writing| wait || writing.is_finished()) {
            None => Ok(self.writing.is_none()),
            Some(writing) => {
                let panicked = |_| TrainError::Start("the thread that writes a checkpoint panicked".to_owned());
                writing.join().map_err(panicked)??;
                Ok(true)
            }
        }
    }
}

impl Rank {
    /// Begins to write the state as it is after `step`. Every rank calls it.
    pub(super) fn begin_checkpoint(&mut self, step: u32, keep: usize) -> Result<(), TrainError> {
        self.finish_checkpoint(true)?;
        let snapshot = Snapshot::of(&self.model, &self.lineage, step);
        let (head, store) = (snapshot.head().clone(), self.store.clone());
        let writing = std::thread::Builder::new()
            .name("checkpoint".to_owned())
            .spawn(move || store.write_snapshot(&snapshot))
            .map_err(|error| TrainError::Start(format!("starting the thread that writes a checkpoint: {error}")))?;
        self.pending = Some(Pending {
            head,
            keep,
            writing: Some(writing),
        });
        Ok(())
    }

    /// Seals the checkpoint that is under way if every rank has written its part; with `wait`, when they have. Every
    /// rank calls it.
    pub(super) fn finish_checkpoint(&mut self, wait: bool) -> Result<(), TrainError> {
        let Some(pending) = &mut self.pending else {
            return Ok(());
        };
        let group = &self.model.group;
        let is_written = match wait {
            true => group.busy("writing a checkpoint", || pending.is_written(true))?,
            false => pending.is_written(false)?,
        };
        let mut written = Tensor::from_slice(&[f64::from(u8::from(is_written))]);
        group.all_reduce_sum(&mut written)?;
        if written.double_value(&[0]) < f64::from(group.world()) {
            return Ok(());
        }
        let Some(Pending { head, keep, .. }) = self.pending.take() else {
            return Ok(());
        };
        if self.is_first() {
            let step = head.step;
            self.model
                .group
                .busy("sealing a checkpoint", || self.store.seal_snapshot(head, keep))?;
            self.board.with(|shared| shared.state.checkpoint_step = step);
        }
        Ok(())
    }
}
