//! Every test that crosses processes, in one binary: linking dominates the build time.
//!
//! The tests that need a control plane or a cluster are ignored; `make test-api`, `test-operator`, `test-e2e`,
//! `test-agents`, `test-clients`, `test-elastic`, `test-engines`, `test-harnesses`, `test-histories`, `test-release`,
//! `test-overlap`, `test-validate`, `test-kueue`, `test-seeds`, `test-operations`, `test-tenants`, `check-monitoring`,
//! `check-stores` and `check-trackers` name the modules that they run.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod agents;
mod chaos;
mod chart;
mod clients;
mod cluster;
mod colocated;
mod demo_on_servers;
mod elastic;
mod emulators;
mod engines;
mod examples;
mod faults;
mod finetune;
mod gateway;
mod gpus;
mod harnesses;
mod histories;
mod isolation;
mod judges;
mod kueue;
#[path = "../../crds/tests/support/mod.rs"]
mod manifests;
mod monitoring;
mod operations;
mod operator;
mod overlap;
mod records_server;
mod release;
mod sandbox_faults;
mod sandboxes;
mod seeds;
mod stores;
mod support;
mod tenants;
mod tools;
mod trackers;
mod validate;
mod weights_sync;
