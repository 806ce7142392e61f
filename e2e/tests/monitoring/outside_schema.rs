//! An object that the schema of its kind refuses: it exists while a test waits for something, and so does a CRD without
//! its schema. Object and schema are as before when the wait ends, also with an error, because other tests use the same
//! cluster.

use crate::support::{Result, Scene, repository};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Resource;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use serde_json::{Value, json};
use std::future::Future;
use std::time::Duration;

const NAME: &str = "odd";
/// How long the API server may take to serve a changed schema.
const TRIES: u32 = 60;
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// Makes an object of this kind with this spec, and waits.
pub async fn while_there<K>(scene: &Scene, spec: Value, wait: impl Future<Output = Result<()>>) -> Result<()>
where
    K: Resource<DynamicType = ()>,
{
    let kind = ApiResource::erase::<K>(&());
    let waited = match make(scene, &kind, spec).await {
        Ok(()) => wait.await,
        refused => refused,
    };
    let restored = restore(scene, &kind).await;
    waited.and(restored)
}

async fn make(scene: &Scene, kind: &ApiResource, spec: Value) -> Result<()> {
    let mut versions = versions_of_chart(kind)?;
    versions[0]["schema"]["openAPIV3Schema"] = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    set_versions(scene, kind, &versions).await?;
    let object: DynamicObject = serde_json::from_value(json!({
        "apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": NAME}, "spec": spec,
    }))?;
    let mut again = tokio::time::interval(TRY_AGAIN);
    let mut last = None;
    for _ in 0..TRIES {
        again.tick().await;
        match objects(scene, kind).create(&PostParams::default(), &object).await {
            Ok(_) => return Ok(()),
            Err(refused) => last = Some(refused),
        }
    }
    Err(format!("the API server still refuses {} {NAME}: {last:?}", kind.kind).into())
}

async fn restore(scene: &Scene, kind: &ApiResource) -> Result<()> {
    match objects(scene, kind).delete(NAME, &DeleteParams::default()).await {
        // It was never made.
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        deleted => drop(deleted?),
    }
    set_versions(scene, kind, &versions_of_chart(kind)?).await
}

fn objects(scene: &Scene, kind: &ApiResource) -> Api<DynamicObject> {
    Api::namespaced_with(scene.client.clone(), &scene.namespace, kind)
}

/// The versions of the kind's CRD, as the chart has them.
fn versions_of_chart(kind: &ApiResource) -> Result<Value> {
    let path = repository().join(format!("charts/grpo-operator/crds/{}.yaml", kind.plural));
    let crd: Value = serde_yaml_ng::from_str(&std::fs::read_to_string(path)?)?;
    Ok(crd["spec"]["versions"].clone())
}

async fn set_versions(scene: &Scene, kind: &ApiResource, versions: &Value) -> Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(scene.client.clone());
    let name = format!("{}.{}", kind.plural, kind.group);
    let change = Patch::Merge(json!({"spec": {"versions": versions}}));
    crds.patch(&name, &PatchParams::default(), &change).await?;
    Ok(())
}
