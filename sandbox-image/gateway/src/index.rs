//! The pool's state in memory: pods, leases, waiters, demand. Events go in, actions come out, nothing here does I/O.
//!
//! A pod counts from the moment its creation is decided until it is seen to be gone or its creation is seen to fail, so
//! late, doubled or reordered watch events never make the pool create too many. A leased sandbox is never leased again:
//! its release ends the pod, or, where the pool resets ([`Index::resets`]), its container, and what is leased again is
//! another container with a root file system of its own.
//!
//! Nobody waits for a removal. A pod that is to go counts towards the pool's `max` until the API server has taken the
//! order to delete it, a moment, and the order is given again and again until the pod is seen to be gone. Only when
//! many hang ([`Bounds::allowance`]) do they keep new ones from being made.
//!
//! A fair queue serves those who wait ([`fair_queue`]): graders first, then the run with the fewest leases.

mod fair_queue;
mod model;
mod plan;
mod pulls;
mod scale_up;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use grpo_sandbox_protocol::{
    ErrorBody, ErrorCode, FaultOrigin, ImageTrouble, LeaseRequest, LedgerEntry, PoolState, Priority, SandboxCause,
};

use crate::pull::PullFailure;
use pulls::Pulls;

pub use model::{Action, ActiveLease, Bounds, Created, Ending, Found, Sandbox, Stage, Waiter, Wanted};

/// Under whose name the pool's own demand is kept; no run is called so.
const POOL_ITSELF: &str = "";
/// Ends of leases that are remembered, so that a holder hears why.
const REMEMBERED: usize = 4096;
/// The kubelet tries again after a failed pull, but not earlier: what looks like a second failure before is the first
/// one, told again, milliseconds.
const SECOND_PULL: i64 = 5_000;
/// Pause before a deletion is ordered again for the first time, milliseconds; it doubles.
const DELETE_AGAIN: i64 = 1_000;
/// A restarting container that does not answer after so long is not waited for, milliseconds: a new pod is there sooner.
const RESTART_WITHIN: i64 = 5_000;

/// The pool.
pub struct Index {
    bounds: Bounds,
    /// Whether a sandbox that is given back is used again, with a restarted container.
    pub resets: bool,
    pub sandboxes: BTreeMap<String, Sandbox>,
    pub ending: BTreeMap<String, Ending>,
    pub leases: HashMap<String, ActiveLease>,
    pub queue: VecDeque<Waiter>,
    lost: HashMap<String, SandboxCause>,
    lost_order: VecDeque<String>,
    demand: BTreeMap<String, Wanted>,
    /// Images of which there are more unleased pods than anybody wants, and since when.
    surplus_since: HashMap<String, i64>,
    pulls: Pulls,
    /// Lists of pods that were begun.
    lists: u64,
    last_epoch: u64,
    pub warm_hits: u64,
    pub cold_leases: u64,
    pub voided: u64,
}

impl Index {
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            resets: false,
            sandboxes: BTreeMap::new(),
            ending: BTreeMap::new(),
            leases: HashMap::new(),
            queue: VecDeque::new(),
            lost: HashMap::new(),
            lost_order: VecDeque::new(),
            demand: BTreeMap::new(),
            surplus_since: HashMap::new(),
            pulls: Pulls::default(),
            lists: 0,
            last_epoch: 0,
            warm_hits: 0,
            cold_leases: 0,
            voided: 0,
        }
    }

    /// Takes up a lease that the ledger holds and whose pod still lives. What comes from the ledger was granted.
    pub fn restore(&mut self, entry: LedgerEntry, found: Found, now: i64) {
        self.last_epoch = self.last_epoch.max(entry.epoch);
        let sandbox = Sandbox {
            stage: Stage::Ready,
            uid: entry.pod_uid.clone(),
            ip: found.ip.clone(),
            node: found.node.clone(),
            lease: Some(entry.lease.clone()),
            created: Some(self.created_now(now)),
            unanswered: false,
            // The cluster may not have shown the last one yet.
            restarts: found.restarts.max(entry.restarts),
            ..Sandbox::ordered(&entry.image, found.slot)
        };
        self.sandboxes.insert(entry.sandbox.clone(), sandbox);
        let held = ActiveLease::restored(entry, found, now);
        self.leases.insert(held.entry.lease.clone(), held);
    }

    /// Takes up a pod that an earlier gateway made and no lease holds. Should it have been somebody's after all, its
    /// sandboxd refuses another lease, and the pod goes.
    pub fn adopt(&mut self, name: &str, image: &str, slot: Option<u32>, restarts: u32, now: i64) {
        let sandbox = Sandbox {
            created: Some(self.created_now(now)),
            unanswered: false,
            restarts,
            ..Sandbox::ordered(image, slot)
        };
        self.sandboxes.insert(name.to_owned(), sandbox);
    }

    /// Remembers why a lease ended.
    pub fn remember(&mut self, lease: &str, cause: SandboxCause) {
        if self.lost.insert(lease.to_owned(), cause).is_none() {
            self.lost_order.push_back(lease.to_owned());
        }
        while self.lost_order.len() > REMEMBERED {
            if let Some(oldest) = self.lost_order.pop_front() {
                self.lost.remove(&oldest);
            }
        }
    }

    /// Why a lease ended, if it did.
    pub fn cause_of(&self, lease: &str) -> Option<SandboxCause> {
        self.lost.get(lease).copied()
    }

    /// Puts somebody in the queue. The same id waits once, as long as the most patient of its callers. When the queue
    /// is full, the newest waiter of the run that has most of it makes room for a run that has less.
    pub fn wait(&mut self, request: LeaseRequest, now: i64) -> Result<Vec<Action>, ErrorBody> {
        let deadline = now + (request.wait_seconds as i64).saturating_mul(1000);
        self.heard(&request.run, now);
        if self.leases.contains_key(&request.id) {
            return Ok(Vec::new());
        }
        if let Some(waiter) = self.queue.iter_mut().find(|waiter| waiter.request.id == request.id) {
            waiter.deadline = waiter.deadline.max(deadline);
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
        });
        Ok(actions)
    }

    /// Whether a pod is there, or may be made at once.
    fn has_room_for(&self, request: &LeaseRequest) -> bool {
        let is_agent = request.priority == Priority::Agent;
        if is_agent && self.agents_left() == 0 {
            return false;
        }
        self.has_room() || self.has_ready(&request.image)
    }

    /// Takes out the newest waiter of the run that has most of the queue, if that is clearly more than the newcomer's
    /// run has.
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

    /// A run was heard of: what it wants warm is still wanted.
    fn heard(&mut self, run: &str, now: i64) {
        if let Some(wanted) = self.demand.get_mut(run) {
            wanted.heard = wanted.heard.max(now);
        }
    }

    fn has_ready(&self, image: &str) -> bool {
        let mut sandboxes = self.sandboxes.values();
        sandboxes.any(|s| s.stage == Stage::Ready && s.lease.is_none() && s.image == image)
    }

    /// Place in the queue, from 1, and its length. Places are counted in fair order, as if there were a sandbox for
    /// each.
    pub fn place(&self, lease: &str) -> (usize, usize) {
        let (mut before, mut place) = (0, 0);
        fair_queue::in_fair_order(&self.queue, &self.leases, |_, waiter| {
            before += 1;
            if waiter.request.id == lease {
                place = before;
            }
            true
        });
        (place, self.queue.len())
    }

    pub fn give_up(&mut self, lease: &str) {
        self.queue.retain(|waiter| waiter.request.id != lease);
    }

    /// Sandboxes that a run wants warm; replaces what it wanted.
    pub fn want(&mut self, run: &str, images: Vec<(String, usize)>, now: i64) {
        let images: Vec<(Arc<str>, usize)> = images.into_iter().map(|(image, count)| (image.into(), count)).collect();
        match images.is_empty() {
            true => drop(self.demand.remove(run)),
            false => drop(self.demand.insert(run.to_owned(), Wanted { images, heard: now })),
        }
    }

    /// Sandboxes that the pool itself keeps warm, whatever runs want.
    pub fn keep(&mut self, images: Vec<(String, usize)>) {
        self.want(POOL_ITSELF, images, i64::MAX);
    }

    /// A list of pods begins. Whatever is known to exist by now is in it, or is gone.
    pub fn list_begins(&mut self) {
        self.lists += 1;
    }

    /// The list is whole.
    pub fn list_ends(&mut self, listed: &HashSet<String>) -> Vec<Action> {
        let lists = self.lists;
        let must_be_listed = |created: Option<Created>| created.is_some_and(|created| created.lists < lists);
        self.ending
            .retain(|name, ending| ending.unanswered || listed.contains(name) || !must_be_listed(ending.created));
        let missing: Vec<String> = self
            .sandboxes
            .iter()
            .filter(|(name, sandbox)| !listed.contains(*name) && must_be_listed(sandbox.created))
            .map(|(name, _)| name.clone())
            .collect();
        missing
            .iter()
            .flat_map(|name| self.gone(name, SandboxCause::Deleted))
            .collect()
    }

    fn created_now(&self, at: i64) -> Created {
        Created { at, lists: self.lists }
    }

    /// The API server has taken the order for a pod, which has this uid, if that is known. If it is to go already, now
    /// it can.
    pub fn answered(&mut self, name: &str, uid: &str, now: i64) -> Vec<Action> {
        if let Some(sandbox) = self.sandboxes.get_mut(name) {
            sandbox.made = uid.to_owned();
        }
        if let Some(ending) = self.ending.get_mut(name) {
            ending.made = uid.to_owned();
        }
        self.created(name, now)
    }

    /// The watch says that a pod is no more. That may be an earlier one of the same name: an order that is given again
    /// can make a pod twice.
    pub fn removed(&mut self, name: &str, uid: &str, cause: SandboxCause) -> Vec<Action> {
        let live = self.sandboxes.get(name).map(|sandbox| &sandbox.made);
        let made = live.or_else(|| self.ending.get(name).map(|ending| &ending.made));
        match made.is_some_and(|made| !made.is_empty() && made != uid) {
            true => Vec::new(),
            false => self.gone(name, cause),
        }
    }

    /// The API server has taken the order for a pod. If it is to go already, now it can.
    pub fn created(&mut self, name: &str, now: i64) -> Vec<Action> {
        let created = self.created_now(now);
        if let Some(sandbox) = self.sandboxes.get_mut(name) {
            // A list that began before the answer may have missed it, whatever was seen of an earlier try.
            sandbox.created = Some(created);
            sandbox.unanswered = false;
        }
        let Some(ending) = self.ending.get_mut(name) else {
            return Vec::new();
        };
        ending.created = Some(created);
        ending.unanswered = false;
        ending.again_at = now + DELETE_AGAIN;
        vec![Action::Delete { name: name.to_owned() }]
    }

    /// A pod of the pool was seen, started or not. Answers whether its address is news.
    pub fn observed(&mut self, name: &str, uid: &str, ip: &str, node: &str, now: i64) -> bool {
        let created = self.created_now(now);
        let Some(sandbox) = self.sandboxes.get_mut(name) else {
            return false;
        };
        sandbox.created.get_or_insert(created);
        // An address appears once; what follows it is noise.
        if !sandbox.ip.is_empty() {
            return false;
        }
        (sandbox.uid, sandbox.ip, sandbox.node) = (uid.to_owned(), ip.to_owned(), node.to_owned());
        !ip.is_empty()
    }

    /// Whether a pod is the pool's, or goes already.
    pub fn knows(&self, name: &str) -> bool {
        self.sandboxes.contains_key(name) || self.ending.contains_key(name)
    }

    /// An orphan: a pod that this gateway neither ordered nor restored. It may hold an earlier holder's work, and goes.
    pub fn orphan(&mut self, name: &str, now: i64) -> Vec<Action> {
        if self.knows(name) {
            return Vec::new();
        }
        let created = Some(self.created_now(now));
        let sandbox = Sandbox {
            created,
            unanswered: false,
            ..Sandbox::ordered("", None)
        };
        self.end(name, &sandbox, now)
    }

    /// sandboxd answers, so both images were there to be had.
    pub fn ready(&mut self, name: &str) {
        let asked = |image: &str, queue: &VecDeque<Waiter>| queue.iter().any(|waiter| waiter.request.image == image);
        let Some(sandbox) = self.sandboxes.get_mut(name) else {
            return;
        };
        if sandbox.stage == Stage::Starting {
            sandbox.warm = !asked(&sandbox.image, &self.queue);
            sandbox.stage = Stage::Ready;
            sandbox.restart_deadline = None;
            self.pulls.succeeded(&sandbox.image);
        }
    }

    /// sandboxd, bound under this epoch, has taken the order to end: what answers from now on is the restarted
    /// container. Answers its address, to be asked whether it is there.
    pub fn restarting(&mut self, name: &str, epoch: u64) -> Option<String> {
        let sandbox = self.sandboxes.get_mut(name)?;
        if sandbox.stage != (Stage::Resetting { epoch }) {
            return None;
        }
        sandbox.stage = Stage::Starting;
        sandbox.restarts += 1;
        Some(sandbox.ip.clone())
    }

    /// The cluster shows how often a pod's container has restarted. If that is more often than it was told to, the
    /// lease on it is lost.
    pub fn restarted(&mut self, name: &str, restarts: u32, cause: SandboxCause, now: i64) -> Vec<Action> {
        let expected = self.sandboxes.get(name).map(|sandbox| match sandbox.stage {
            // The watch may tell of it before sandboxd's answer is here.
            Stage::Resetting { .. } => sandbox.restarts + 1,
            Stage::Starting | Stage::Ready => sandbox.restarts,
        });
        match expected.is_some_and(|expected| restarts > expected) {
            true => self.discard(name, cause, now),
            false => Vec::new(),
        }
    }

    /// A pod is no more; a lease on it is lost. While the order for it is not answered it may come to be once more.
    pub fn gone(&mut self, name: &str, cause: SandboxCause) -> Vec<Action> {
        if self.ending.get(name).is_some_and(|ending| !ending.unanswered) {
            self.ending.remove(name);
        }
        let Some(sandbox) = self.sandboxes.remove(name) else {
            return Vec::new();
        };
        let lease = sandbox.lease.clone();
        if sandbox.unanswered {
            self.end(name, &sandbox, 0);
        }
        self.lose(lease, cause)
    }

    /// The API server will not make a pod.
    pub fn refused(&mut self, name: &str) {
        self.ending.remove(name);
        self.sandboxes.remove(name);
    }

    /// A pod is of no use any more; a lease on it is lost, and it goes.
    pub fn discard(&mut self, name: &str, cause: SandboxCause, now: i64) -> Vec<Action> {
        let Some(sandbox) = self.sandboxes.remove(name) else {
            return Vec::new();
        };
        let mut actions = self.end(name, &sandbox, now);
        actions.extend(self.lose(sandbox.lease, cause));
        actions
    }

    /// The API server has no such pod. Before it is known to have had it that says nothing: the order may be under way.
    pub fn absent(&mut self, name: &str) {
        if self.ending.get(name).is_some_and(|ending| ending.created.is_some()) {
            self.ending.remove(name);
        }
    }

    /// The API server has taken the order to delete a pod: its place is free.
    pub fn deleting(&mut self, name: &str) {
        if let Some(ending) = self.ending.get_mut(name) {
            ending.accepted = true;
        }
    }

    fn end(&mut self, name: &str, sandbox: &Sandbox, now: i64) -> Vec<Action> {
        let ending = Ending {
            slot: sandbox.slot,
            created: sandbox.created,
            unanswered: sandbox.unanswered,
            made: sandbox.made.clone(),
            accepted: false,
            orders: 1,
            again_at: now + DELETE_AGAIN,
        };
        self.ending.insert(name.to_owned(), ending);
        match sandbox.unanswered {
            true => Vec::new(),
            false => vec![Action::Delete { name: name.to_owned() }],
        }
    }

    fn lose(&mut self, lease: Option<String>, cause: SandboxCause) -> Vec<Action> {
        let held = lease.and_then(|lease| self.leases.remove(&lease));
        let Some(held) = held else { return Vec::new() };
        let (lease, epoch) = (held.entry.lease.clone(), held.entry.epoch);
        if held.granted {
            self.remember(&lease, cause);
            self.voided += u64::from(cause.fault() == FaultOrigin::Infrastructure);
            let cause = Some(cause);
            return vec![Action::Forget { lease, epoch, cause }];
        }
        // Nobody has heard of it yet: its callers wait on, for another sandbox.
        self.queue.push_front(held.asked_again());
        vec![Action::Forget {
            lease,
            epoch,
            cause: None,
        }]
    }

    /// An image of a pod cannot be pulled. Once the kubelet has tried twice, or says that it need not try, whoever
    /// waits for it hears so, and it is left alone for a while.
    pub fn pull_failed(&mut self, name: &str, failure: &PullFailure, now: i64) -> Vec<Action> {
        let Some(sandbox) = self.sandboxes.get_mut(name) else {
            return Vec::new();
        };
        let first = *sandbox.pull_failed_at.get_or_insert(now);
        if !failure.is_final && now < first + SECOND_PULL {
            return Vec::new();
        }
        let image = sandbox.image.clone();
        self.pulls.failed(&image, failure, now);
        let mut actions = self.discard(name, SandboxCause::Unknown, now);
        actions.extend(self.refuse_what_cannot_be_pulled(now));
        actions
    }

    fn refuse_what_cannot_be_pulled(&mut self, now: i64) -> Vec<Action> {
        let mut actions = Vec::new();
        let waiters = std::mem::take(&mut self.queue);
        for waiter in waiters {
            match self.pulls.refusal(&waiter.request.image, now) {
                Some(error) if !self.has_ready(&waiter.request.image) => actions.push(Action::Refuse {
                    lease: waiter.request.id,
                    error,
                }),
                _ => self.queue.push_back(waiter),
            }
        }
        actions
    }

    /// The lease is durable and bound. Answers it if it is still the same one: it may have been given back and asked
    /// for again meanwhile.
    pub fn grant(&mut self, lease: &str, epoch: u64) -> Option<ActiveLease> {
        let held = self.leases.get_mut(lease).filter(|held| held.entry.epoch == epoch)?;
        held.granted = true;
        Some(held.clone())
    }

    /// Gives a sandbox back: its pod ends, or its container, if the pool resets.
    pub fn release(&mut self, lease: &str, now: i64) -> Vec<Action> {
        let is_waited_for = match self.leases.get(lease) {
            Some(held) => !held.granted,
            None => self.queue.iter().any(|waiter| waiter.request.id == lease),
        };
        self.give_up(lease);
        let mut actions = match self.resets && !is_waited_for {
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

    /// Gives a sandbox back whose pod is kept. Nothing if it is not leased.
    fn reset(&mut self, lease: &str, now: i64) -> Vec<Action> {
        let name = self.leases.get(lease).map(|held| held.entry.sandbox.clone());
        let Some(sandbox) = name.as_ref().and_then(|name| self.sandboxes.get_mut(name)) else {
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

    fn take_back(&mut self, lease: &str, cause: Option<SandboxCause>, now: i64) -> Vec<Action> {
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

    /// Extends a lease. Answers it as it then is, and whether it has longer than the ledger knows.
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

    /// A command begins. Until [`Index::command_ends`] the lease is in use.
    pub fn command_begins(&mut self, lease: &str, now: i64) {
        self.used(lease, now);
        if let Some(held) = self.leases.get_mut(lease) {
            held.running += 1;
        }
    }

    /// The epoch keeps a late end from being taken for one under a later lease of the same id.
    pub fn command_ends(&mut self, lease: &str, epoch: u64, now: i64) {
        if let Some(held) = self.leases.get_mut(lease).filter(|held| held.entry.epoch == epoch) {
            held.running = held.running.saturating_sub(1);
            held.used_at = held.used_at.max(now);
        }
    }

    /// Images that are left alone now because they could not be had.
    pub fn troubles(&self, now: i64) -> Vec<ImageTrouble> {
        self.pulls.troubles(now)
    }

    pub fn state(&self) -> PoolState {
        let count = |f: fn(&Sandbox) -> bool| self.sandboxes.values().filter(|s| f(s)).count() as u32;
        PoolState {
            ready: count(|s| s.stage == Stage::Ready && s.lease.is_none()),
            leased: self.leases.len() as u32,
            pending: count(|s| s.stage != Stage::Ready),
            max: self.bounds.max as u32,
            warm_hits: self.warm_hits,
            cold_leases: self.cold_leases,
            voided: self.voided,
        }
    }
}

#[cfg(test)]
mod chaos;
#[cfg(test)]
mod reset_tests;
#[cfg(test)]
mod tests;
