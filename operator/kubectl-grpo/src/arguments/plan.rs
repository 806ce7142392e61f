//! The arguments of plan, wait and completion.

use super::names::{duration, run_name};
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args, Debug, Default)]
pub struct PlanOptions {
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

#[derive(Args, Debug)]
pub struct Wait {
    #[arg(value_parser = run_name)]
    pub run: String,
    /// Give up after this while, such as 2h. Default: never.
    #[arg(long, value_parser = duration)]
    pub timeout: Option<Duration>,
}

#[derive(Args, Debug)]
pub struct Completion {
    #[arg(value_enum)]
    pub shell: Shell,
}

/// For which shell a script is written.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
    /// The program `kubectl_complete-grpo`, which kubectl's own completion asks.
    Kubectl,
}

/// What kubectl's completion has so far.
#[derive(Args, Debug)]
pub struct Complete {
    #[arg(last = true)]
    pub words: Vec<String>,
}
