//! The pod group: n pods that live and die together. A driver is one of size 1, a trainer one of size `nodes`.
//!
//! Pure: what is wanted, what is known of earlier attempts and what pods there are, in; pods to make and delete and
//! what is known from now on, out. One failed, deleted or lost pod ends the attempt: its pods are deleted without
//! waiting for them to go, and the next attempt, whose pods have other names, begins at once (after a growing pause
//! from the second failure in a row). Images are waited for however long they take. Failures count only until something
//! more is finished; what the cluster took away does not count at all. Nodes on which a rank hung are avoided until
//! something more is finished.

mod advance;
mod ending;
mod group;

pub use advance::advance;
pub use group::{Group, GroupState, GroupUpdate};
