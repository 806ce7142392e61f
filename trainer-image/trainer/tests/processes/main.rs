//! Starts, kills, stops and terminates the trainer's processes.
//!
//! A separate binary: these processes inherit open files, and sockets of ranks that are threads of this process would
//! stay open in them after their rank has ended.

#![allow(clippy::unwrap_used)]

mod colocated;
#[path = "../common/mod.rs"]
mod common;
mod damaged;
mod engines;
mod kills;
mod launch;
mod lineages;
mod outage;
mod resumed;
mod serve;
mod superseded;
mod supervised;
mod tokens;
