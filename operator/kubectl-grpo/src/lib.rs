//! `kubectl grpo`: GrpoRuns for people. Reads only, except for short-lived pods: one that reads the store of a run
//! without a driver, one that answers which tasks a run would have, and those that have nodes pull images.
//!
//! [`arguments`] says what is wanted, [`completion`] what may follow. [`status`] turns a GrpoRun (`grpo.dev`) into a
//! screen, [`compare`] several into tables, [`explain`] a reason into the book's words, [`wait`] ends with it;
//! [`records`] reaches a run's records, in the driver, by a reader pod or in a copied folder, and [`episodes`] shows
//! them; [`logs`] interleaves the logs of all parts. [`tasks`] lists the tasks of a run or of a [`manifest`], with
//! images as its [`sandbox_pool`] names them, [`validated`] those that were found fit; [`plan`] says what the operator
//! would make of manifests; [`prepull`] has nodes pull images; [`copy`] copies a store,
//! [`export`] writes episodes as other projects do. [`pods`] are made for a moment, and asked. [`cluster`] knows which
//! cluster and namespace, [`error`] what to do next when something is missing, [`output`] writes files, [`text`] bars,
//! tables and durations.

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
pub mod validated;
pub mod wait;
