//! Tests of the trainer's parts as a library; ranks are threads with a rendezvous on the loopback.
//!
//! One binary, because linking libtorch takes longer than most of these tests.

#![allow(clippy::unwrap_used)]

mod arithmetic;
#[path = "../common/mod.rs"]
mod common;
mod dropout;
mod families;
mod gpu;
mod options;
mod packing;
mod precision;
mod replay;
mod steps;
mod store;
mod supervised;
mod turns;
