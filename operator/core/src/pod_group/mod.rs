//! Pod groups: pods that live and die together. A driver is a group of one, a trainer one of `nodes`, and an engine has
//! as many groups as replicas.
//!
//! Pure: what is wanted, what is known of earlier attempts and what pods there are, in; pods to make and delete and
//! what is known from now on, out. One failed, deleted or lost pod ends its group's attempt: its pods are deleted
//! without waiting for them to go, and the next attempt, whose pods have other names, begins at once, after a growing
//! pause from the second failure in a row. Images are waited for however long they take. Failures count only until
//! something more is finished, or until all groups serve. What the cluster took away is no failure; where it repeats
//! before pods have started, it has a pause too. Later attempts avoid nodes on which a rank hung, where they can, until
//! something more is finished.
//!
//! [`UpdatePolicy`] says how groups follow a change of what they are made from.

mod advance;
mod attempts;
mod ending;
mod group;
mod rolling;
mod unit;

pub use advance::advance;
pub use group::{GroupState, GroupUpdate, PodGroups, UpdatePolicy};
pub use unit::{counts, unbound};
