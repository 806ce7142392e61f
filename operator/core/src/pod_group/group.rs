//! Groups as they are wanted, how they are, and what is to be done about them.

use std::time::Duration;

use grpo_crds::AttemptStatus;

use crate::{
    names::PodKey,
    pods::{Failure, PodFacts},
};

/// What is wanted.
#[derive(Clone, Debug)]
pub struct PodGroups {
    /// Number of groups.
    pub groups: u32,
    /// Pods of each.
    pub size: u32,
    pub update: UpdatePolicy,
    /// So many failures in a row end the run; none: failures end nothing.
    pub limit: Option<u32>,
    /// The exit code by which a pod says that another attempt is of no use.
    pub fault_code: Option<i32>,
    /// Exit codes by which ranks say that another one hangs or is lost have their meaning.
    pub ranks_report_peers: bool,
    /// What is finished now, in any form that changes when more is; none: failures are forgotten once all groups serve.
    pub mark: Option<String>,
    /// Pods that all run have to be ready by then; none where they are as soon as they run.
    pub start: Option<Duration>,
}

/// How groups follow a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpdatePolicy {
    /// All groups have one attempt, until all their pods have succeeded: what ends one group ends them all. Changes
    /// wait for the next attempt.
    Recreate,
    /// Each group has attempts of its own and serves without end. Groups made from an earlier template are replaced a
    /// few at a time.
    Rolling {
        /// What groups are to be made from.
        template: String,
        max_surge: u32,
        max_unavailable: u32,
    },
}

/// How the groups are.
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
    /// Pods to make.
    pub create: Vec<PodKey>,
    /// Names of pods to be deleted.
    pub delete: Vec<String>,
    pub state: GroupState,
    /// Look again then.
    pub retry_in: Option<Duration>,
    /// An attempt that has just ended: which, and how.
    pub ended: Option<(u32, String)>,
    /// Groups made from an earlier template.
    pub outdated: u32,
}

impl GroupUpdate {
    pub fn nothing(status: AttemptStatus, delete: Vec<String>, state: GroupState) -> Self {
        Self {
            status,
            create: Vec::new(),
            delete,
            state,
            retry_in: None,
            ended: None,
            outdated: 0,
        }
    }
}

/// Ranks of a group of so many that have no pod.
pub(super) fn missing(size: u32, live: &[&PodFacts]) -> Vec<u32> {
    (0..size)
        .filter(|rank| !live.iter().any(|pod| pod.rank == *rank))
        .collect()
}
