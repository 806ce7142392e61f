//! The trainer as processes that are started, killed, stopped and told to end.
//!
//! A binary of its own: these processes inherit what is open here, and sockets of ranks that are threads of this
//! process would stay open in them after their rank has ended.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod engines;
mod kills;
mod launch;
mod lineages;
mod resumed;
mod serve;
mod supervised;
mod tokens;
