//! Reasons why a plan is impossible.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("reading {file}: {source}; give a file or a folder with manifests, or - for standard input")]
    Read { file: PathBuf, source: std::io::Error },
    #[error("{file} has more than {limit} MiB, which is no manifest; give a file with a GrpoRun and its pools")]
    TooLarge { file: PathBuf, limit: u64 },
    #[error("{file} is no YAML: {source}; correct this line")]
    Yaml {
        file: PathBuf,
        source: serde_yaml_ng::Error,
    },
    #[error(
        "there is no GrpoRun, InferencePool or SandboxPool (grpo.dev) in {files}; give the manifest of a run or pool"
    )]
    NothingToPlan { files: String },
    #[error("{file} has no nodes; write it with `kubectl get nodes -o yaml`")]
    NoNodes { file: PathBuf },
    #[error("{what} of {file} cannot be read: {source}; write it with `kubectl get nodes -o yaml`")]
    Object {
        what: String,
        file: PathBuf,
        source: serde_json::Error,
    },
    #[error("this plugin's own schemas cannot be read: {0}; report this as a bug")]
    Schemas(#[from] grpo_crds::crd::CrdError),
    #[error("this plugin's settings cannot be read: {0}; unset the variables GRPO_* of your environment")]
    Settings(String),
    #[error(transparent)]
    Preview(#[from] grpo_operator_core::preview::PreviewError),
    #[error("the plan cannot be written as JSON: {0}; report this as a bug")]
    Json(serde_json::Error),
    #[error("the manifests cannot run as they are: {0} problems, each with its next step in the plan")]
    Problems(usize),
}
