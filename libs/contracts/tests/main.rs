//! All integration tests of this crate, in one binary: linking dominates build time.

#![allow(clippy::unwrap_used)]

mod listen;
mod run_config;
#[path = "../../../crds/tests/support/bases.rs"]
#[allow(dead_code, reason = "the API's tests use all of it")]
mod support;
mod unsupported;
