//! The plan for one moment of the pool's state: which waiters are served, which pods are ordered, which end.

use std::collections::HashMap;

use grpo_sandbox_protocol::{LedgerEntry, Priority, SandboxCause};

use super::fair_queue::in_fair_order;
use super::{Action, ActiveLease, DELETE_AGAIN, Index, Sandbox, Stage, Waiter};

/// A created pod is in the watch at once. A pod that is not there after this time was deleted before the watch could
/// show it, milliseconds. A pod that was shown may start slowly: it may be waiting for its image, or for a node.
const UNSEEN: i64 = 120_000;

/// Longest pause before a deletion is ordered again, milliseconds.
const DELETE_AGAIN_MAX: i64 = 30_000;

/// How long a run's warm demand counts after its last sign of life, milliseconds: drivers end without notice.
const DEMAND_LASTS: i64 = 600_000;

impl ActiveLease {
    /// The next time to check the lease: its expiry, or when it seems idle.
    fn looked_at(&self, idle_millis: i64) -> i64 {
        match self.running == 0 && !self.asked {
            true => self.entry.expires_at.min(self.used_at + idle_millis),
            false => self.entry.expires_at,
        }
    }
}

impl Sandbox {
    /// When to give up a pod that its node refused, one that was created but never shown, or one that does not answer
    /// after a restart.
    fn given_up_at(&self) -> Option<i64> {
        let unseen = self.created.filter(|_| self.uid.is_empty());
        self.refused_until
            .or(unseen.map(|created| created.at + UNSEEN))
            .or(self.restart_deadline)
    }
}

impl Index {
    /// The actions that follow from the state at this moment. `name` makes names for new pods.
    pub fn plan(&mut self, now: i64, mut name: impl FnMut() -> String) -> Vec<Action> {
        let mut actions = self.expire(now);
        actions.extend(self.give_up_unseen(now));
        actions.extend(self.assign(now));
        self.forget_demand(now);
        actions.extend(self.scale_up(now, &mut name));
        actions.extend(self.delete_again(now));
        actions
    }

    /// When [`Index::plan`] must run again even without events.
    pub fn next_deadline(&self, now: i64) -> Option<i64> {
        let idle = self.bounds.idle_millis;
        let leases = self.leases.values().filter(|held| held.granted);
        let deletions = self.ending.values().filter(|ending| !ending.unanswered);
        leases
            .map(|held| held.looked_at(idle))
            .chain(self.queue.iter().map(|waiter| waiter.deadline))
            .chain(deletions.map(|ending| ending.again_at))
            .chain(self.sandboxes.values().filter_map(Sandbox::given_up_at))
            .chain(
                self.demand
                    .values()
                    .map(|wanted| wanted.heard.saturating_add(DEMAND_LASTS)),
            )
            .chain(self.next_shrink())
            .chain(self.pulls.next_try(now))
            .min()
    }

    fn expire(&mut self, now: i64) -> Vec<Action> {
        let idle = self.bounds.idle_millis;
        let is_due = |held: &ActiveLease| held.granted && held.looked_at(idle) <= now;
        let due: Vec<String> = self
            .leases
            .iter()
            .filter(|(_, held)| is_due(held))
            .map(|(lease, _)| lease.clone())
            .collect();
        self.queue.retain(|waiter| waiter.deadline > now);
        due.iter().flat_map(|lease| self.end_or_ask(lease, now)).collect()
    }

    /// Ends an expired lease. A lease that only seems idle may have background work, so sandboxd is asked.
    fn end_or_ask(&mut self, lease: &str, now: i64) -> Vec<Action> {
        match self.leases.get_mut(lease) {
            Some(held) if held.entry.expires_at > now => {
                held.asked = true;
                let (lease, epoch) = (lease.to_owned(), held.entry.epoch);
                vec![Action::Ask { lease, epoch }]
            }
            _ => self.expired(lease, now),
        }
    }

    fn expired(&mut self, lease: &str, now: i64) -> Vec<Action> {
        self.remember(lease, SandboxCause::Expired);
        self.take_back(lease, Some(SandboxCause::Expired), now)
    }

    /// Takes in sandboxd's answer about running work. A missing answer is no reason to keep the lease.
    pub fn told_whether_idle(&mut self, lease: &str, epoch: u64, is_at_work: bool, now: i64) -> Vec<Action> {
        let idle = self.bounds.idle_millis;
        let Some(held) = self.leases.get_mut(lease).filter(|held| held.entry.epoch == epoch) else {
            return Vec::new();
        };
        held.asked = false;
        if is_at_work {
            self.used(lease, now);
            return Vec::new();
        }
        match held.running == 0 && held.used_at + idle <= now {
            true => self.expired(lease, now),
            false => Vec::new(),
        }
    }

    fn give_up_unseen(&mut self, now: i64) -> Vec<Action> {
        let unseen: Vec<String> = self
            .sandboxes
            .iter()
            .filter(|(_, sandbox)| sandbox.given_up_at().is_some_and(|at| at <= now))
            .map(|(name, _)| name.clone())
            .collect();
        unseen
            .iter()
            .flat_map(|name| self.discard(name, SandboxCause::Deleted, now))
            .collect()
    }

    /// Repeats delete orders that have had no effect yet.
    fn delete_again(&mut self, now: i64) -> Vec<Action> {
        let answered = self.ending.iter_mut().filter(|(_, ending)| !ending.unanswered);
        let due = answered.filter(|(_, ending)| ending.again_at <= now);
        due.map(|(name, ending)| {
            let pause = (DELETE_AGAIN << ending.orders.min(10)).min(DELETE_AGAIN_MAX);
            ending.orders += 1;
            ending.again_at = now + pause;
            Action::Delete { name: name.clone() }
        })
        .collect()
    }

    fn forget_demand(&mut self, now: i64) {
        self.demand
            .retain(|_, wanted| wanted.heard.saturating_add(DEMAND_LASTS) > now);
    }

    /// Assigns the ready pods to the waiters, in fair order.
    fn assign(&mut self, now: i64) -> Vec<Action> {
        if self.queue.is_empty() {
            return Vec::new();
        }
        let mut ready: HashMap<&str, Vec<&String>> = HashMap::new();
        let free = self.sandboxes.iter();
        for (name, sandbox) in free.filter(|(_, s)| s.stage == Stage::Ready && s.lease.is_none()) {
            ready.entry(&sandbox.image).or_default().push(name);
        }
        if ready.is_empty() {
            return Vec::new();
        }
        let mut agents_left = self.agents_left();
        let mut served: Vec<(usize, String)> = Vec::new();
        in_fair_order(&self.queue, &self.leases, |at, waiter| {
            let is_agent = waiter.request.priority == Priority::Agent;
            if waiter.is_abandoned || is_agent && agents_left == 0 {
                return false;
            }
            let Some(name) = ready.get_mut(waiter.request.image.as_str()).and_then(Vec::pop) else {
                return false;
            };
            agents_left -= usize::from(is_agent);
            served.push((at, name.clone()));
            true
        });
        let waiters = std::mem::take(&mut self.queue);
        let mut waiters: Vec<Option<Waiter>> = waiters.into_iter().map(Some).collect();
        let mut actions = Vec::new();
        for (at, name) in served {
            let Some(waiter) = waiters.get_mut(at).and_then(Option::take) else {
                continue;
            };
            actions.push(Action::Grant {
                lease: waiter.request.id.clone(),
            });
            self.hold(&name, waiter, now);
        }
        self.queue = waiters.into_iter().flatten().collect();
        actions
    }

    fn hold(&mut self, name: &str, waiter: Waiter, now: i64) {
        let Some(sandbox) = self.sandboxes.get_mut(name) else {
            return;
        };
        let request = waiter.request;
        sandbox.lease = Some(request.id.clone());
        match sandbox.warm {
            true => self.warm_hits += 1,
            false => self.cold_leases += 1,
        }
        self.last_epoch = (self.last_epoch + 1).max(now.unsigned_abs());
        let ttl = i64::try_from(request.ttl_seconds)
            .unwrap_or(i64::MAX)
            .saturating_mul(1000)
            .clamp(1_000, self.bounds.max_ttl_millis);
        let held = ActiveLease {
            ip: sandbox.ip.clone(),
            node: sandbox.node.clone(),
            granted: false,
            warm: sandbox.warm,
            queued: waiter.queued,
            asked_at: waiter.since,
            deadline: waiter.deadline,
            used_at: now,
            running: 0,
            asked: false,
            entry: LedgerEntry {
                lease: request.id.clone(),
                run: request.run,
                sandbox: name.to_owned(),
                pod_uid: sandbox.uid.clone(),
                restarts: sandbox.restarts,
                image: request.image,
                epoch: self.last_epoch,
                expires_at: now + ttl,
                ttl_millis: ttl,
                priority: request.priority,
            },
        };
        self.lost.remove(&request.id);
        self.leases.insert(request.id, held);
    }

    /// How many more leases agents may have.
    pub(super) fn agents_left(&self) -> usize {
        let held = self.leases.values();
        let agents = held.filter(|held| held.entry.priority == Priority::Agent).count();
        (self.bounds.max - self.bounds.reserved).saturating_sub(agents)
    }
}
