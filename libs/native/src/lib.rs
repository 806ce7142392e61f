//! Collectives over the ranks of a trainer: libtorch's own c10d behind a thin C++ shim. This is the only crate with
//! `unsafe`, so it also has [`attention`] over packed trees, [`fused`] parts of a block, [`linear`] layers,
//! [`experts`] and [`routing`] to them, the vocabulary [`head`] on a GPU, [`dropout`] and the [`optimizer`]'s fused
//! step. [`recorder`] and [`profiler`] count what these launch, without and with a GPU.
//!
//! A [`Group`] of one rank only copies, so the same code trains in one process and in many. Every call blocks until it
//! is done or has failed. If a rank dies, the other ranks' next call fails at once (its sockets close). A rank that
//! hangs is found through [`rendezvous_store`], where every rank reports its progress.

#![allow(unsafe_code)]

pub mod attention;
mod call;
mod collectives;
pub mod device;
pub mod dropout;
pub mod exchange;
pub mod experts;
pub mod fused;
mod generic;
pub mod gpu_wait;
mod group;
pub mod head;
pub mod linear;
pub mod memory;
pub mod optimizer;
mod pending_collective;
pub mod profiler;
pub mod recorder;
mod rendezvous;
mod rendezvous_store;
pub mod routing;

use std::ffi::c_int;

pub use crate::exchange::Exchange;
pub use crate::generic::generic;
pub use crate::group::{Arrived, Group};
pub use crate::pending_collective::PendingCollective;
pub use crate::rendezvous::{CollectiveError, Rendezvous};
pub use crate::rendezvous_store::{Doing, Position, Unanswered, Watch};

unsafe extern "C" {
    fn _exit(code: c_int) -> !;
}

/// Ends the process now, without destructors: they would wait for a thread that is inside of a collective.
pub fn end_now(code: i32) -> ! {
    // SAFETY: takes a number and does not return.
    unsafe { _exit(code) }
}
