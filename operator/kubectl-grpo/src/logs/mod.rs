//! `kubectl grpo logs`: the logs of all parts of a run, interleaved by the time of their lines.
//!
//! [`parts`] says which pods and containers belong to the run and what they are called; [`stream`] reads one
//! container's log;
//! [`interleave`] puts the lines of all of them into one order; [`follow`] finds pods that come later.

mod follow;
pub mod interleave;
pub mod parts;
pub mod stream;

pub use follow::logs;
