//! A bucket that pods of the cluster reach, for stores of runs. Folders are copied into it and out of it as other
//! clients of S3 do: each file with one plain request, without the metadata of our writers.

use super::{Result, Scene};
use futures::TryStreamExt;
use grpo_crds::GrpoRun;
use grpo_crds::sources::ObjectStoreSource;
use grpo_object_storage::{Credentials, open};
use grpo_records::folder::RunFolder;
use grpo_testing::cluster::host_address;
use grpo_testing::cluster::manifest::RunManifest;
use grpo_testing::s3::{ACCESS_KEY, BUCKET, S3Server, SECRET_KEY};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use object_store::path::Path as Key;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
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

    /// Copies a folder into the bucket, as the store of a run; returns the number of files.
    pub async fn put_store(&self, run: &str, from: &Path) -> Result<usize> {
        let (client, store) = (self.client().await?, self.key(run));
        let files = files_below(from)?;
        for file in &files {
            let name = file.strip_prefix(from)?.to_str().ok_or("a name is not UTF-8")?;
            let key = Key::from(format!("{store}/{name}"));
            client.put(&key, std::fs::read(file)?.into()).await?;
        }
        Ok(files.len())
    }

    /// Copies the store of a run into a folder; returns the number of files.
    pub async fn get_store(&self, run: &str, to: &Path) -> Result<usize> {
        let (client, store) = (self.client().await?, self.key(run));
        let found: Vec<ObjectMeta> = client.list(Some(&store)).try_collect().await?;
        let prefix: &str = store.as_ref();
        for object in &found {
            let key: &str = object.location.as_ref();
            let name = key.strip_prefix(prefix).ok_or("a key of another folder")?;
            let file = to.join(name.trim_start_matches('/'));
            if let Some(folder) = file.parent() {
                std::fs::create_dir_all(folder)?;
            }
            std::fs::write(&file, client.get(&object.location).await?.bytes().await?)?;
        }
        Ok(found.len())
    }

    async fn client(&self) -> Result<Arc<dyn ObjectStore>> {
        let source = ObjectStoreSource {
            url: format!("s3://{BUCKET}"),
            endpoint: Some(self.server.endpoint.clone()),
            region: None,
            credentials_secret_ref: None,
        };
        let keys = [("AWS_ACCESS_KEY_ID", ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY)];
        Ok(open(&source, &Credentials::from(keys)).await?.objects)
    }

    fn key(&self, run: &str) -> Key {
        Key::from(format!("{PREFIX}/{}/{run}", self.namespace))
    }

    /// Kills the server, and starts it again after a while.
    pub async fn is_away(&mut self, outage: Duration) -> Result<()> {
        self.server.kill().await?;
        tokio::time::sleep(outage).await;
        Ok(self.server.again()?)
    }
}

/// Every file below a folder.
fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => folders.push(entry.path()),
                false => files.push(entry.path()),
            }
        }
    }
    Ok(files)
}
