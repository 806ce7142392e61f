//! All integration tests of this crate in one binary: linking dominates the build time.

#![allow(clippy::expect_used, clippy::unwrap_used)]

mod agents;
mod apis;
mod attempts;
mod bash_loop;
mod buckets;
mod capacity;
mod changes;
mod cli_agent;
mod colocated;
mod datasets;
mod dynamic;
mod faults;
mod finetune;
mod frozen_sampler;
mod graded;
mod grading;
mod harnesses;
mod histories;
mod judged;
mod kodcode;
mod listing;
mod model;
mod overlap;
mod prefixes;
mod process;
mod restarts;
mod reward_service;
mod rows;
mod runs;
mod shaped;
mod task_sets;
mod tools;
mod validate;
mod world;
