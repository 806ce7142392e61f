//! Callers that ask for a lease. Each waits for its answer; a caller that goes away gives up its place in the queue.

use std::sync::Arc;
use std::time::Duration;

use grpo_sandbox_protocol::{ErrorBody, ErrorCode, FaultOrigin, Lease, LeaseRequest};

use super::{Core, lease, now};
use crate::waiters::{Place, Told};

/// A waiting caller. If it is dropped before it gets an answer, the caller has gone away.
struct Caller<'a> {
    core: &'a Core,
    id: &'a str,
    place: Option<Place>,
}

impl Caller<'_> {
    /// The answer, if it comes in time.
    async fn told(&mut self, within: Duration) -> Option<Told> {
        let told = self.place.as_mut()?.answer(within).await;
        if told.is_some() {
            self.place = None;
        }
        told
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        let Some(place) = self.place.take() else { return };
        let mut index = self.core.lock();
        // Another caller with the same id may still wait.
        if place.leave() {
            index.abandon(self.id, now());
        }
    }
}

impl Core {
    /// Leases a sandbox, and waits in the queue as long as the request allows.
    pub async fn lease(self: &Arc<Self>, request: LeaseRequest) -> Result<Lease, ErrorBody> {
        let wait = Duration::from_secs(request.wait_seconds);
        let id = request.id.clone();
        let deadline = now() + wait.as_millis() as i64;
        let (place, actions) = {
            let mut index = self.lock();
            if index.run_of(&id).is_some_and(|run| run != request.run) {
                let message = format!("lease {id} is another run's; give every lease an id of its own");
                return Err(ErrorBody::new(ErrorCode::Forbidden, FaultOrigin::Client, message));
            }
            if let Some(held) = index.leases.get(&id).filter(|held| held.granted) {
                return Ok(lease(held));
            }
            let actions = index.wait(request, now())?;
            (self.waiters.join(&id), actions)
        };
        let mut caller = Caller {
            core: self,
            id: &id,
            place: Some(place),
        };
        self.changed.notify_one();
        drop(self.carry_out(actions));
        match caller.told(wait).await {
            Some(answer) => answer,
            None => Err(self.not_in_time(caller, deadline)),
        }
    }

    fn not_in_time(&self, mut caller: Caller<'_>, deadline: i64) -> ErrorBody {
        let mut index = self.lock();
        let (position, waiting) = index.place(caller.id);
        // Another caller with the same id may be more patient.
        if caller.place.take().is_none_or(Place::leave) {
            index.give_up(caller.id);
        }
        let state = index.state();
        let stuck = self.stuck().into_iter().chain(index.refusing_nodes(now())).next();
        let stuck = stuck.map(|stuck| format!("; pod {} does not start: {}", stuck.pod, stuck.message));
        let message = format!(
            "no sandbox was free in time: {} of {} leased, {} starting, place {position} of {waiting}{}; raise the pool's max or wait longer",
            state.leased,
            state.max,
            state.pending,
            stuck.unwrap_or_default()
        );
        ErrorBody {
            position: Some(position),
            waiting: Some(waiting),
            deadline: Some(deadline),
            ..ErrorBody::new(ErrorCode::QueueDeadline, FaultOrigin::Infrastructure, message)
        }
    }
}
