//! The data types of the pool.

use std::sync::Arc;

use grpo_sandbox_protocol::{ErrorBody, LeaseRequest, LedgerEntry, SandboxCause};

/// The stage of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Ordered, or not answering yet.
    Starting,
    /// sandboxd answers.
    Ready,
    /// Released under this epoch. sandboxd is told to end, so that its container restarts.
    Resetting { epoch: u64 },
}

/// When the pod was known to exist at the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Created {
    pub at: i64,
    /// Number of lists that had begun by then; the next one must show the pod.
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
    /// It answered before any request for it.
    pub warm: bool,
    /// It has, or may have, the label for the package index: it is never leased again.
    pub is_graders: bool,
    /// Pods of one slot never share a node.
    pub slot: Option<u32>,
    /// `None` until the pod is known to exist at the API server.
    pub created: Option<Created>,
    /// The API server has not answered the creation yet, so it may still carry it out, even once more.
    pub unanswered: bool,
    /// The uid from the API server's answer.
    pub made: String,
    /// When a pull of one of its images first failed.
    pub pull_failed_at: Option<i64>,
    /// Since when it has a node.
    pub on_node_since: Option<i64>,
    /// Its node refused to run it. Until then no other pod takes its place.
    pub refused_until: Option<i64>,
    /// Number of restarts that were ordered. A higher number in the cluster is an unordered restart.
    pub restarts: u32,
    /// Deadline for its answer after a reset.
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
            refused_until: None,
            restarts: 0,
            restart_deadline: None,
        }
    }
}

/// An existing pod without an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WithoutAddress {
    pub name: String,
    pub uid: String,
    /// Empty while the pod has no node.
    pub node: String,
    /// Since when it has its node, or exists.
    pub since: i64,
}

/// A pod to be removed, until it is seen to be gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    pub slot: Option<u32>,
    pub created: Option<Created>,
    /// Its creation is not answered yet. It is deleted after the answer, because the pod might otherwise appear after
    /// its deletion.
    pub unanswered: bool,
    /// The uid from the answer to its creation.
    pub made: String,
    /// The API server has accepted the order to delete it. Until then the pod counts as before.
    pub accepted: bool,
    /// Number of delete orders.
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
    /// It has the label for the package index.
    pub is_graders: bool,
}

/// A decided lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveLease {
    pub entry: LedgerEntry,
    pub ip: String,
    pub node: String,
    /// Durable and bound, so the holder may learn of it.
    pub granted: bool,
    /// Served from a pod that was ready before the request.
    pub warm: bool,
    /// It had to wait for room, or for the turn of its run or its priority.
    pub queued: bool,
    pub asked_at: i64,
    /// Deadline of its callers for the grant.
    pub deadline: i64,
    /// Last use by its holder. A renewal does not count: the pool takes back a sandbox that its holder only renews.
    pub used_at: i64,
    /// Calls in progress. While there is one, the lease is in use.
    pub running: u32,
    /// A question to sandboxd about background work is in progress.
    pub asked: bool,
}

impl ActiveLease {
    /// A lease from the ledger. It was granted.
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

    /// Its original request, with the fields that another try needs.
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

/// A waiter in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    pub request: LeaseRequest,
    pub since: i64,
    pub deadline: i64,
    /// There was no room when it arrived.
    pub queued: bool,
    /// Its callers have gone away: it is not served, and its place is kept only for a moment.
    pub is_abandoned: bool,
}

/// The warm demand of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub images: Vec<(Arc<str>, usize)>,
    /// The run's last sign of life.
    pub heard: i64,
}

/// An action for [`crate::core`] to carry out.
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
    /// Tell sandboxd to end under this lease, then [`Index::restarting`]; if it does not answer, [`Index::discard`].
    Reset {
        name: String,
        ip: String,
        lease: String,
        epoch: u64,
    },
    /// Commit to the ledger, bind, then [`Index::grant`] or [`Index::reject`].
    Grant {
        lease: String,
    },
    /// Remove from the ledger. With a cause if the holder has lost it.
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
    /// Tell the waiters of this lease that they will not get it.
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
    /// Maximum sandboxes per node, if that is bounded.
    pub per_node: Option<u32>,
    pub max_ttl_millis: i64,
    pub idle_millis: i64,
}

impl Bounds {
    /// Maximum pods in removal beyond `max`.
    pub fn allowance(&self) -> usize {
        (self.max / 2).max(4)
    }
}
