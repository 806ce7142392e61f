//! What the pool is made of.

use std::sync::Arc;

use grpo_sandbox_protocol::{ErrorBody, LeaseRequest, LedgerEntry, SandboxCause};

/// How far a pod is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Ordered, or not answering yet.
    Starting,
    /// sandboxd answers.
    Ready,
    /// Given back under this epoch; sandboxd is told to end, so that its container restarts.
    Resetting { epoch: u64 },
}

/// When the API server was known to have a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Created {
    pub at: i64,
    /// Lists begun by then; the next one must show the pod.
    pub lists: u64,
}

/// A sandbox pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    pub image: String,
    pub stage: Stage,
    /// Empty until the watch has shown the pod.
    pub uid: String,
    pub ip: String,
    pub node: String,
    pub lease: Option<String>,
    /// Answered before anybody asked for it.
    pub warm: bool,
    /// It has, or may have, the label with which it reaches the package index: it is never leased again.
    pub is_graders: bool,
    /// Pods of one slot never share a node.
    pub slot: Option<u32>,
    /// `None` while nothing shows that the API server has it.
    pub created: Option<Created>,
    /// The API server has not answered the order yet, so it may still carry it out, again even.
    pub unanswered: bool,
    /// Its uid as the answer says.
    pub made: String,
    /// When an image of it could first not be pulled.
    pub pull_failed_at: Option<i64>,
    /// Since when it has a node.
    pub on_node_since: Option<i64>,
    /// How often its container was told to restart, and did or will: a later one is not the one that is meant.
    pub restarts: u32,
    /// Until when it must answer again after a reset.
    pub restart_deadline: Option<i64>,
}

impl Sandbox {
    pub fn ordered(image: &str, slot: Option<u32>) -> Self {
        Self {
            image: image.to_owned(),
            stage: Stage::Starting,
            uid: String::new(),
            ip: String::new(),
            node: String::new(),
            lease: None,
            warm: false,
            is_graders: false,
            slot,
            created: None,
            unanswered: true,
            made: String::new(),
            pull_failed_at: None,
            on_node_since: None,
            restarts: 0,
            restart_deadline: None,
        }
    }
}

/// A pod that is there and has no address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WithoutAddress {
    pub name: String,
    pub uid: String,
    /// Empty while no node has been found for it.
    pub node: String,
    /// Since when it has its node, or is there.
    pub since: i64,
}

/// A pod that is to go, until it is seen to be gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    pub slot: Option<u32>,
    pub created: Option<Created>,
    /// Its creation is not answered yet; it is deleted when it is, or it might come to be after its deletion.
    pub unanswered: bool,
    /// Its uid as the answer to its creation says.
    pub made: String,
    /// The API server has taken the order to delete it. Until then the pod counts as before.
    pub accepted: bool,
    /// How often its deletion was ordered.
    pub orders: u32,
    pub again_at: i64,
}

/// A pod as the cluster shows it when a gateway begins.
#[derive(Clone, Debug, Default)]
pub struct Found {
    pub ip: String,
    pub node: String,
    pub slot: Option<u32>,
    /// How often its container has restarted.
    pub restarts: u32,
    /// It has the label with which it reaches the package index.
    pub is_graders: bool,
}

/// A lease that was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveLease {
    pub entry: LedgerEntry,
    pub ip: String,
    pub node: String,
    /// Durable and bound: the holder may hear of it.
    pub granted: bool,
    /// Served from a pod that was ready before it was asked for.
    pub warm: bool,
    /// Had to wait for room, or for its run's or its kind's turn.
    pub queued: bool,
    pub asked_at: i64,
    /// Until when its callers wait for the grant.
    pub deadline: i64,
    /// Last use by its holder. A renewal does not count: the pool takes back a sandbox that its holder only renews.
    pub used_at: i64,
    /// Calls that are under way. While there is one the lease is in use.
    pub running: u32,
    /// sandboxd is being asked whether background work still runs.
    pub asked: bool,
}

impl ActiveLease {
    /// A lease that the ledger holds: it was granted.
    pub fn restored(entry: LedgerEntry, found: Found, now: i64) -> Self {
        Self {
            ip: found.ip,
            node: found.node,
            granted: true,
            warm: false,
            queued: false,
            asked_at: now,
            deadline: now,
            used_at: now,
            running: 0,
            asked: false,
            entry,
        }
    }

    /// The request that it came from, as far as it matters for another try.
    pub fn asked_again(self) -> Waiter {
        let request = LeaseRequest {
            id: self.entry.lease,
            run: self.entry.run,
            image: self.entry.image,
            ttl_seconds: self.entry.ttl_millis.unsigned_abs() / 1000,
            wait_seconds: (self.deadline - self.asked_at).max(0).unsigned_abs() / 1000,
            priority: self.entry.priority,
        };
        Waiter {
            request,
            since: self.asked_at,
            deadline: self.deadline,
            queued: self.queued,
            is_abandoned: false,
        }
    }
}

/// Somebody in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    pub request: LeaseRequest,
    pub since: i64,
    pub deadline: i64,
    /// When it came there was no room for it.
    pub queued: bool,
    /// Its callers have gone away: it is not served, and its place is kept for a moment only.
    pub is_abandoned: bool,
}

/// What a run wants warm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub images: Vec<(Arc<str>, usize)>,
    /// When the run was last heard of.
    pub heard: i64,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Create {
        name: String,
        image: String,
        slot: Option<u32>,
    },
    Delete {
        name: String,
    },
    /// Tell sandboxd to end under this lease, then [`Index::restarting`]; if it does not hear, [`Index::discard`].
    Reset {
        name: String,
        ip: String,
        lease: String,
        epoch: u64,
    },
    /// Commit to the ledger, bind, then [`Index::grant`], or [`Index::reject`].
    Grant {
        lease: String,
    },
    /// Take out of the ledger. With a cause if the holder has lost it.
    Forget {
        lease: String,
        epoch: u64,
        cause: Option<SandboxCause>,
    },
    /// Ask sandboxd whether background work still runs, then [`Index::told_whether_idle`].
    Ask {
        lease: String,
        epoch: u64,
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
    /// Maximum number of pod creations in progress at one time. The API server's answers set the pace, and callers that
    /// arrive meanwhile are next.
    pub orders: usize,
    /// Leases that may wait at one time.
    pub waiting: usize,
    /// Sandboxes that one node may have, if that is bounded.
    pub per_node: Option<u32>,
    pub max_ttl_millis: i64,
    pub idle_millis: i64,
}

impl Bounds {
    /// Pods on their way out that are put up with beyond `max`.
    pub fn allowance(&self) -> usize {
        (self.max / 2).max(4)
    }
}
