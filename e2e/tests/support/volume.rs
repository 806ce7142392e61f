//! A volume with a test's files: wrong rows, wrong models.

use super::{Result, SOON, Scene};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod};
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use std::collections::BTreeMap;

impl Scene {
    /// Creates a PersistentVolumeClaim with these files in its root.
    pub async fn volume_with_files(&self, name: &str, files: &[(&str, &str)]) -> Result<()> {
        let data: BTreeMap<&str, &str> = files.iter().copied().collect();
        let metadata = json!({"name": name});
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data});
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "50Mi"}}}});
        self.make::<ConfigMap>(map).await?;
        self.make::<PersistentVolumeClaim>(claim).await?;
        self.make::<Pod>(writer(name)).await?;
        let pod = format!("{name}-writer");
        let what = format!("pod {pod} to have written the volume");
        let written = |there: &grpo_testing::cluster::wait::Objects<Pod>| {
            let phase = there.get(&pod)?.status.as_ref()?.phase.clone()?;
            (phase == "Succeeded").then_some(())
        };
        let config = grpo_testing::cluster::wait::named(&pod);
        Ok(grpo_testing::cluster::wait::until(self.pods(), config, SOON, &what, written).await?)
    }

    /// Creates one object of the test's namespace.
    pub async fn make<K>(&self, object: Value) -> Result<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope>
            + Clone
            + serde::Serialize
            + serde::de::DeserializeOwned
            + std::fmt::Debug,
        K::DynamicType: Default,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), &self.namespace);
        Ok(api
            .create(&PostParams::default(), &serde_json::from_value(object)?)
            .await?)
    }
}

fn writer(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("{name}-writer")},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{
                "name": "writer", "image": "grpo.dev/driver:dev", "imagePullPolicy": "IfNotPresent",
                "command": ["sh", "-c", "cp -L /files/* /volume/ && chmod -R a+rX /volume"],
                "securityContext": {"runAsUser": 0},
                "volumeMounts": [{"name": "files", "mountPath": "/files"}, {"name": "volume", "mountPath": "/volume"}],
            }],
            "volumes": [
                {"name": "files", "configMap": {"name": name}},
                {"name": "volume", "persistentVolumeClaim": {"claimName": name}},
            ],
        },
    })
}
