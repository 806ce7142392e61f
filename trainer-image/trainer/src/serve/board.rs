//! State that the HTTP side and the training side of a rank share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use grpo_records::trainer::{StepRequest, StepState, TrainerPhase, TrainerState};

use crate::outage::StoreWaits;

/// Steps whose answers are remembered; older ones are in the store.
const STEPS_KEPT: usize = 16;

/// Whether an attempt may use its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Devices {
    /// No engine uses them.
    Own,
    /// Engines may hold their memory.
    Awaited,
    Granted,
}

/// State that the HTTP side and the training side of rank 0 share.
pub struct Shared {
    pub state: TrainerState,
    /// Steps ordered since the start, and the last step before it.
    pub steps: BTreeMap<u32, StepState>,
    /// The request of each of these steps.
    pub requests: BTreeMap<u32, StepRequest>,
    /// The last ordered step, if the store did not answer, and the error: it was not taken, and may be ordered again.
    pub unread: Option<(u32, String)>,
    /// Memory of this rank in bytes: the estimate for one row of full length, and the available amount.
    pub memory: [Option<u64>; 2],
    /// Whether this attempt may use its devices.
    pub devices: Devices,
}

impl Shared {
    /// Forgets an order whose batch could not be read, and waits for the same order again.
    pub fn put_back(&mut self, step: u32, error: String) {
        self.steps.remove(&step);
        self.requests.remove(&step);
        self.unread = Some((step, error));
        self.state.phase = TrainerPhase::Idle;
    }

    pub fn put(&mut self, step: StepState) {
        self.steps.insert(step.step, step);
        while self.steps.len() > STEPS_KEPT {
            self.steps.pop_first();
        }
        while self.requests.len() > STEPS_KEPT {
            self.requests.pop_first();
        }
    }
}

/// Handle on [`Shared`], with a signal on every change.
#[derive(Clone)]
pub struct Board {
    pub(super) shared: Arc<Mutex<Shared>>,
    pub(super) changed: Arc<tokio::sync::Notify>,
    pub(super) arrived: Arc<AtomicBool>,
    /// What this rank waits for in the store.
    pub store_waits: StoreWaits,
}

impl Board {
    pub(super) fn new(attempt: u32, world: u32, devices: Devices) -> Self {
        let state = TrainerState {
            attempt,
            world_size: world,
            lineage: String::new(),
            step: 0,
            weights: String::new(),
            manifest_sha256: String::new(),
            checkpoint_step: 0,
            phase: match devices {
                Devices::Awaited => TrainerPhase::Waiting,
                Devices::Own | Devices::Granted => TrainerPhase::Starting,
            },
            error: None,
        };
        let shared = Arc::new(Mutex::new(Shared {
            state,
            steps: BTreeMap::new(),
            requests: BTreeMap::new(),
            unread: None,
            memory: [None; 2],
            devices,
        }));
        Self {
            shared,
            changed: Arc::default(),
            arrived: Arc::default(),
            store_waits: StoreWaits::default(),
        }
    }

    /// Whether this rank has joined the rendezvous.
    pub fn has_arrived(&self) -> bool {
        self.arrived.load(Ordering::Relaxed)
    }

    /// The state as callers see it: while the trainer waits for the store, that is the error.
    pub fn state(&self) -> TrainerState {
        let state = self.with(|shared| shared.state.clone());
        TrainerState {
            error: state.error.or_else(|| self.store_waits.now()),
            ..state
        }
    }

    pub fn with<T>(&self, look: impl FnOnce(&mut Shared) -> T) -> T {
        let mut shared = self.shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let answer = look(&mut shared);
        drop(shared);
        self.changed.notify_waiters();
        answer
    }
}
