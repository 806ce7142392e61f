//! Writes checkpoints while training continues.
//!
//! A rank copies its part of the state, which is quick, and a separate thread writes the copy. After every order the
//! ranks count who has written; when all have, rank 0 seals the checkpoint. A checkpoint that a rank could not write,
//! or during which it died, does not exist. At most one is under way: the next one waits for it, and memory holds one
//! copy at most.

use std::thread::JoinHandle;

use super::Rank;
use crate::error::TrainError;
use crate::state::{CheckpointManifest, Snapshot, Written};

/// A checkpoint that is under way.
pub(super) struct Pending {
    head: CheckpointManifest,
    keep: usize,
    writing: Writing,
}

/// State of this rank's part.
enum Writing {
    UnderWay(JoinHandle<Result<Written, TrainError>>),
    Done(Written),
    /// It could not be written: this rank ends.
    Failed,
}

impl Pending {
    /// This rank's written part, or `None` while it still writes; with `wait`, waits for it. Fails if it could not be
    /// written.
    fn written(&mut self, wait: bool) -> Result<Option<Written>, TrainError> {
        match std::mem::replace(&mut self.writing, Writing::Failed) {
            Writing::UnderWay(thread) if !wait && !thread.is_finished() => {
                self.writing = Writing::UnderWay(thread);
                Ok(None)
            }
            Writing::UnderWay(thread) => {
                let panicked = |_| TrainError::Start("the thread that writes a checkpoint panicked".to_owned());
                let written = thread.join().map_err(panicked)??;
                self.writing = Writing::Done(written);
                Ok(Some(written))
            }
            Writing::Done(written) => {
                self.writing = Writing::Done(written);
                Ok(Some(written))
            }
            Writing::Failed => Err(TrainError::Start(
                "this rank could not write its part of a checkpoint".to_owned(),
            )),
        }
    }
}

impl Rank {
    /// Begins to write the state after `step`. Every rank calls it.
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
            writing: Writing::UnderWay(writing),
        });
        Ok(())
    }

    /// Seals the pending checkpoint if every rank has written its part; with `wait`, waits until they have. Every rank
    /// calls it.
    pub(super) fn finish_checkpoint(&mut self, wait: bool) -> Result<(), TrainError> {
        let Some(pending) = &mut self.pending else {
            return Ok(());
        };
        let group = &self.model.group;
        let own = match wait {
            true => group.busy("writing a checkpoint", || pending.written(true))?,
            false => pending.written(false)?,
        };
        let Some(written) = Written::on_all_ranks(own, &self.model)? else {
            return Ok(());
        };
        let Some(Pending { head, keep, .. }) = self.pending.take() else {
            return Ok(());
        };
        if self.is_first() {
            let step = head.step;
            self.model.group.busy("sealing a checkpoint", || {
                self.store.seal_snapshot(head, &written, keep)
            })?;
            self.board.with(|shared| shared.state.checkpoint_step = step);
        }
        Ok(())
    }
}
