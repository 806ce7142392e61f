//! The pool's state in memory: pods, leases, waiters, demand. Events go in, actions come out, nothing here does I/O.
//!
//! A pod counts from the moment its creation is decided until it is seen to be gone or its creation is seen to fail, so late, doubled or reordered
//! watch events never make the pool create too many. A leased sandbox is never leased again: its release deletes the pod.

use std::collections::{BTreeMap, HashMap, VecDeque};

use grpo_sandbox_protocol::{
    ErrorBody, ErrorCode, Fault, LeaseRequest, LedgerEntry, PoolState, Priority, SandboxCause,
};

/// Ends of leases that are remembered, so that a holder hears why.
const REMEMBERED: usize = 4096;
/// Leases that may wait at one time.
pub const MAX_WAITING: usize = 10_000;
/// How long an image that could not be pulled is left alone, milliseconds.
const IMAGE_BACKOFF: i64 = 30_000;

/// How far a pod is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Ordered, or not answering yet.
    Starting,
    /// sandboxd answers.
    Ready,
}

/// A sandbox pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    pub image: String,
    pub stage: Stage,
    pub uid: String,
    pub ip: String,
    pub node: String,
    pub lease: Option<String>,
    /// Answered before anybody asked for it.
    pub warm: bool,
}

/// A lease that was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub entry: LedgerEntry,
    pub ip: String,
    pub node: String,
    /// Durable and bound: the holder may hear of it.
    pub promised: bool,
    pub used_at: i64,
}

/// Somebody in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    pub request: LeaseRequest,
    pub deadline: i64,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Create {
        name: String,
        image: String,
    },
    Delete {
        name: String,
    },
    /// Commit to the ledger, bind, then [`Index::promise`].
    Promise {
        lease: String,
    },
    /// Take out of the ledger.
    Forget {
        lease: String,
    },
    /// Tell the waiters of this lease that it will not be.
    Refuse {
        lease: String,
        error: ErrorBody,
    },
}

/// Bounds of the pool.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub max: usize,
    /// Sandboxes that agents leave for graders.
    pub reserved: usize,
    pub warm_max: usize,
    pub max_ttl_millis: i64,
    pub idle_millis: i64,
}

/// The pool.
pub struct Index {
    bounds: Bounds,
    pub sandboxes: BTreeMap<String, Sandbox>,
    pub leases: HashMap<String, Held>,
    pub queue: VecDeque<Waiter>,
    lost: HashMap<String, SandboxCause>,
    lost_order: VecDeque<String>,
    demand: BTreeMap<String, Vec<(String, usize)>>,
    bad_images: HashMap<String, (i64, String)>,
    last_epoch: u64,
    pub warm_hits: u64,
    pub cold_leases: u64,
    pub voided: u64,
}

impl Index {
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            sandboxes: BTreeMap::new(),
            leases: HashMap::new(),
            queue: VecDeque::new(),
            lost: HashMap::new(),
            lost_order: VecDeque::new(),
            demand: BTreeMap::new(),
            bad_images: HashMap::new(),
            last_epoch: 0,
            warm_hits: 0,
            cold_leases: 0,
            voided: 0,
        }
    }

    /// Takes up a lease that the ledger holds and whose pod still lives. What comes from the ledger was promised.
    pub fn restore(&mut self, entry: LedgerEntry, ip: String, node: String, now: i64) {
        self.last_epoch = self.last_epoch.max(entry.epoch);
        let sandbox = Sandbox {
            image: entry.image.clone(),
            stage: Stage::Ready,
            uid: entry.pod_uid.clone(),
            ip: ip.clone(),
            node: node.clone(),
            lease: Some(entry.lease.clone()),
            warm: false,
        };
        self.sandboxes.insert(entry.sandbox.clone(), sandbox);
        self.leases.insert(
            entry.lease.clone(),
            Held {
                entry,
                ip,
                node,
                promised: true,
                used_at: now,
            },
        );
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

    /// Puts somebody in the queue. The same id waits once.
    pub fn wait(&mut self, request: LeaseRequest, now: i64) -> Result<(), ErrorBody> {
        if let Some((until, message)) = self.bad_images.get(&request.image).filter(|(until, _)| *until > now) {
            let _ = until;
            return Err(image_unavailable(&request.image, message));
        }
        if self.queue.iter().any(|waiter| waiter.request.id == request.id) || self.leases.contains_key(&request.id) {
            return Ok(());
        }
        if self.queue.len() >= MAX_WAITING {
            let message =
                format!("{MAX_WAITING} leases are waiting already; raise the pool's max or ask for fewer at a time");
            return Err(ErrorBody::new(ErrorCode::QueueDeadline, Fault::Infrastructure, message));
        }
        let deadline = now + (request.wait_seconds as i64).saturating_mul(1000);
        self.queue.push_back(Waiter { request, deadline });
        Ok(())
    }

    /// Place in the queue, from 1, and its length.
    pub fn place(&self, lease: &str) -> (usize, usize) {
        let place = self
            .queue
            .iter()
            .position(|waiter| waiter.request.id == lease)
            .map_or(0, |at| at + 1);
        (place, self.queue.len())
    }

    pub fn give_up(&mut self, lease: &str) {
        self.queue.retain(|waiter| waiter.request.id != lease);
    }

    /// Sandboxes that a run wants warm; replaces what it wanted.
    pub fn want(&mut self, run: &str, images: Vec<(String, usize)>) {
        match images.is_empty() {
            true => drop(self.demand.remove(run)),
            false => drop(self.demand.insert(run.to_owned(), images)),
        }
    }

    /// A pod was seen, started or not.
    pub fn seen(&mut self, name: &str, image: &str, uid: &str, ip: &str, node: &str) {
        let sandbox = self.sandboxes.entry(name.to_owned()).or_insert_with(|| Sandbox {
            image: image.to_owned(),
            stage: Stage::Starting,
            uid: String::new(),
            ip: String::new(),
            node: String::new(),
            lease: None,
            warm: false,
        });
        (sandbox.uid, sandbox.ip, sandbox.node) = (uid.to_owned(), ip.to_owned(), node.to_owned());
    }

    /// sandboxd answers. Answers false for a pod that is not (any more) the pool's.
    pub fn ready(&mut self, name: &str) {
        let asked = |image: &str, queue: &VecDeque<Waiter>| queue.iter().any(|waiter| waiter.request.image == image);
        if let Some(sandbox) = self.sandboxes.get_mut(name) {
            if sandbox.stage == Stage::Starting {
                sandbox.warm = !asked(&sandbox.image, &self.queue);
            }
            sandbox.stage = Stage::Ready;
        }
    }

    /// A pod is gone, or of no use any more; a lease on it is lost.
    pub fn gone(&mut self, name: &str, cause: SandboxCause) -> Vec<Action> {
        let Some(sandbox) = self.sandboxes.remove(name) else {
            return Vec::new();
        };
        let Some(lease) = sandbox.lease else { return Vec::new() };
        let promised = self.leases.remove(&lease).is_some_and(|held| held.promised);
        self.remember(&lease, cause);
        if promised && cause.fault() == Fault::Infrastructure {
            self.voided += 1;
        }
        let mut actions = vec![Action::Forget { lease: lease.clone() }];
        if !promised {
            // Nobody has heard of it yet: the caller asks again with the same id and gets another sandbox.
            self.lost.remove(&lease);
            let message = "the sandbox went away before it could be leased; ask again".to_owned();
            actions.push(Action::Refuse {
                lease,
                error: ErrorBody::new(ErrorCode::Unavailable, Fault::Infrastructure, message),
            });
        }
        actions
    }

    /// An image cannot be pulled: its waiters hear so, and it is left alone for a while.
    pub fn bad_image(&mut self, image: &str, message: &str, now: i64) -> Vec<Action> {
        self.bad_images.retain(|_, (until, _)| *until > now);
        self.bad_images
            .insert(image.to_owned(), (now + IMAGE_BACKOFF, message.to_owned()));
        let (bad, rest): (VecDeque<_>, VecDeque<_>) =
            self.queue.drain(..).partition(|waiter| waiter.request.image == image);
        self.queue = rest;
        bad.into_iter()
            .map(|waiter| Action::Refuse {
                lease: waiter.request.id,
                error: image_unavailable(image, message),
            })
            .collect()
    }

    /// The lease is durable and bound.
    pub fn promise(&mut self, lease: &str) {
        if let Some(held) = self.leases.get_mut(lease) {
            held.promised = true;
        }
    }

    /// Gives a sandbox back: its pod is deleted, never reused.
    pub fn release(&mut self, lease: &str) -> Vec<Action> {
        self.give_up(lease);
        let Some(held) = self.leases.remove(lease) else {
            return Vec::new();
        };
        self.sandboxes.remove(&held.entry.sandbox);
        vec![
            Action::Forget {
                lease: lease.to_owned(),
            },
            Action::Delete {
                name: held.entry.sandbox,
            },
        ]
    }

    /// Extends a lease; answers the new end.
    pub fn renew(&mut self, lease: &str, ttl_millis: i64, now: i64) -> Option<i64> {
        let held = self.leases.get_mut(lease)?;
        held.entry.expires_at = now + ttl_millis.clamp(1_000, self.bounds.max_ttl_millis);
        held.used_at = now;
        Some(held.entry.expires_at)
    }

    pub fn used(&mut self, lease: &str, now: i64) {
        if let Some(held) = self.leases.get_mut(lease) {
            held.used_at = held.used_at.max(now);
        }
    }

    /// Everything that follows from the state at this moment. `name` makes names for new pods.
    pub fn plan(&mut self, now: i64, mut name: impl FnMut() -> String) -> Vec<Action> {
        let mut actions = self.expire(now);
        actions.extend(self.assign(now));
        actions.extend(self.grow(now, &mut name));
        actions
    }

    fn expire(&mut self, now: i64) -> Vec<Action> {
        let idle = self.bounds.idle_millis;
        let over: Vec<String> = self
            .leases
            .iter()
            .filter(|(_, held)| held.promised && (held.entry.expires_at <= now || held.used_at + idle <= now))
            .map(|(lease, _)| lease.clone())
            .collect();
        let mut actions = Vec::new();
        for lease in over {
            self.remember(&lease, SandboxCause::Expired);
            actions.extend(self.release(&lease));
        }
        self.queue.retain(|waiter| waiter.deadline > now);
        actions
    }

    fn assign(&mut self, now: i64) -> Vec<Action> {
        let mut actions = Vec::new();
        let mut order: Vec<usize> = (0..self.queue.len()).collect();
        // Graders first: their episodes are finished but for the verdict.
        order.sort_by_key(|&at| (self.queue[at].request.priority != Priority::Grader, at));
        let mut served = Vec::new();
        for at in order {
            let request = self.queue[at].request.clone();
            if request.priority == Priority::Agent && self.agents() >= self.bounds.max - self.bounds.reserved {
                continue;
            }
            let free = self
                .sandboxes
                .iter_mut()
                .find(|(_, s)| s.stage == Stage::Ready && s.lease.is_none() && s.image == request.image);
            let Some((name, sandbox)) = free else { continue };
            sandbox.lease = Some(request.id.clone());
            match sandbox.warm {
                true => self.warm_hits += 1,
                false => self.cold_leases += 1,
            }
            self.last_epoch = (self.last_epoch + 1).max(now.unsigned_abs());
            let ttl = (request.ttl_seconds as i64)
                .saturating_mul(1000)
                .clamp(1_000, self.bounds.max_ttl_millis);
            let entry = LedgerEntry {
                lease: request.id.clone(),
                run: request.run,
                sandbox: name.clone(),
                pod_uid: sandbox.uid.clone(),
                image: request.image,
                epoch: self.last_epoch,
                expires_at: now + ttl,
                priority: request.priority,
            };
            let held = Held {
                entry,
                ip: sandbox.ip.clone(),
                node: sandbox.node.clone(),
                promised: false,
                used_at: now,
            };
            self.lost.remove(&request.id);
            self.leases.insert(request.id.clone(), held);
            served.push(at);
            actions.push(Action::Promise { lease: request.id });
        }
        served.sort_unstable();
        for at in served.into_iter().rev() {
            self.queue.remove(at);
        }
        actions
    }

    fn agents(&self) -> usize {
        self.leases
            .values()
            .filter(|held| held.entry.priority == Priority::Agent)
            .count()
    }

    /// Orders pods for who waits, then for who will.
    fn grow(&mut self, now: i64, name: &mut impl FnMut() -> String) -> Vec<Action> {
        let mut actions = Vec::new();
        let mut agents_left = (self.bounds.max - self.bounds.reserved).saturating_sub(self.agents());
        let mut wanted: Vec<(String, usize)> = Vec::new();
        for waiter in &self.queue {
            if waiter.request.priority == Priority::Agent {
                if agents_left == 0 {
                    continue;
                }
                agents_left -= 1;
            }
            add(&mut wanted, &waiter.request.image, 1);
        }
        let asked = wanted.clone();
        let mut room_for_warm = self.bounds.warm_max;
        for (image, count) in self.demand.values().flatten() {
            let count = (*count).min(room_for_warm);
            room_for_warm -= count;
            add(&mut wanted, image, count);
        }
        let mut free: HashMap<String, usize> = HashMap::new();
        for sandbox in self.sandboxes.values().filter(|s| s.lease.is_none()) {
            *free.entry(sandbox.image.clone()).or_default() += 1;
        }
        for (image, count) in wanted {
            if self.bad_images.get(&image).is_some_and(|(until, _)| *until > now) {
                continue;
            }
            let have = free.get(&image).copied().unwrap_or(0);
            let asked_for = asked.iter().find(|(other, _)| *other == image).map_or(0, |(_, n)| *n);
            for nth in have..count {
                if self.sandboxes.len() >= self.bounds.max {
                    // Warm pods make room for those who wait now.
                    let Some(victim) = (nth < asked_for).then(|| self.surplus(&asked, &free)).flatten() else {
                        break;
                    };
                    if let Some(gone) = self.sandboxes.remove(&victim) {
                        free.entry(gone.image).and_modify(|n| *n -= 1);
                    }
                    actions.push(Action::Delete { name: victim });
                }
                let name = name();
                let sandbox = Sandbox {
                    image: image.clone(),
                    stage: Stage::Starting,
                    uid: String::new(),
                    ip: String::new(),
                    node: String::new(),
                    lease: None,
                    warm: false,
                };
                self.sandboxes.insert(name.clone(), sandbox);
                *free.entry(image.clone()).or_default() += 1;
                actions.push(Action::Create {
                    name,
                    image: image.clone(),
                });
            }
        }
        actions
    }

    /// An unleased pod beyond what those who wait need of its image.
    fn surplus(&self, asked: &[(String, usize)], free: &HashMap<String, usize>) -> Option<String> {
        let needed = |image: &str| asked.iter().find(|(other, _)| other == image).map_or(0, |(_, n)| *n);
        self.sandboxes
            .iter()
            .filter(|(_, s)| s.lease.is_none() && free.get(&s.image).copied().unwrap_or(0) > needed(&s.image))
            .map(|(name, _)| name.clone())
            .next()
    }

    /// When [`Index::plan`] must be asked again though nothing happens.
    pub fn next_deadline(&self) -> Option<i64> {
        let leases = self
            .leases
            .values()
            .filter(|held| held.promised)
            .map(|held| held.entry.expires_at.min(held.used_at + self.bounds.idle_millis));
        leases.chain(self.queue.iter().map(|waiter| waiter.deadline)).min()
    }

    pub fn state(&self) -> PoolState {
        let count = |f: fn(&Sandbox) -> bool| self.sandboxes.values().filter(|s| f(s)).count() as u32;
        PoolState {
            ready: count(|s| s.stage == Stage::Ready && s.lease.is_none()),
            leased: self.leases.len() as u32,
            pending: count(|s| s.stage == Stage::Starting),
            max: self.bounds.max as u32,
            warm_hits: self.warm_hits,
            cold_leases: self.cold_leases,
            voided: self.voided,
        }
    }
}

fn add(wanted: &mut Vec<(String, usize)>, image: &str, count: usize) {
    match wanted.iter_mut().find(|(other, _)| other == image) {
        Some((_, n)) => *n += count,
        None => wanted.push((image.to_owned(), count)),
    }
}

fn image_unavailable(image: &str, message: &str) -> ErrorBody {
    let text =
        format!("image {image} cannot be pulled: {message}; correct the task's image or the pool's imageRewrites");
    ErrorBody::new(ErrorCode::ImageUnavailable, Fault::Infrastructure, text)
}

#[cfg(test)]
mod tests;
