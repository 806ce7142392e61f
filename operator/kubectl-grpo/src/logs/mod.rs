//! `kubectl grpo logs`: the logs of all parts of a run, interleaved by the time of their lines.
//!
//! [`parts`] finds the run's pods and containers and names them; [`stream`] reads one container's log; [`interleave`]
//! merges the lines of all of them; [`follow`] finds pods that start later.

mod follow;
pub mod interleave;
pub mod parts;
pub mod stream;

pub use follow::logs;
