//! A gated hub that pods of the cluster reach, with the demo's rows and model.

use super::{Result, Scene, rows};
use grpo_hub::Repository;
use grpo_hub::played::{Content, PlayedHub};
use grpo_testing::cluster::host_address;
use grpo_testing::cluster::manifest::RunManifest;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret};
use serde_json::json;
use std::collections::BTreeMap;

pub const DATASET: &str = "demo/tasks";
pub const MODEL: &str = "demo/model";
const TOKEN: &str = "a-token";
/// The Secret with the hub's token.
const SECRET: &str = "hub";
/// The volume on which driver, trainer and engine keep the model.
const CACHE: &str = "models";

/// The hub outside the cluster; in the scene's namespace a Secret with its token and a volume for models.
pub struct Hub {
    pub played: PlayedHub,
}

impl Hub {
    pub async fn new(scene: &Scene) -> Result<Self> {
        let played = PlayedHub::start_at(&host_address()).await?;
        let folders = [
            (Repository::dataset(DATASET), rows()),
            (Repository::model(MODEL), rows().with_file_name("model-files")),
        ];
        for (repository, folder) in folders {
            let mut files = BTreeMap::new();
            for entry in std::fs::read_dir(folder)? {
                let entry = entry?;
                let content = Content::Large(std::fs::read(entry.path())?.into());
                files.insert(entry.file_name().to_string_lossy().into_owned(), content);
            }
            played.push(&repository, "main", files);
            played.gate(&repository, TOKEN);
        }
        let token =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "stringData": {"token": TOKEN}});
        let _: Secret = scene.make(token).await?;
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": CACHE}, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "50Mi"}}}});
        let _: PersistentVolumeClaim = scene.make(claim).await?;
        Ok(Self { played })
    }

    /// The run with its rows and its model from this hub.
    pub fn holds(&self, run: RunManifest) -> RunManifest {
        let token = json!({"name": SECRET, "key": "token"});
        let of_the_hub = |split: &str| json!({"hub": {"repo": DATASET, "split": split, "tokenSecretRef": token}});
        let endpoint = json!([{"name": "HF_ENDPOINT", "value": self.played.endpoint}]);
        run.for_each_set(|set| set["dataset"] = of_the_hub(set["name"].as_str().unwrap_or_default()))
            .with("/tasks/train/dataset", of_the_hub("train"))
            .with("/model", json!({"hub": {"repo": MODEL, "tokenSecretRef": token}}))
            .with("/inference/pool/modelCache", json!({"claimName": CACHE}))
            .with("/driver/env", endpoint.clone())
            .with("/trainer/env", endpoint.clone())
            .with("/inference/pool/env", endpoint)
    }
}
