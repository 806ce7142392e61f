//! What people and tests use to look at runs: following one live, reporting on its store, verifying it, measuring learning.
//!
//! [`run_folder`] opens a store that was copied out of a cluster; [`report`], [`learnt`], [`show`] and [`verify`] only read it, so all
//! of them work on any machine. [`follow`] and [`cluster`] talk to a Kubernetes; the end-to-end tests are built on [`cluster`].
//! [`control_plane`] starts a Kubernetes without nodes for tests of what the API server decides and of the operator at scale; [`ask`]
//! puts manifests to it, and [`chart`] installs what the operator needs.

pub mod ask;
pub mod bench;
pub mod chart;
pub mod cluster;
pub mod control_plane;
pub mod curve;
pub mod follow;
pub mod learning;
pub mod learnt;
pub mod operator_bench;
pub mod report;
pub mod report_text;
pub mod sandbox_bench;
pub mod show;
pub mod statistics;
pub mod tasks;
pub mod verify;

pub use grpo_records::folder as run_folder;

#[cfg(test)]
pub(crate) use grpo_records::fixture;
