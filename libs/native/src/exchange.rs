//! A differentiable all-to-all: ranks that share a sequence trade tokens for heads and back (DeepSpeed-Ulysses, arXiv
//! 2309.14509).
//!
//! Forward and backward call it from the middle of a graph, where it cannot return an error to a caller. So it records
//! a failure: from then on it exchanges nothing, returns zeros in place of the other ranks' data, and
//! [`Exchange::check`] reports the failure.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use tch::Tensor;

use crate::call::{made, made_tensor};
use crate::collectives::{grpo_all_to_all, grpo_exchange_free, grpo_exchange_new};
use crate::group::Group;
use crate::rendezvous::CollectiveError;
use crate::rendezvous_store::{Progress, RendezvousStore};

const DOING: &str = "exchange of a sequence";

/// Receives the reports of a graph's exchanges.
struct Notes {
    store: Arc<RendezvousStore>,
    progress: Arc<Progress>,
    failure: Mutex<Option<String>>,
}

extern "C" fn note(context: *mut c_void, event: c_int, text: *const c_char) {
    // SAFETY: `context` is the Arc from `Exchange::new`, which lives until `forget` takes it; the text outlives the
    // call.
    let (notes, text) = unsafe { (&*context.cast::<Notes>(), CStr::from_ptr(text)) };
    if event == 0 {
        notes.progress.enter(&notes.store, DOING, true);
        notes.progress.begin_waiting(DOING);
        return;
    }
    notes.progress.end_waiting();
    if event == 2 {
        let text = text.to_string_lossy();
        let first = text.lines().next().unwrap_or_default().to_owned();
        *notes.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(first);
    }
}

extern "C" fn forget(context: *mut c_void) {
    // SAFETY: made by `Arc::into_raw`, taken back once.
    drop(unsafe { Arc::from_raw(context.cast::<Notes>()) });
}

/// The ranks that share a sequence.
pub struct Exchange {
    raw: Option<*mut c_void>,
    notes: Option<Arc<Notes>>,
    group: Group,
}

impl Exchange {
    /// A single rank, which shares no sequences.
    pub fn alone() -> Self {
        Self {
            raw: None,
            notes: None,
            group: Group::alone(),
        }
    }

    /// An exchange over the ranks of `group`. Other groups' ranks may call theirs more or less often than this one: see
    /// `within` at [`Group::part`].
    pub fn new(group: Group) -> Result<Self, CollectiveError> {
        let mut exchange = Self {
            raw: None,
            notes: None,
            group,
        };
        if let (Some(group), Some(store)) = (exchange.group.raw, &exchange.group.store) {
            let notes = Arc::new(Notes {
                store: store.clone(),
                progress: exchange.group.progress.clone(),
                failure: Mutex::new(None),
            });
            let context = Arc::into_raw(notes.clone()).cast_mut().cast();
            // SAFETY: the group is live; the context is an Arc that C++ gives back to `forget`.
            let raw = made(|out, e, n| unsafe { grpo_exchange_new(group, context, note, forget, out, e, n) })
                .map_err(|message| exchange.group.error(DOING, message))?;
            exchange.raw = Some(raw);
            exchange.notes = Some(notes);
        }
        Ok(exchange)
    }

    pub fn group(&self) -> &Group {
        &self.group
    }

    pub fn rank(&self) -> usize {
        self.group.rank() as usize
    }

    pub fn world(&self) -> usize {
        self.group.world as usize
    }

    /// `x: [world, ..]`: block j goes to rank j, and block j of the result comes from rank j. Differentiable. Every
    /// rank of the group calls it in the same order with the same shape, and so do their backward passes. For a single
    /// rank, returns `x` itself.
    pub fn all_to_all(&self, x: &Tensor) -> Tensor {
        let Some(exchange) = self.raw else {
            return x.shallow_clone();
        };
        // Shapes that do not fit panic, as they do in every other operation on tensors.
        assert_eq!(
            x.size().first(),
            Some(&i64::from(self.group.world)),
            "a block for each rank"
        );
        let mut x = x.shallow_clone();
        // SAFETY: exchange and tensor outlive the call.
        made_tensor(|out, e, n| unsafe { grpo_all_to_all(exchange, x.as_mut_ptr().cast(), out, e, n) })
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Fails if any exchange so far, forward or backward, failed.
    pub fn check(&self) -> Result<(), CollectiveError> {
        let Some(notes) = &self.notes else { return Ok(()) };
        match &*notes.failure.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(()),
            Some(message) => Err(self.group.error(DOING, message.clone())),
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.take() {
            // SAFETY: made by `grpo_exchange_new`, freed once.
            unsafe { grpo_exchange_free(raw) }
        }
    }
}
