//! What people and tests use to look at runs: following one live, reporting on its store, verifying it, measuring learning.
//!
//! [`run_folder`] opens a store that was copied out of a cluster; [`report`], [`learnt`], [`show`] and [`verify`] only read it, so all
//! of them work on any machine. [`follow`] and [`cluster`] talk to a Kubernetes; the end-to-end tests are built on [`cluster`].

pub mod bench;
pub mod cluster;
pub mod curve;
pub mod follow;
pub mod learning;
pub mod learnt;
pub mod report;
pub mod report_text;
pub mod show;
pub mod statistics;
pub mod tasks;
pub mod verify;

pub use grpo_records::folder as run_folder;

#[cfg(test)]
pub(crate) use grpo_records::fixture;
