//! What `kubectl grpo plan` is asked for.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Args, Debug, Default)]
pub struct Plan {
    /// Manifests: a file with one or more documents, a folder with .yaml, .yml and .json files, or - for standard
    /// input. May be given several times.
    #[arg(long = "filename", short, value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// The nodes, as `kubectl get nodes -o yaml` prints them; with `kubectl get nodes,pods -A -o yaml` also the pods on
    /// them.
    #[arg(long, value_name = "FILE")]
    pub nodes: Option<PathBuf>,
    /// Read nodes, and the pods on them, from the cluster.
    #[arg(long, conflicts_with = "nodes")]
    pub server: bool,
    #[arg(long, short, value_enum, default_value_t)]
    pub output: PlanForm,
}

/// How a plan is shown.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlanForm {
    /// Tables and sentences.
    #[default]
    Table,
    /// One object, for programs: amounts in bytes and thousandths of a CPU.
    Json,
}
