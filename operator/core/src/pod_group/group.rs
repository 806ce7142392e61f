//! Pod groups: the desired state, the observed state, and the resulting changes.

use std::time::Duration;

use grpo_crds::AttemptStatus;

use crate::{
    names::PodKey,
    pods::{Failure, PodFacts},
};

/// The desired groups.
#[derive(Clone, Debug)]
pub struct PodGroups {
    /// Number of groups.
    pub groups: u32,
    /// Pods in each group.
    pub size: u32,
    pub update: UpdatePolicy,
    /// Number of failures in a row that ends the run; `None`: failures never end it.
    pub limit: Option<u32>,
    /// The exit code of a pod for a terminal fault: another attempt cannot help.
    pub fault_code: Option<i32>,
    /// The exit codes with which ranks report a hung or lost peer apply.
    pub ranks_report_peers: bool,
    /// A mark of the finished work, which changes with progress; `None`: failures are forgotten once all groups serve.
    pub mark: Option<String>,
    /// Deadline for running pods to become ready; `None`: a running pod counts as ready.
    pub start: Option<Duration>,
    /// Pods of all attempts use the same devices, by the name of their claims. Kubernetes lets them do so at the same
    /// time, so a new attempt waits until the pods of earlier ones have ended.
    pub same_devices: bool,
}

/// How groups follow a change of the template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpdatePolicy {
    /// All groups share one attempt, until all their pods have succeeded: if one group ends, all end. Changes wait for
    /// the next attempt.
    Recreate,
    /// Each group has its own attempts and serves without end. Outdated groups are replaced a few at a time.
    Rolling {
        /// The current template.
        template: String,
        max_surge: u32,
        max_unavailable: u32,
    },
}

/// The observed state of the groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupState {
    /// Pods are created, scheduled or started.
    Starting { message: String },
    /// All pods run, or some have already succeeded.
    Running,
    /// The next attempt waits for its back-off, or for the devices of an earlier one.
    Pausing { message: String },
    /// All pods succeeded.
    Succeeded,
    /// A pod reported a terminal fault.
    Fault(Failure),
    /// Too many failures in a row.
    Exhausted { message: String },
}

/// The changes to make, and the new status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupUpdate {
    pub status: AttemptStatus,
    /// Pods to create.
    pub create: Vec<PodKey>,
    /// Names of pods to delete.
    pub delete: Vec<String>,
    pub state: GroupState,
    /// Reconcile again after this time.
    pub retry_in: Option<Duration>,
    /// An attempt that has just ended: its number, and the cause.
    pub ended: Option<(u32, String)>,
    /// Number of groups with an earlier template.
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

/// Ranks without a pod, in a group of this size.
pub(super) fn missing(size: u32, live: &[&PodFacts]) -> Vec<u32> {
    (0..size)
        .filter(|rank| !live.iter().any(|pod| pod.rank == *rank))
        .collect()
}
