//! Integration tests of this crate in one binary: linking dominates the time of a build. `compat` is a separate binary,
//! because it measures the memory of its own process.

#![allow(clippy::unwrap_used)]

mod lease_rate;
mod leased;
mod ledger;
mod packages;
mod played;
mod relays;
mod stuck;
mod tokens;
mod work;
