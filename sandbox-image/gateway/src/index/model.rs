//! What the pool is made of.

use grpo_sandbox_protocol::{ErrorBody, LeaseRequest, LedgerEntry, SandboxCause};

/// How far a pod is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Ordered, or not answering yet.
    Starting,
    /// sandboxd answers.
    Ready,
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
    /// Pods of one slot never share a node.
    pub slot: Option<u32>,
    /// `None` while the order is under way.
    pub created: Option<Created>,
    /// When an image of it could first not be pulled.
    pub pull_failed_at: Option<i64>,
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
            slot,
            created: None,
            pull_failed_at: None,
        }
    }
}

/// A pod that is to go, until it is seen to be gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    pub slot: Option<u32>,
    pub created: Option<Created>,
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
}

/// A lease that was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub entry: LedgerEntry,
    pub ip: String,
    pub node: String,
    /// Durable and bound: the holder may hear of it.
    pub promised: bool,
    /// Served from a pod that was ready before it was asked for.
    pub warm: bool,
    pub asked_at: i64,
    /// Last use by its holder. A renewal is none: whoever only renews has forgotten the sandbox, and it is taken back.
    pub used_at: i64,
    /// Commands that run now. While there is one the lease is in use.
    pub running: u32,
}

/// Somebody in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    pub request: LeaseRequest,
    pub since: i64,
    pub deadline: i64,
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
    /// Commit to the ledger, bind, then [`Index::promise`].
    Promise {
        lease: String,
    },
    /// Take out of the ledger. With a cause if the holder has lost it.
    Forget {
        lease: String,
        cause: Option<SandboxCause>,
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
