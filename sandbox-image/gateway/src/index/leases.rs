//! Leases from their grant to their end.

use grpo_sandbox_protocol::{ErrorBody, ErrorCode, FaultOrigin, SandboxCause};

use super::{Action, ActiveLease, Index, Stage};
use crate::egress::PROBE_RUN;

/// How long a restarting container may take to answer, milliseconds. A new pod is faster than that.
const RESTART_WITHIN: i64 = 5_000;

impl Index {
    /// Grants a lease that is durable and bound. Returns it if it is still the same lease: it may have been released
    /// and requested again meanwhile.
    pub fn grant(&mut self, lease: &str, epoch: u64) -> Option<ActiveLease> {
        let held = self.leases.get_mut(lease).filter(|held| held.entry.epoch == epoch)?;
        held.granted = true;
        Some(held.clone())
    }

    /// Rejects a lease: its pod ends, and its callers get the error.
    pub fn reject(&mut self, lease: &str, epoch: u64, error: ErrorBody, now: i64) -> Vec<Action> {
        if self.leases.get(lease).is_none_or(|held| held.entry.epoch != epoch) {
            return Vec::new();
        }
        let mut actions = self.take_back(lease, None, now);
        let lease = lease.to_owned();
        actions.push(Action::Refuse { lease, error });
        actions
    }

    /// Notes that a pod is about to get the label for the package index.
    pub fn becomes_graders(&mut self, sandbox: &str) {
        if let Some(sandbox) = self.sandboxes.get_mut(sandbox) {
            sandbox.is_graders = true;
        }
    }

    /// Whether a lease's sandbox reaches the package index.
    pub fn is_graders(&self, held: &ActiveLease) -> bool {
        let sandbox = self.sandboxes.get(&held.entry.sandbox);
        sandbox.is_some_and(|sandbox| sandbox.is_graders)
    }

    /// Releases a sandbox: its pod ends, or its container if the pool resets.
    pub fn release(&mut self, lease: &str, now: i64) -> Vec<Action> {
        let is_waited_for = match self.leases.get(lease) {
            Some(held) => !held.granted,
            None => self.queue.iter().any(|waiter| waiter.request.id == lease),
        };
        // A probe shows what a new pod reaches: a network plugin may enforce policies only later.
        let is_probes = self.leases.get(lease).is_some_and(|held| held.entry.run == PROBE_RUN);
        self.give_up(lease);
        let mut actions = match self.resets && !is_waited_for && !is_probes {
            true => self.reset(lease, now),
            false => Vec::new(),
        };
        actions.extend(self.take_back(lease, None, now));
        if is_waited_for {
            let message = format!("lease {lease} was given back while it was waited for");
            let error = ErrorBody::new(ErrorCode::NoSuchLease, FaultOrigin::Client, message);
            actions.push(Action::Refuse {
                lease: lease.to_owned(),
                error,
            });
        }
        actions
    }

    /// Releases a sandbox and keeps its pod. Returns nothing if the sandbox is not leased, or if its pod cannot be
    /// kept: an agent must never get a pod that reaches the package index.
    fn reset(&mut self, lease: &str, now: i64) -> Vec<Action> {
        let name = self.leases.get(lease).map(|held| held.entry.sandbox.clone());
        let sandbox = name.as_ref().and_then(|name| self.sandboxes.get_mut(name));
        let Some(sandbox) = sandbox.filter(|sandbox| !sandbox.is_graders) else {
            return Vec::new();
        };
        let Some((held, name)) = self.leases.remove(lease).zip(name) else {
            return Vec::new();
        };
        let (lease, epoch) = (held.entry.lease, held.entry.epoch);
        sandbox.lease = None;
        sandbox.stage = Stage::Resetting { epoch };
        sandbox.restart_deadline = Some(now + RESTART_WITHIN);
        let ip = held.ip;
        let forget = Action::Forget {
            lease: lease.clone(),
            epoch,
            cause: None,
        };
        vec![forget, Action::Reset { name, ip, lease, epoch }]
    }

    pub(super) fn take_back(&mut self, lease: &str, cause: Option<SandboxCause>, now: i64) -> Vec<Action> {
        let Some(held) = self.leases.remove(lease) else {
            return Vec::new();
        };
        let (lease, epoch) = (lease.to_owned(), held.entry.epoch);
        let mut actions = vec![Action::Forget { lease, epoch, cause }];
        let name = held.entry.sandbox;
        if let Some(sandbox) = self.sandboxes.remove(&name) {
            actions.extend(self.end(&name, &sandbox, now));
        }
        actions
    }

    pub(super) fn lose(&mut self, lease: Option<String>, cause: SandboxCause) -> Vec<Action> {
        let held = lease.and_then(|lease| self.leases.remove(&lease));
        let Some(held) = held else { return Vec::new() };
        let (lease, epoch) = (held.entry.lease.clone(), held.entry.epoch);
        if held.granted {
            self.remember(&lease, cause);
            self.voided += u64::from(cause.fault() == FaultOrigin::Infrastructure);
            let cause = Some(cause);
            return vec![Action::Forget { lease, epoch, cause }];
        }
        // The lease has not been granted yet: its callers continue to wait, for another sandbox.
        self.queue.push_front(held.asked_again());
        vec![Action::Forget {
            lease,
            epoch,
            cause: None,
        }]
    }

    /// Extends a lease. Returns its new state, and whether its time is longer than the ledger's entry.
    pub fn renew(&mut self, lease: &str, ttl_millis: i64, now: i64) -> Option<(ActiveLease, bool)> {
        let held = self.leases.get_mut(lease)?;
        let ttl = ttl_millis.clamp(1_000, self.bounds.max_ttl_millis);
        let is_longer = ttl > held.entry.ttl_millis;
        held.entry.expires_at = now + ttl;
        held.entry.ttl_millis = held.entry.ttl_millis.max(ttl);
        let held = held.clone();
        self.heard(&held.entry.run, now);
        Some((held, is_longer))
    }

    pub fn used(&mut self, lease: &str, now: i64) {
        let Some(held) = self.leases.get_mut(lease) else {
            return;
        };
        held.used_at = held.used_at.max(now);
        if let Some(wanted) = self.demand.get_mut(&held.entry.run) {
            wanted.heard = wanted.heard.max(now);
        }
    }

    /// A command begins. The lease is in use until [`Index::command_ends`].
    pub fn command_begins(&mut self, lease: &str, now: i64) {
        self.used(lease, now);
        if let Some(held) = self.leases.get_mut(lease) {
            held.running += 1;
        }
    }

    /// A command ends. The epoch keeps a late end from counting for a later lease of the same id.
    pub fn command_ends(&mut self, lease: &str, epoch: u64, now: i64) {
        if let Some(held) = self.leases.get_mut(lease).filter(|held| held.entry.epoch == epoch) {
            held.running = held.running.saturating_sub(1);
            held.used_at = held.used_at.max(now);
        }
    }
}

#[cfg(test)]
mod tests;
