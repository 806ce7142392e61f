//! `kubectl grpo`: shows GrpoRuns to people. It only reads, except for short-lived pods: one that reads the store of a
//! run without a driver, one that lists the tasks that a run would have, and pods that make nodes pull images.
//!
//! [`arguments`] parses the command line, [`completion`] completes it. [`status`] renders a GrpoRun (`grpo.dev`) as a
//! screen, [`compare`] several as tables, [`explain`] a reason with the book's text; [`wait`] ends when a run ends.
//! [`records`] reaches a run's records, in the driver, by a reader pod or in a copied folder, and [`episodes`] shows
//! them; [`logs`] interleaves the logs of all parts. [`tasks`] lists the tasks of a run or of a [`manifest`], with
//! images as its [`sandbox_pool`] names them, [`validated`] the tasks that were found fit. [`plan`] shows the
//! operator's decisions for manifests; [`prepull`] makes nodes pull images; [`copy`] copies a store; [`export`] writes
//! episodes in the formats of other projects; [`ui`] shows runs in the browser. [`pods`] creates short-lived pods and
//! connects to pods. [`cluster`] selects cluster and namespace, [`error`] names the next step after an error,
//! [`output`] writes files, [`text`] formats bars, tables and durations.

pub mod arguments;
pub mod cluster;
pub mod compare;
pub mod completion;
pub mod copy;
pub mod episodes;
pub mod error;
pub mod explain;
pub mod export;
pub mod logs;
pub mod manifest;
pub mod output;
pub mod plan;
pub mod pods;
pub mod prepull;
pub mod records;
pub mod sandbox_pool;
pub mod status;
pub mod tasks;
pub mod text;
pub mod ui;
pub mod validated;
pub mod wait;
