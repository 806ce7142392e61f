//! The waiters for leases.

use std::collections::BTreeMap;

use grpo_sandbox_protocol::{ErrorBody, ErrorCode, FaultOrigin, LeaseRequest, Priority};

use super::fair_queue::in_fair_order;
use super::{Action, Index, Waiter};

/// How long the place of a disconnected caller is kept, milliseconds: callers whose connection broke ask again.
const ASKED_AGAIN_WITHIN: i64 = 10_000;

impl Index {
    /// Puts a request into the queue. An id has one place, which lasts as long as its most patient caller. If the queue
    /// is full, the newest waiter of the run with the most waiters gives way to a run with fewer.
    pub fn wait(&mut self, request: LeaseRequest, now: i64) -> Result<Vec<Action>, ErrorBody> {
        let deadline = now + (request.wait_seconds as i64).saturating_mul(1000);
        self.heard(&request.run, now);
        if let Some(held) = self.leases.get_mut(&request.id) {
            held.deadline = held.deadline.max(deadline);
            return Ok(Vec::new());
        }
        if let Some(waiter) = self.queue.iter_mut().find(|waiter| waiter.request.id == request.id) {
            waiter.deadline = waiter.deadline.max(deadline);
            waiter.is_abandoned = false;
            return Ok(Vec::new());
        }
        if let Some(error) = self.pulls.refusal(&request.image, now)
            && !self.has_ready(&request.image)
        {
            return Err(error);
        }
        let mut actions = Vec::new();
        if self.queue.len() >= self.bounds.waiting {
            let Some(displaced) = self.displaced_by(&request.run) else {
                return Err(self.queue_full(now));
            };
            let (lease, error) = (displaced.request.id, self.queue_full(now));
            actions.push(Action::Refuse { lease, error });
        }
        let queued = !self.has_room_for(&request);
        self.queue.push_back(Waiter {
            request,
            since: now,
            deadline,
            queued,
            is_abandoned: false,
        });
        Ok(actions)
    }

    /// Whether a pod is ready, or may be made at once.
    fn has_room_for(&self, request: &LeaseRequest) -> bool {
        let is_agent = request.priority == Priority::Agent;
        if is_agent && self.agents_left() == 0 {
            return false;
        }
        self.has_room() || self.has_ready(&request.image)
    }

    /// Removes the newest waiter of the run with the most waiters, if that run has clearly more than the newcomer's
    /// run.
    fn displaced_by(&mut self, run: &str) -> Option<Waiter> {
        let mut waiting: BTreeMap<&str, usize> = BTreeMap::new();
        for waiter in &self.queue {
            *waiting.entry(&waiter.request.run).or_default() += 1;
        }
        let own = waiting.get(run).copied().unwrap_or(0);
        let (most, count) = waiting.into_iter().max_by_key(|(_, count)| *count)?;
        if count <= own + 1 {
            return None;
        }
        let at = self.queue.iter().rposition(|waiter| waiter.request.run == most)?;
        self.queue.remove(at)
    }

    fn queue_full(&self, now: i64) -> ErrorBody {
        let waiting = self.queue.len();
        let message = format!("{waiting} leases are waiting already; raise the pool's max or ask for fewer at a time");
        ErrorBody {
            position: Some(waiting + 1),
            waiting: Some(waiting),
            deadline: Some(now),
            ..ErrorBody::new(ErrorCode::QueueDeadline, FaultOrigin::Infrastructure, message)
        }
    }

    /// Place in the queue, from 1, and its length. Places are counted in fair order, as if each waiter got a sandbox.
    pub fn place(&self, lease: &str) -> (usize, usize) {
        let (mut before, mut place) = (0, 0);
        in_fair_order(&self.queue, &self.leases, |_, waiter| {
            before += 1;
            if waiter.request.id == lease {
                place = before;
            }
            true
        });
        (place, self.queue.len())
    }

    /// The last caller that waited for a lease has gone away.
    pub fn abandon(&mut self, lease: &str, now: i64) {
        if let Some(waiter) = self.queue.iter_mut().find(|waiter| waiter.request.id == lease) {
            waiter.is_abandoned = true;
            waiter.deadline = waiter.deadline.min(now + ASKED_AGAIN_WITHIN);
        }
        // The sandbox may be lost before the ledger has the lease: then the lease would wait again, without a caller.
        if let Some(held) = self.leases.get_mut(lease).filter(|held| !held.granted) {
            held.deadline = held.deadline.min(now + ASKED_AGAIN_WITHIN);
        }
    }

    pub fn give_up(&mut self, lease: &str) {
        self.queue.retain(|waiter| waiter.request.id != lease);
    }
}

#[cfg(test)]
mod tests;
