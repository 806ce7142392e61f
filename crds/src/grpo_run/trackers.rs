//! Where a run's curves are shown beside the viewer: servers and files of experiment trackers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::SecretKeyRef;

/// Experiment trackers that get the run's curves while it works. The store has all of them, so a tracker that fails
/// neither delays nor ends the run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Trackers {
    /// A tracking server of MLflow. Left out: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mlflow: Option<MlflowTracker>,
    /// Weights & Biases: a file in the store, which `wandb sync` uploads, and an upload while the run works. Left out:
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wandb: Option<WandbTracker>,
}

/// A tracking server of MLflow. The run of MLflow has the name of this run, and its uid as the tag `grpo.uid`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MlflowTracker {
    /// Its address, for example `http://mlflow.team.svc:5000`.
    #[schemars(length(min = 8, max = 1024), regex(pattern = r"^https?://[^\s]+$"))]
    pub url: String,
    /// The experiment; it is created if it does not exist. Left out: the run's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 250))]
    pub experiment: Option<String>,
    /// Token that is sent along as `Authorization: Bearer`. A value with a colon is `user:password`, and is sent as
    /// `Authorization: Basic`. Left out: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<SecretKeyRef>,
}

/// A file in the form of Weights & Biases' offline mode, `wandb/attempt-N/run-ID.wandb` of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WandbTracker {
    /// The project. Left out: the run's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub project: Option<String>,
    /// The team or user. Left out: that of the one who uploads the file, or the default of the key's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub entity: Option<String>,
    /// Sends the rows of the file to a server too, while the run works. Left out: only the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload: Option<WandbUpload>,
}

/// A server of Weights & Biases. The id of its run is the uid of this run, so that `wandb sync` of the file and the
/// next driver continue the same run there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WandbUpload {
    /// API key of a user or service account that may write to the project.
    pub api_key_secret_ref: SecretKeyRef,
    /// Address of the server's API.
    #[serde(default = "default_wandb_url")]
    #[schemars(length(min = 8, max = 1024), regex(pattern = r"^https?://[^\s]+$"))]
    pub url: String,
}

fn default_wandb_url() -> String {
    "https://api.wandb.ai".to_owned()
}
