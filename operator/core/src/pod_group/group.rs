//! A group as it is wanted, how it is, and what is to be done about it.

use std::time::Duration;

use grpo_crds::grpo_run::AttemptStatus;

use crate::pods::{Failure, PodFacts};

/// What is wanted.
#[derive(Clone, Debug)]
pub struct Group {
    /// Number of pods.
    pub size: u32,
    /// So many failures in a row end the run.
    pub limit: u32,
    /// The exit code by which a pod says that another attempt is of no use.
    pub fault_code: Option<i32>,
    /// What is finished now, in any form that changes when more is.
    pub mark: String,
    /// Pods that all run have to be ready by then; none where they are as soon as they run.
    pub start: Option<Duration>,
}

/// How the group is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupState {
    /// Pods are being made, scheduled, started.
    Starting { message: String },
    /// All pods run, or some have ended well already.
    Running,
    /// The next attempt waits.
    Pausing { message: String },
    /// All pods ended well.
    Succeeded,
    /// A pod said that another attempt is of no use.
    Fault(Failure),
    /// Too many failures in a row.
    Exhausted { message: String },
}

/// What to do, and what is known from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupUpdate {
    pub status: AttemptStatus,
    /// Ranks of the current attempt whose pods are to be made.
    pub create: Vec<u32>,
    /// Names of pods to be deleted.
    pub delete: Vec<String>,
    pub state: GroupState,
    /// Look again then.
    pub retry_in: Option<Duration>,
    /// An attempt that has just ended: which, and how.
    pub ended: Option<(u32, String)>,
}

impl GroupUpdate {
    pub(super) fn nothing(status: AttemptStatus, delete: Vec<String>, state: GroupState) -> Self {
        Self {
            status,
            create: Vec::new(),
            delete,
            state,
            retry_in: None,
            ended: None,
        }
    }
}

/// Ranks that have no pod.
pub(super) fn missing(group: &Group, live: &[&PodFacts]) -> Vec<u32> {
    (0..group.size)
        .filter(|rank| !live.iter().any(|pod| pod.rank == *rank))
        .collect()
}
