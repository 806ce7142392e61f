//! The rendezvous store: c10d's key-value store, kept by rank 0, in which ranks find each other and report progress.
//!
//! Every rank writes the number of the collective it enters, so a rank that waits too long can name the missing rank.
//! [`Progress`] is this rank's own progress; [`Watch`] shows all ranks to another thread of the process.

use std::ffi::{CString, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::call::{call, made};
use crate::collectives::{
    grpo_store_free, grpo_store_get, grpo_store_new, grpo_store_part, grpo_store_set, grpo_store_wait,
};
use crate::rendezvous::{CollectiveError, Rendezvous};

const REACHING: &str = "reaching rank 0";

/// Interval between two looks for a signal.
const LOOK: Duration = Duration::from_millis(200);

/// Longest value in the store.
const VALUE_BYTES: usize = 4096;

/// A connection to the store.
pub(crate) struct RendezvousStore {
    raw: *mut c_void,
    pub(crate) rank: u32,
    pub(crate) world: u32,
}

// SAFETY: c10d's TCPStore takes a lock in every operation.
unsafe impl Send for RendezvousStore {}
// SAFETY: as above.
unsafe impl Sync for RendezvousStore {}

impl RendezvousStore {
    /// Connects to rank 0's store; rank 0 opens it. Waits for rank 0 up to the group's timeout.
    pub(crate) fn reach(at: &Rendezvous) -> Result<Self, CollectiveError> {
        let store = Self::connect(at, at.rank == 0)?;
        let here = Position::default().to_string();
        store
            .set(&place(at.rank), &here)
            .map_err(|message| at.error(REACHING, message))?;
        Ok(store)
    }

    /// A second connection to the same store. A call locks its connection while it waits, so the watchdog uses its own:
    /// a wait of the training thread cannot block it.
    pub(crate) fn reach_again(at: &Rendezvous) -> Result<Self, CollectiveError> {
        Self::connect(at, false)
    }

    fn connect(at: &Rendezvous, opens: bool) -> Result<Self, CollectiveError> {
        let doing = REACHING;
        let address = text(&at.address).map_err(|message| at.error(doing, message))?;
        let raw = made(|out, error, room| {
            // SAFETY: the string outlives the call.
            unsafe {
                grpo_store_new(
                    at.rank as c_int,
                    at.world as c_int,
                    c_int::from(opens),
                    address.as_ptr(),
                    c_int::from(at.port),
                    at.timeout.as_millis() as i64,
                    out,
                    error,
                    room,
                )
            }
        })
        .map_err(|message| at.error(doing, message))?;
        Ok(Self {
            raw,
            rank: at.rank,
            world: at.world,
        })
    }

    /// Waits until every rank has arrived.
    pub(crate) fn wait_for_all(&self, at: &Rendezvous) -> Result<(), CollectiveError> {
        for rank in 0..self.world {
            let key = text(&place(rank)).map_err(|message| at.error("meeting", message))?;
            // SAFETY: the store is live, the string outlives the call.
            call(|e, n| unsafe { grpo_store_wait(self.raw, key.as_ptr(), at.timeout.as_millis() as i64, e, n) })
                .map_err(|message| at.error("meeting", format!("rank {rank} did not come: {message}")))?;
        }
        Ok(())
    }

    /// Sets a signal: see [`RendezvousStore::wait_for_signal`].
    pub(crate) fn signal(&self, name: &str) -> Result<(), String> {
        self.set(&signal(name), "1")
    }

    /// Waits for a signal, for as long as it takes; fails when rank 0 is gone. It looks again and again: c10d's own
    /// wait has a deadline, and its error does not say whether the deadline passed or the connection closed.
    pub(crate) fn wait_for_signal(&self, name: &str) -> Result<(), String> {
        while self.get(&signal(name))?.is_none() {
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// The same store with a separate key prefix, for a group of some of the ranks: rank `rank` of `world` in that
    /// group.
    pub(crate) fn part(&self, name: &str, rank: u32, world: u32) -> Result<Self, String> {
        let name = text(name)?;
        // SAFETY: the store is live, the string outlives the call.
        let raw = made(|out, e, n| unsafe { grpo_store_part(self.raw, name.as_ptr(), out, e, n) })?;
        Ok(Self { raw, rank, world })
    }

    pub(crate) fn raw(&self) -> *mut c_void {
        self.raw
    }

    fn set(&self, key: &str, value: &str) -> Result<(), String> {
        let (key, value) = (text(key)?, text(value)?);
        // SAFETY: the store is live, the strings outlive the call.
        call(|e, n| unsafe { grpo_store_set(self.raw, key.as_ptr(), value.as_ptr(), e, n) })
    }

    fn get(&self, key: &str) -> Result<Option<String>, String> {
        let key = text(key)?;
        let mut found: c_int = 0;
        let mut value = vec![0u8; VALUE_BYTES];
        // SAFETY: the store is live, the string and both places outlive the call.
        call(|e, n| unsafe {
            grpo_store_get(
                self.raw,
                key.as_ptr(),
                &mut found,
                value.as_mut_ptr().cast(),
                value.len(),
                e,
                n,
            )
        })?;
        let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
        Ok((found != 0).then(|| String::from_utf8_lossy(&value[..end]).into_owned()))
    }
}

impl Drop for RendezvousStore {
    fn drop(&mut self) {
        // SAFETY: made by `grpo_store_new`, freed once.
        unsafe { grpo_store_free(self.raw) }
    }
}

fn text(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|error| error.to_string())
}

fn place(rank: u32) -> String {
    format!("grpo/at/{rank}")
}

fn signal(name: &str) -> String {
    format!("grpo/signal/{name}")
}

/// Progress of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Collectives entered, of those that every rank enters in the same order.
    pub number: u64,
    /// Collectives since then among ranks that share a sequence; other ranks enter more or fewer of them.
    pub within: u64,
    /// The rank reports long work outside of any collective.
    pub busy: bool,
    /// The name of the last collective, or of the long work.
    pub doing: String,
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let busy = u8::from(self.busy);
        write!(f, "{} {} {busy} {}", self.number, self.within, self.doing)
    }
}

impl Position {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, ' ');
        Some(Self {
            number: parts.next()?.parse().ok()?,
            within: parts.next()?.parse().ok()?,
            busy: parts.next()? == "1",
            doing: parts.next().unwrap_or_default().to_owned(),
        })
    }
}

/// Current work of this rank, with its start.
#[derive(Clone, Debug, Default)]
pub struct Doing {
    /// The current collective.
    pub collective: Option<(&'static str, Instant)>,
    /// The current step.
    pub step: Option<(u32, Instant)>,
}

/// This rank's own progress.
#[derive(Default)]
pub(crate) struct Progress {
    doing: Mutex<Doing>,
    /// `number` and `within` of [`Position`].
    counted: Mutex<(u64, u64)>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Progress {
    /// Reports this rank in a collective while `work` runs.
    pub(crate) fn during<T>(
        &self,
        store: &RendezvousStore,
        name: &'static str,
        within: bool,
        work: impl FnOnce() -> T,
    ) -> T {
        self.enter(store, name, within);
        self.waiting(name, work)
    }

    /// Counts a collective and writes the new position into the store.
    pub(crate) fn enter(&self, store: &RendezvousStore, name: &'static str, within: bool) {
        let (number, within) = {
            let mut counted = locked(&self.counted);
            *counted = match within {
                true => (counted.0, counted.1 + 1),
                false => (counted.0 + 1, 0),
            };
            *counted
        };
        let at = Position {
            number,
            within,
            busy: false,
            doing: name.to_owned(),
        };
        // Ignores an error: if rank 0 is gone, the collective itself fails.
        let _ = store.set(&place(store.rank), &at.to_string());
    }

    /// Reports that this rank waits for a collective while `work` runs.
    pub(crate) fn waiting<T>(&self, name: &'static str, work: impl FnOnce() -> T) -> T {
        let around = locked(&self.doing).collective.replace((name, Instant::now()));
        let done = work();
        locked(&self.doing).collective = around;
        done
    }

    pub(crate) fn begin_waiting(&self, name: &'static str) {
        locked(&self.doing).collective = Some((name, Instant::now()));
    }

    pub(crate) fn end_waiting(&self) {
        locked(&self.doing).collective = None;
    }

    pub(crate) fn busy<T>(&self, store: &RendezvousStore, with: &str, work: impl FnOnce() -> T) -> T {
        let say = |busy: bool| {
            let (number, within) = *locked(&self.counted);
            let at = Position {
                number,
                within,
                busy,
                doing: with.to_owned(),
            };
            let _ = store.set(&place(store.rank), &at.to_string());
        };
        say(true);
        let done = work();
        say(false);
        done
    }
}

/// Why rank 0's store did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// Its connections are open, but it does not answer: rank 0 hangs.
    #[error("no answer within {0:?}")]
    Silent(Duration),
    /// Its connections are closed: rank 0 has ended.
    #[error("{0}")]
    Gone(String),
}

/// The view of another thread on this rank and, through the store, on all ranks.
#[derive(Clone)]
pub struct Watch {
    /// The connection on which this rank reports its progress.
    pub(crate) store: Option<Arc<RendezvousStore>>,
    /// The connection on which the other ranks' progress is read: [`RendezvousStore::reach_again`].
    pub(crate) asked: Option<Arc<RendezvousStore>>,
    pub(crate) progress: Arc<Progress>,
}

impl Watch {
    pub fn rank(&self) -> u32 {
        self.store.as_ref().map_or(0, |store| store.rank)
    }

    pub fn world(&self) -> u32 {
        self.store.as_ref().map_or(1, |store| store.world)
    }

    pub fn doing(&self) -> Doing {
        locked(&self.progress.doing).clone()
    }

    /// Runs long work outside of any collective, and reports it: the other ranks, which wait in the next collective,
    /// must not take it for a hang.
    pub fn busy<T>(&self, with: &str, work: impl FnOnce() -> T) -> T {
        match &self.store {
            Some(store) => self.progress.busy(store, with, work),
            None => work(),
        }
    }

    /// Begins or ends a step.
    pub fn set_step(&self, step: Option<u32>) {
        locked(&self.progress.doing).step = step.map(|step| (step, Instant::now()));
    }

    /// Position of every rank; `None` for a rank that never arrived.
    pub fn positions(&self, patience: Duration) -> Result<Vec<Option<Position>>, Unanswered> {
        self.asked(patience, |store| {
            (0..store.world)
                .map(|rank| Ok(store.get(&place(rank))?.as_deref().and_then(Position::parse)))
                .collect()
        })
        .unwrap_or_else(|| Ok(vec![Some(Position::default())]))
    }

    /// Leaves the reason for the other ranks why this rank terminates them all.
    pub fn announce_termination(&self, reason: &str, patience: Duration) -> Result<(), Unanswered> {
        let reason = reason.to_owned();
        self.asked(patience, move |store| store.set(TERMINATION, &reason))
            .unwrap_or(Ok(()))
    }

    /// The reason that a rank left when it terminated all ranks, if any.
    pub fn terminated(&self, patience: Duration) -> Result<Option<String>, Unanswered> {
        self.asked(patience, |store| store.get(TERMINATION)).unwrap_or(Ok(None))
    }

    /// Asks in a separate thread: a stopped rank 0 keeps its connections open and never answers.
    fn asked<T: Send + 'static>(
        &self,
        patience: Duration,
        ask: impl FnOnce(&RendezvousStore) -> Result<T, String> + Send + 'static,
    ) -> Option<Result<T, Unanswered>> {
        let store = self.asked.clone()?;
        let (answer, answers) = std::sync::mpsc::channel();
        std::thread::spawn(move || answer.send(ask(&store)));
        Some(match answers.recv_timeout(patience) {
            Ok(answer) => answer.map_err(Unanswered::Gone),
            Err(_) => Err(Unanswered::Silent(patience)),
        })
    }
}

const TERMINATION: &str = "grpo/word";

#[cfg(test)]
mod tests;
