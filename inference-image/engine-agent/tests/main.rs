//! Every integration test of this crate, in one binary: linking dominates the time of a build.

#![allow(clippy::unwrap_used)]

mod agent;
mod clients;
mod delta;
mod disturbed;
mod engines;
mod fetch_model;
mod real_vllm;
mod relay;
mod sleep;
mod superseded;
mod support;
mod tokens;
