//! Every integration test of this crate, in one binary: linking dominates the time of a build.

#![allow(clippy::unwrap_used)]

mod attempts;
mod changes;
mod grading;
mod process;
mod runs;
mod world;
