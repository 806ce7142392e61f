//! Every integration test of this crate, in one binary: linking dominates the time of a build.

#![allow(clippy::unwrap_used)]

mod book;
mod chart;
mod inference_pools;
mod manifests;
mod refusals;
mod script_values;
mod support;
mod values;
