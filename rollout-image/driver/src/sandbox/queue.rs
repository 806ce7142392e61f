//! Leases that a run waits for while it holds no sandbox: since when, and the gateway's last answer.
//!
//! A run that holds sandboxes makes progress, and its further requests wait for a full pool as they should. A run that
//! holds none and gets none does nothing, so `status.progress.message` names the cause.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use grpo_sandbox_protocol::PoolState;
use tokio::time::Instant;

use super::{EXEC_MARGIN, Gateway, SandboxError, parsed};

/// A request waits so long for a place in a full pool, if the run holds sandboxes of it: shorter than the time that
/// waiting may add to an episode.
pub(super) const FULL_POOL: Duration = Duration::from_secs(25 * 60);
/// A pool that scales from zero or pulls an image grants its first lease within this time.
const QUIET: Duration = Duration::from_secs(60);
/// Attempts of an episode pause for at most five minutes. After a longer pause a wait begins anew.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// The run's requests and leases. Cloning is cheap and shares them.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    waiting: usize,
    held: usize,
    /// Since when requests wait and no lease is held.
    since: Option<Instant>,
    /// Since when no request waits either: an episode pauses before its next attempt.
    paused: Option<Instant>,
    /// The gateway's last refusal.
    refusal: Option<String>,
}

/// What a [`Counted`] counts as.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Waiting,
    Held,
}

/// Counts one request or lease until it is dropped.
#[derive(Debug)]
pub struct Counted {
    queue: Queue,
    kind: Kind,
}

impl State {
    fn count(&mut self, kind: Kind) -> &mut usize {
        match kind {
            Kind::Waiting => &mut self.waiting,
            Kind::Held => &mut self.held,
        }
    }

    fn update(&mut self) {
        let now = Instant::now();
        if self.held > 0 {
            (self.since, self.refusal) = (None, None);
        } else if self.waiting == 0 {
            self.paused = self.since.map(|_| self.paused.unwrap_or(now));
        } else {
            let paused = self.paused.take();
            let is_over = paused.is_some_and(|at| now.duration_since(at) > LONGEST_PAUSE);
            if self.since.is_none() || is_over {
                (self.since, self.refusal) = (Some(now), None);
            }
        }
    }
}

impl Queue {
    /// A request for a lease waits.
    pub fn waits(&self) -> Counted {
        self.counted(Kind::Waiting)
    }

    /// A lease is held.
    pub fn holds(&self) -> Counted {
        self.counted(Kind::Held)
    }

    /// Whether the run holds a sandbox, and so makes progress.
    pub fn holds_some(&self) -> bool {
        self.state().held > 0
    }

    fn counted(&self, kind: Kind) -> Counted {
        let mut state = self.state();
        *state.count(kind) += 1;
        state.update();
        drop(state);
        let queue = self.clone();
        Counted { queue, kind }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The gateway did not grant a lease, and will be asked again. `None`: for a cause that another message names.
    pub fn refused(&self, why: Option<&str>) {
        let mut state = self.state();
        // A refusal while the run holds sandboxes says nothing about a later wait.
        state.refusal = why.filter(|_| state.since.is_some()).map(str::to_owned);
    }

    /// The message for people; none while the run holds a sandbox or waits for less than a minute.
    pub fn message(&self) -> Option<String> {
        let state = self.state();
        let waited = state.since?.elapsed();
        let why = state
            .refusal
            .as_ref()
            .filter(|_| waited >= QUIET && state.waiting > 0)?;
        let (minutes, waiting) = (waited.as_secs() / 60, state.waiting);
        let requests = if waiting == 1 { "request waits" } else { "requests wait" };
        Some(format!(
            "no sandbox was leased for {minutes} min, {waiting} {requests}: {why}. Look at the pool: kubectl describe sandboxpools.grpo.dev"
        ))
    }

    /// Tells the message now and then.
    pub async fn follow(&self, mut tell: impl FnMut(Option<String>)) -> Infallible {
        loop {
            tell(self.message());
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

impl Gateway {
    /// The pool's state. Waits for the gateway: a rollout without it would have too few episodes until its end.
    pub async fn pool(&self) -> Result<PoolState, SandboxError> {
        let call = self.about_the_pool("asking for the pool's state");
        let _waits = self.queue.waits();
        let get = || self.http.get(self.at("/v1/pool"));
        let answer = self.send_telling(&call, get, &|why| self.queue.refused(why)).await?;
        parsed(&call, &answer)
    }

    /// Whether every sandbox of the pool is leased: a place becomes free when an episode ends, of this run or of
    /// another that shares the pool. A pool that cannot make sandboxes is not full.
    pub(super) async fn is_full(&self) -> bool {
        let request = self.authorized(self.http.get(self.at("/v1/pool"))).timeout(EXEC_MARGIN);
        let answer = match request.send().await {
            Ok(answer) => answer.json::<PoolState>().await,
            Err(error) => Err(error),
        };
        answer.is_ok_and(|pool| pool.max > 0 && pool.leased >= pool.max)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        let count = state.count(self.kind);
        *count = count.saturating_sub(1);
        state.update();
    }
}

#[cfg(test)]
mod tests;
