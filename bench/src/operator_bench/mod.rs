//! Costs of the operator, its behavior in outages, and a check that it never places half a run: figures of
//! `make bench-operator`.
//!
//! ```text
//! rig (control plane + chart + operator) ─► fleet (runs, pods) ─► rest: memory, requests, latency      (figure 6)
//!                                                              ├► outages: API server, kills, two      (figure 7)
//!                                        scenarios (capacity) ─┴► capacity: whole runs or none         (figure 4)
//! ```
//!
//! The operator is the real binary with the rights of its chart. KWOK simulates nodes and pods, so that no process of a
//! run exists. The figures are about the operator, an API server, and their requests as the API server's audit log
//! shows them.

mod agents;
pub mod capacity;
pub mod fleet;
pub mod outages;
pub mod rest;
pub mod rig;

use std::{net::SocketAddr, time::Duration};

use grpo_testing::cluster::ClusterError;
use grpo_testing::control_plane::{ControlPlaneError, PartError};

#[derive(Debug, thiserror::Error)]
pub enum RigError {
    #[error(transparent)]
    Plane(#[from] ControlPlaneError),
    #[error(transparent)]
    Part(#[from] PartError),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("failed to install the chart: {0}")]
    Chart(String),
    #[error("there is no grpo-operator beside this program; build it with `cargo build -p grpo-operator`")]
    NoOperator,
    #[error("failed to answer for engine agents at {address}: {source}")]
    Agents {
        address: SocketAddr,
        source: std::io::Error,
    },
    #[error("failed to read the audit log: {0}")]
    Audit(#[from] std::io::Error),
    #[error("waited {limit:?} in vain for {what}; there was: {there}")]
    Never {
        what: String,
        limit: Duration,
        there: String,
    },
    #[error("a task of the bench ended early: {0}")]
    Task(#[from] tokio::task::JoinError),
}
