//! The pool's state in memory: pods, leases, waiters, demand. Events go in, actions come out; there is no I/O.
//!
//! A pod counts from the decision to create it until it is seen to be gone or its creation is seen to fail, so late,
//! doubled or reordered watch events never make the pool create too many. A leased sandbox is never leased again: its
//! release ends the pod. If the pool resets ([`Index::resets`]), the release ends the container, and the next lease
//! gets another container with its own root file system.
//!
//! No caller waits for the removal of a pod. A pod to be removed counts towards the pool's `max` only until the API
//! server accepts the order to delete it, which takes a moment. The order is repeated until the pod is seen to be gone.
//! Only when many removals hang ([`Bounds::allowance`]) do they block the creation of new pods.
//!
//! A fair queue serves the waiters ([`fair_queue`]): graders first, then the run with the fewest leases.

mod fair_queue;
mod leases;
mod model;
mod node_refusals;
mod plan;
mod pods;
mod pulls;
mod queue;
mod scale_up;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use grpo_sandbox_protocol::{ImageTrouble, LedgerEntry, PoolState, SandboxCause, StuckPod};

use node_refusals::NodeRefusals;
use pulls::Pulls;

pub use model::{Action, ActiveLease, Bounds, Created, Ending, Found, Sandbox, Stage, Waiter, Wanted, WithoutAddress};

/// Run name for the pool's own demand; no run has this name.
const POOL_ITSELF: &str = "";
/// Ended leases with a remembered cause, so that a holder learns it.
const REMEMBERED: usize = 4096;
/// Runs with a warm demand. An account of no run, such as the pool's client account, may name any run.
pub const MAX_DEMANDS: usize = 1024;
/// Pause before a deletion is ordered again for the first time, milliseconds; it doubles.
const DELETE_AGAIN: i64 = 1_000;

/// The pool.
pub struct Index {
    bounds: Bounds,
    /// Whether a released sandbox is used again, with a restarted container.
    pub resets: bool,
    pub sandboxes: BTreeMap<String, Sandbox>,
    pub ending: BTreeMap<String, Ending>,
    pub leases: HashMap<String, ActiveLease>,
    pub queue: VecDeque<Waiter>,
    lost: HashMap<String, SandboxCause>,
    lost_order: VecDeque<String>,
    demand: BTreeMap<String, Wanted>,
    /// Images with more unleased pods than are wanted, and since when.
    surplus_since: HashMap<String, i64>,
    pulls: Pulls,
    node_refusals: NodeRefusals,
    /// Number of lists of pods that have begun.
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
            node_refusals: NodeRefusals::default(),
            lists: 0,
            last_epoch: 0,
            warm_hits: 0,
            cold_leases: 0,
            voided: 0,
        }
    }

    /// Takes over a lease of the ledger whose pod still lives. The ledger has only granted leases.
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
            is_graders: found.is_graders,
            // The cluster may not have shown the last restart yet.
            restarts: found.restarts.max(entry.restarts),
            ..Sandbox::ordered(&entry.image, found.slot)
        };
        self.sandboxes.insert(entry.sandbox.clone(), sandbox);
        let held = ActiveLease::restored(entry, found, now);
        self.leases.insert(held.entry.lease.clone(), held);
    }

    /// Takes over a pod of an earlier gateway without a lease. If it was leased after all, its sandboxd refuses another
    /// lease, and the pod is deleted.
    pub fn adopt(&mut self, name: &str, image: &str, slot: Option<u32>, restarts: u32, now: i64) {
        let sandbox = Sandbox {
            created: Some(self.created_now(now)),
            unanswered: false,
            restarts,
            ..Sandbox::ordered(image, slot)
        };
        self.sandboxes.insert(name.to_owned(), sandbox);
    }

    /// Records why a lease ended.
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

    /// Notes a sign of life from a run, so that its warm demand stays valid.
    fn heard(&mut self, run: &str, now: i64) {
        if let Some(wanted) = self.demand.get_mut(run) {
            wanted.heard = wanted.heard.max(now);
        }
    }

    fn has_ready(&self, image: &str) -> bool {
        let mut sandboxes = self.sandboxes.values();
        sandboxes.any(|s| s.stage == Stage::Ready && s.lease.is_none() && s.image == image)
    }

    /// Whether a demand of this run can be remembered.
    pub fn may_want(&self, run: &str) -> bool {
        self.demand.len() < MAX_DEMANDS || self.demand.contains_key(run)
    }

    /// Sets the sandboxes that a run wants warm.
    pub fn want(&mut self, run: &str, images: Vec<(String, usize)>, now: i64) {
        let images: Vec<(Arc<str>, usize)> = images.into_iter().map(|(image, count)| (image.into(), count)).collect();
        match images.is_empty() {
            true => drop(self.demand.remove(run)),
            false => drop(self.demand.insert(run.to_owned(), Wanted { images, heard: now })),
        }
    }

    /// Sets the sandboxes that the pool itself keeps warm, independent of the demand of runs.
    pub fn keep(&mut self, images: Vec<(String, usize)>) {
        self.want(POOL_ITSELF, images, i64::MAX);
    }

    fn created_now(&self, at: i64) -> Created {
        Created { at, lists: self.lists }
    }

    /// Images that are not tried now because a pull failed.
    pub fn troubles(&self, now: i64) -> Vec<ImageTrouble> {
        self.pulls.troubles(now)
    }

    /// Nodes that refuse pods again and again, each with the last pod that it refused.
    pub fn refusing_nodes(&self, now: i64) -> Vec<StuckPod> {
        self.node_refusals.lasting(now)
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
            warm_ahead: None,
            package_index: None,
        }
    }

    /// The run that has a lease with this id, or waits for it.
    pub fn run_of(&self, lease: &str) -> Option<&str> {
        let held = self.leases.get(lease).map(|held| held.entry.run.as_str());
        let mut waiting = self.queue.iter().filter(|waiter| waiter.request.id == lease);
        held.or_else(|| waiting.next().map(|waiter| waiter.request.run.as_str()))
    }
}

#[cfg(test)]
mod tests;
