//! A bucket that pods of the cluster reach, for stores of runs.

use super::{Result, Scene};
use grpo_crds::GrpoRun;
use grpo_records::folder::RunFolder;
use grpo_testing::cluster::host_address;
use grpo_testing::cluster::manifest::RunManifest;
use grpo_testing::s3::{ACCESS_KEY, BUCKET, S3Server, SECRET_KEY};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use serde_json::json;
use std::time::Duration;
use tempfile::TempDir;

const SECRET: &str = "s3";
const PREFIX: &str = "e2e";

/// A server of S3 outside the cluster, and a Secret with its keys in the scene's namespace.
pub struct Bucket {
    server: S3Server,
    namespace: String,
    _objects: TempDir,
}

impl Bucket {
    pub async fn new(scene: &Scene) -> Result<Self> {
        let objects = tempfile::tempdir()?;
        let server = S3Server::start(&host_address(), objects.path()).await?;
        let keys = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "stringData": {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}});
        let _: Secret = scene.make(keys).await?;
        Ok(Self {
            server,
            namespace: scene.namespace.clone(),
            _objects: objects,
        })
    }

    /// The run with its store in this bucket.
    pub fn holds(&self, run: RunManifest) -> RunManifest {
        let place = json!({"url": format!("s3://{BUCKET}/{PREFIX}"), "endpoint": self.server.endpoint,
            "credentialsSecretRef": {"name": SECRET}});
        run.with("/store", json!({"objectStore": place}))
    }

    /// The store of a run.
    pub fn store_of(&self, run: &GrpoRun) -> Result<RunFolder> {
        let store = self.server.objects().join(PREFIX).join(&self.namespace);
        Ok(RunFolder::open(&store.join(run.name_any()))?)
    }

    /// Kills the server, and starts it again after a while.
    pub async fn is_away(&mut self, outage: Duration) -> Result<()> {
        self.server.kill().await?;
        tokio::time::sleep(outage).await;
        Ok(self.server.again()?)
    }
}
