//! What the chart gives to Prometheus and Grafana: dashboards, whose panels are written here, and the rules, whose
//! file is read here.
//!
//! `charts/grpo-operator/monitoring` has the results: `rules.yaml` and `scrape.yaml` are written by hand, the
//! dashboards are made from [`dashboards`] by a test. Tests hold that each metric in a query is one that the book lists
//! (and so one that a process serves), and that the book has a section for each alert. promtool parses
//! the rules and the dashboards' queries (`check.sh`).

pub mod dashboards;
pub mod promql;
pub mod rules;

use std::path::PathBuf;

/// The chart's folder with rules, jobs and dashboards.
pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../charts/grpo-operator/monitoring")
}
