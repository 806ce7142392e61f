//! Tests of the trainer's parts as a library; ranks are threads with a rendezvous on the loopback.
//!
//! One binary, because linking libtorch takes longer than most of these tests.

#![allow(clippy::unwrap_used)]

mod arithmetic;
#[path = "../common/mod.rs"]
mod common;
mod damaged;
mod dropout;
mod families;
mod fences;
mod gpu;
mod options;
mod outages;
mod packing;
mod precision;
mod replay;
mod steps;
mod store;
mod supervised;
mod turns;
mod waiting;
