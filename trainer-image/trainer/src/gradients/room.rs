//! A step's share of its device's memory: decides whether activations are kept, how many layers' attention outputs are
//! kept, and how many of the head's logits exist at once.
//!
//! On the CPU these bounds are fields of [`Sharded`]. On a GPU the free memory is a second bound; with `deterministic`,
//! the memory that this rank's state alone would leave free, which is the same after a restart.

use grpo_memory::{Load, Schedule};
use grpo_native::device;
use tch::{Device, Kind};

use crate::error::TrainError;
use crate::memory::reserved;
use crate::micro_batch::MicroBatch;
use crate::sharded::Sharded;

/// Most logits of a piece of the head. A row of the buffer holds twice as many gradients in bf16, so that places stay
/// below 2^31: larger products were not verified on a GPU.
const LARGEST_LOGITS: usize = 1 << 30;

impl Sharded {
    /// Whether these micro-batches' activations are kept. All ranks gather alike, so one rank without enough memory
    /// decides for all. Every rank must call it.
    pub fn keeps(&self, batches: &[MicroBatch]) -> Result<bool, TrainError> {
        let room = match self.gpu_room()? {
            Some(room) => room.min(self.activation_bytes),
            None => self.activation_bytes,
        };
        let over = f64::from(u8::from(self.kept_bytes(batches) > room));
        Ok(self.sum(&[over])?[0] == 0.0)
    }

    /// Estimated bytes of the kept schedule for these micro-batches, beyond the permanent state: see
    /// [`grpo_memory::Facts::step_bytes`].
    pub fn kept_bytes(&self, batches: &[MicroBatch]) -> usize {
        self.step_bytes(batches, Schedule::Kept)
    }

    /// Estimated bytes of a step on these micro-batches at its peak, with state and the head's least logits. Outputs of
    /// attention that are kept, and further logits, are left out: they take memory that is free.
    pub fn estimated_bytes(&self, batches: &[MicroBatch], kept: bool) -> usize {
        let schedule = if kept { Schedule::Kept } else { Schedule::Streamed };
        self.facts().estimate(&load_of(batches), schedule).total() as usize
    }

    fn step_bytes(&self, batches: &[MicroBatch], schedule: Schedule) -> usize {
        self.facts().step_bytes(&load_of(batches), schedule) as usize
    }

    /// Bytes of a GPU for a step, without the head's least logits. A tenth stays free, because the allocator fragments
    /// memory.
    pub(crate) fn gpu_room(&self) -> Result<Option<usize>, TrainError> {
        let Device::Cuda(index) = self.compute.device else {
            return Ok(None);
        };
        let bytes = match self.compute.deterministic {
            false => device::gpu_free(index),
            true => device::gpu_total(index).map(|total| {
                total
                    .saturating_sub(self.facts().state_bytes())
                    .saturating_sub(reserved(self.shares_device))
            }),
        };
        let bytes = bytes.map_err(|message| {
            TrainError::Start(format!("cannot read how much memory GPU {index} has free: {message}"))
        })?;
        let logits = Kind::Float.elt_size_in_bytes() * self.head_logits;
        Ok(Some((bytes as usize).saturating_sub(logits) / 10 * 9))
    }

    /// Trained tokens whose logits exist at once beside activations that are kept: see [`Sharded::head_piece_in`].
    pub(super) fn head_piece_of_kept(&self, batches: &[MicroBatch]) -> Result<i64, TrainError> {
        let room = self.gpu_room()?;
        let spare = room.map(|room| room.saturating_sub(self.kept_bytes(batches)));
        Ok(self.head_piece_in(batches, spare))
    }

    /// For each wave, the number of layers whose attention outputs are kept; and the trained tokens whose logits exist
    /// at once. Attention has half of the memory that blocks leave, the head half of the rest, because the estimate
    /// covers only memory that is certainly held. Called before a step allocates.
    pub(super) fn plan_of(&self, waves: &[&[MicroBatch]]) -> Result<(Vec<usize>, i64), TrainError> {
        let room = self.gpu_room()?;
        let one = |batches: &&[MicroBatch]| {
            let attended = self.attended_in(room, batches);
            let taken = self.step_bytes(batches, Schedule::Streamed) + attended * self.attended_bytes(batches);
            let spare = room.map(|room| room.saturating_sub(taken));
            (attended, self.head_piece_in(batches, spare))
        };
        let (attended, pieces): (Vec<usize>, Vec<i64>) = waves.iter().map(one).unzip();
        let piece = pieces.into_iter().min().unwrap_or_else(|| self.head_piece());
        Ok((attended, piece))
    }

    /// Trained tokens whose logits exist at once, with `spare` bytes of a GPU. With more memory the number is higher,
    /// up to [`LARGEST_LOGITS`]: fewer products, fewer waits of the host, and no second computation of logits for a
    /// loss over a whole row.
    fn head_piece_in(&self, batches: &[MicroBatch], spare: Option<usize>) -> i64 {
        let least = self.head_piece();
        // Other pieces give sums with other bits.
        let Some(spare) = spare.filter(|_| !self.compute.deterministic) else {
            return least;
        };
        let most = batches.iter().map(|batch| batch.trained.len()).max().unwrap_or(0);
        let logits = (spare / 2 / Kind::Float.elt_size_in_bytes()).min(LARGEST_LOGITS);
        let fits = logits / self.config.vocab_size.max(1);
        least.max(most.min(fits) as i64)
    }

    /// Number of layers whose attention outputs are kept, and not computed again, for these micro-batches.
    fn attended_in(&self, room: Option<usize>, batches: &[MicroBatch]) -> usize {
        let (room, most) = (room.map(|room| room as u64), self.attention_bytes as u64);
        self.facts().attended_layers(&load_of(batches), room, most) as usize
    }

    /// See [`grpo_memory::Facts::attended_bytes`].
    pub fn attended_bytes(&self, batches: &[MicroBatch]) -> usize {
        self.facts().attended_bytes(&load_of(batches)) as usize
    }
}

fn load_of(batches: &[MicroBatch]) -> Load {
    let trained = batches.iter().map(|batch| batch.trained.len() as u64);
    Load {
        tokens: batches.iter().map(|batch| batch.tokens() as u64).collect(),
        trained: trained.max().unwrap_or(0),
    }
}
