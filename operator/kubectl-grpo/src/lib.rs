//! `kubectl grpo`: GrpoRuns for people. Reads only, except for one short-lived pod that reads the store of a run
//! without a driver.
//!
//! [`arguments`] says what is wanted. [`status`] turns a GrpoRun (`grpo.dev`) into a screen; [`records`] reaches a
//! run's records, in the driver, by a reader pod or in a copied folder, and [`episodes`] shows them; [`logs`]
//! interleaves the logs of all parts. [`cluster`] knows which cluster and namespace, [`error`] what to do next when
//! something is missing, [`text`] bars, tables and durations.

pub mod arguments;
pub mod cluster;
pub mod episodes;
pub mod error;
pub mod logs;
pub mod pods;
pub mod records;
pub mod status;
pub mod text;
