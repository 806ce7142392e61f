//! Cost of a lease, speed of filling a pool, cost of a gateway's end, and speed of commands: figures of
//! `make bench-sandbox`.
//!
//! ```text
//! rig: control plane, KWOK, simulated sandboxds, the gateway's process
//!   ├► leases: leases/s, ledger writes   (figures 3 and 4)
//!   ├► refill: pods made a second        (figure 5)
//!   ├► chaos: killed, doubled, misled    (figure 6)
//!   └► restart: killed, and its memory   (figure 7)
//! rig with one sandboxd's process ─► exec: commands, beside swe-rex    (figure 2)
//! the real cluster, with the operator ─► warm: lease to first output   (figure 1)
//! ```
//!
//! The gateway is the real binary, with a service account's rights. KWOK simulates nodes and pods. This process answers
//! at the pods' addresses in place of sandboxd, and checks a bind as sandboxd does. The benchmark measures the gateway
//! and its peers in turn, on the same API server.

pub mod caller;
pub mod chaos;
mod disturbed;
pub mod exec;
pub mod leases;
mod played;
pub mod refill;
pub mod restart;
pub mod rig;
pub mod warm;

use std::time::Duration;

use crate::operator_bench::RigError;
use grpo_testing::cluster::ClusterError;
use grpo_testing::control_plane::{ControlPlaneError, PartError};

#[derive(Debug, thiserror::Error)]
pub enum SandboxBenchError {
    #[error(transparent)]
    Rig(#[from] RigError),
    #[error(transparent)]
    Plane(#[from] ControlPlaneError),
    #[error(transparent)]
    Part(#[from] PartError),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("there is no {name} beside this program; build it with `cargo build --bin {name}`")]
    NoProgram { name: String },
    #[error("{doing}: {what}")]
    Call { doing: String, what: String },
    #[error("failed to read or write a file of the bench: {0}")]
    File(#[from] std::io::Error),
    #[error("a task of the bench ended early: {0}")]
    Task(#[from] tokio::task::JoinError),
    #[error("{0}")]
    Wrong(String),
}

/// The middle value.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// The value that this percentage of the waits are below, in milliseconds.
pub fn percentile(waits: &mut [Duration], percent: f64) -> Option<f64> {
    waits.sort();
    let at = ((waits.len().checked_sub(1)?) as f64 * percent / 100.0).round() as usize;
    waits.get(at).map(|wait| wait.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests;
