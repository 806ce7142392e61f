//! Where a model or a dataset comes from: an image, a volume, the Hugging Face Hub, an object store.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    cel,
    common::{ObjectRef, SecretKeyRef},
};

/// Files that lie in an OCI image, mounted as an image volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = cel::stays_below("path", "path"))]
pub struct ImageSource {
    /// Reference of the image, as for a container.
    #[schemars(length(min = 1, max = 512))]
    pub reference: String,
    /// Path inside the image, without a leading slash. For a model the folder that holds `config.json`; for a dataset
    /// the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), regex(pattern = r"^[^/].*$"))]
    pub path: Option<String>,
}

/// Files that lie on a volume of the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = cel::stays_below("path", "path"))]
pub struct ClaimSource {
    /// Name of the PersistentVolumeClaim. It is mounted read-only.
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: String,
    /// Path on the volume, without a leading slash. For a model the folder that holds `config.json`; for a dataset the
    /// file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), regex(pattern = r"^[^/].*$"))]
    pub path: Option<String>,
}

/// A model repository of the Hugging Face Hub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HubModel {
    /// Owner and name, for example `Qwen/Qwen3-8B`.
    #[schemars(
        length(min = 1, max = 193),
        regex(pattern = r"^[A-Za-z0-9._-]{1,96}(/[A-Za-z0-9._-]{1,96})?$")
    )]
    pub repo: String,
    /// Branch, tag or commit. Default: the newest commit when the run starts; which one it was is recorded in the
    /// store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub revision: Option<String>,
    /// Token for a repository that is private or gated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<SecretKeyRef>,
}

/// A dataset repository of the Hugging Face Hub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HubDataset {
    /// Owner and name, for example `SWE-bench/SWE-bench_Verified`.
    #[schemars(
        length(min = 1, max = 193),
        regex(pattern = r"^[A-Za-z0-9._-]{1,96}(/[A-Za-z0-9._-]{1,96})?$")
    )]
    pub repo: String,
    /// Which of the repository's configurations. Default: the only one, or `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 96))]
    pub config: Option<String>,
    /// Which split of it.
    #[serde(default = "default_split")]
    #[schemars(length(min = 1, max = 96))]
    pub split: String,
    /// Branch, tag or commit. Default: the newest commit when the run starts; which one it was is recorded in the
    /// store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub revision: Option<String>,
    /// Token for a repository that is private or gated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<SecretKeyRef>,
}

fn default_split() -> String {
    "train".into()
}

/// A place in an object store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectStoreSource {
    /// Bucket and prefix: `s3://`, `gs://` or `az://`. For a model the folder that holds `config.json`, for a dataset
    /// the file, for a store the folder. Refused: `az://` as the store of a run that trains; use `s3://` or `gs://`, or
    /// a volume: an `az://` store serves modes Evaluate and Validate only.
    #[schemars(
        length(min = 6, max = 1024),
        regex(pattern = r"^(s3|gs|az)://[A-Za-z0-9][A-Za-z0-9._-]*(/[^\s?#]*)?$")
    )]
    pub url: String,
    /// URL of a server that speaks S3 and is not Amazon's, for example `https://minio.storage.svc:9000`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 8, max = 512), regex(pattern = r"^https?://[^\s]+$"))]
    pub endpoint: Option<String>,
    /// Region of the bucket. Default: what the server says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub region: Option<String>,
    /// Secret whose keys are the environment variables of the store's own tools, for example `AWS_ACCESS_KEY_ID` and
    /// `AWS_SECRET_ACCESS_KEY`. Default: the identity the cluster gives the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret_ref: Option<ObjectRef>,
}

/// Where a model comes from: exactly one of the fields.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = cel::exactly_one(&["image", "persistentVolumeClaim", "hub", "objectStore"]))]
pub struct ModelSource {
    /// An image that holds the model's files (`config.json`, `tokenizer.json`, `model.safetensors`, ...).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSource>,
    /// A volume that holds the model's files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<ClaimSource>,
    /// A repository of the Hugging Face Hub. It is downloaded once for each cache: the pool's `modelCache`, or the
    /// run's store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub: Option<HubModel>,
    /// A folder of an object store. It is downloaded once for each cache: the pool's `modelCache`, or the run's store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_store: Option<ObjectStoreSource>,
}

impl ModelSource {
    /// Where the source is mounted in every process that needs it.
    pub const MOUNT: &'static str = "/model";
    /// Below it the link to a downloaded model: its folder is named by a commit that is not known before.
    pub const CURRENT: &'static str = "current";

    /// Whether processes download it, so that it is below [`Self::CURRENT`].
    pub fn is_downloaded(&self) -> bool {
        self.hub.is_some() || self.object_store.is_some()
    }

    /// The folder with the model's files, as seen in a container.
    pub fn directory(&self) -> String {
        if self.is_downloaded() {
            return joined(Self::MOUNT, Some(Self::CURRENT));
        }
        let image = self.image.as_ref().map(|image| image.path.as_deref());
        let claim = || self.persistent_volume_claim.as_ref().map(|claim| claim.path.as_deref());
        joined(Self::MOUNT, image.or_else(claim).flatten())
    }
}

/// The policy before the first step: where its weights come from (exactly one of the four places), and what of it is
/// trained.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = cel::exactly_one(&["image", "persistentVolumeClaim", "hub", "objectStore"]))]
pub struct PolicyModel {
    /// An image that holds the model's files (`config.json`, `tokenizer.json`, `model.safetensors`, ...).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSource>,
    /// A volume that holds the model's files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<ClaimSource>,
    /// A repository of the Hugging Face Hub. It is downloaded once for each cache: the pool's `modelCache`, or the
    /// run's store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub: Option<HubModel>,
    /// A folder of an object store. It is downloaded once for each cache: the pool's `modelCache`, or the run's store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_store: Option<ObjectStoreSource>,
    /// Train a low-rank adapter and leave the weights frozen. Left out: all weights are trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<Lora>,
}

impl PolicyModel {
    /// Where the weights come from.
    pub fn source(&self) -> ModelSource {
        ModelSource {
            image: self.image.clone(),
            persistent_volume_claim: self.persistent_volume_claim.clone(),
            hub: self.hub.clone(),
            object_store: self.object_store.clone(),
        }
    }
}

/// A low-rank adapter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Lora {
    /// Rank of the two factors.
    #[serde(default = "default_rank")]
    #[schemars(range(min = 1, max = 512))]
    pub rank: u32,
    /// Scale: the adapter's output is multiplied by alpha / rank. Default: twice the rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.001, max = 65536.0))]
    pub alpha: Option<f64>,
    /// Linear layers that get one, by the last part of their name, for example `q_proj`. Default: all of attention and
    /// MLP.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 64)))]
    pub target_modules: Vec<String>,
    /// Share of an adapter's inputs that are dropped while it is trained. All passes over a token within a step drop
    /// the same, so that ratios are the weights' doing; but the engine drops nothing, so its logprobs and the trainer's
    /// differ the more, the more is dropped.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 0.9))]
    pub dropout: f64,
}

fn default_rank() -> u32 {
    16
}

/// A path below a mount.
pub fn joined(mount: &str, path: Option<&str>) -> String {
    match path {
        Some(path) => format!("{mount}/{}", path.trim_matches('/')),
        None => mount.to_owned(),
    }
}
