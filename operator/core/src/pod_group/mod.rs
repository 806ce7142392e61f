//! Pod groups: pods that start and end together. A driver is a group of one pod, a trainer a group of `nodes` pods, and
//! a pool has one group for each engine replica.
//!
//! Pure. Input: the wanted groups, the record of earlier attempts, and the pods. Output: pods to create and delete, and
//! the new record. One failed, deleted or lost pod ends its group's attempt: its pods are deleted without waiting for
//! their end, and the next attempt, whose pods have other names, begins at once; from the second failure in a row after
//! a growing back-off. Pulling images has no deadline. Failures count only until new work is finished, or until all
//! groups serve. A removal by the cluster, or a kubelet's refusal to start a pod, is no failure; if it repeats before
//! pods have started, it has a back-off too. Later attempts avoid nodes on which a rank hung or a pod was refused, if
//! they can, until new work is finished.
//!
//! Pods with devices of their own need no order: a new pod waits for its devices. Attempts whose pods name the same
//! devices would use them together, so the next one begins when no pod of the last one can use them.
//!
//! A group that serves is removed in order: its first pod finishes its requests, for which the others compute; they are
//! deleted when it is gone.
//!
//! [`UpdatePolicy`] decides how groups follow a change of their template.

mod advance;
mod attempts;
mod ending;
mod group;
mod rolling;
mod unit;

pub use advance::advance;
pub use group::{GroupState, GroupUpdate, PodGroups, UpdatePolicy};
pub use unit::{counts, devices_in_use, may_use_devices, unbound, until_lost};
