//! The Helm chart: rendered by helm itself, and applied as far as a control plane without nodes can hold it.

use std::{io, path::PathBuf, process::Command, time::Duration};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    ask::{Refusal, Verb, ask},
    cluster::{cache, wait},
};

/// The namespace of the operator, and the name of its service account.
pub const SYSTEM: &str = "grpo-system";
pub const OPERATOR: &str = "grpo-operator";
/// A CRD is served a moment after it is applied.
const SOON: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum ChartError {
    #[error("starting {helm}: {source}; `make setup` builds it")]
    Start { helm: PathBuf, source: io::Error },
    /// Helm's own message.
    #[error("helm template: {0}")]
    Refused(String),
    #[error("reading what helm rendered: {0}")]
    Rendered(#[from] serde_yaml_ng::Error),
    #[error("applying {object} of the chart: {source}")]
    Apply { object: String, source: Refusal },
    #[error(transparent)]
    Wait(#[from] wait::WaitError),
}

pub fn folder() -> PathBuf {
    crate::repository().join("charts/grpo-operator")
}

/// The output of `helm template` for the chart with these values over its own, including CRDs.
pub fn render(values: &Value) -> Result<Vec<Value>, ChartError> {
    render_in(SYSTEM, values)
}

/// The same for a release in another namespace.
pub fn render_in(namespace: &str, values: &Value) -> Result<Vec<Value>, ChartError> {
    let helm = cache().join("bin/helm");
    let start = |source| ChartError::Start {
        helm: helm.clone(),
        source,
    };
    let file = tempfile::NamedTempFile::new().map_err(start)?;
    std::fs::write(file.path(), values.to_string()).map_err(start)?;
    let rendered = Command::new(&helm)
        .args(["template", OPERATOR])
        .arg(folder())
        .args(["--namespace", namespace, "--include-crds", "--values"])
        .arg(file.path())
        .output()
        .map_err(start)?;
    if !rendered.status.success() {
        return Err(ChartError::Refused(
            String::from_utf8_lossy(&rendered.stderr).into_owned(),
        ));
    }
    let text = String::from_utf8_lossy(&rendered.stdout).into_owned();
    let documents = serde_yaml_ng::Deserializer::from_str(&text).map(Value::deserialize);
    let documents: Vec<Value> = documents.collect::<Result<_, _>>()?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

/// Applies the chart without its Deployment: CRDs, rights and accounts. Returns when the CRDs are served.
pub async fn install(client: &Client) -> Result<(), ChartError> {
    install_with(client, &json!({})).await
}

/// The same with these values over the chart's own.
pub async fn install_with(client: &Client, values: &Value) -> Result<(), ChartError> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}});
    apply(client, &namespace).await?;
    let rendered = render(values)?;
    let (crds, others): (Vec<&Value>, Vec<&Value>) = rendered
        .iter()
        .filter(|object| object["kind"] != "Deployment")
        .partition(|object| object["kind"] == "CustomResourceDefinition");
    for object in crds.iter().chain(&others) {
        apply(client, object).await?;
    }
    let names: Vec<&str> = crds.iter().filter_map(|crd| crd["metadata"]["name"].as_str()).collect();
    let served = |there: &wait::Objects<CustomResourceDefinition>| {
        let all = names.iter().all(|name| there.get(*name).is_some_and(is_established));
        all.then_some(())
    };
    let config = kube::runtime::watcher::Config::default();
    Ok(wait::until(Api::all(client.clone()), config, SOON, "the CRDs to be served", served).await?)
}

async fn apply(client: &Client, object: &Value) -> Result<(), ChartError> {
    let applied = ask(client, Verb::Apply, object, false).await;
    applied.map(drop).map_err(|source| ChartError::Apply {
        object: format!("{} {}", object["kind"], object["metadata"]["name"]),
        source,
    })
}

fn is_established(crd: &CustomResourceDefinition) -> bool {
    let conditions = crd.status.as_ref().and_then(|status| status.conditions.as_deref());
    let established = |type_: &str, status: &str| type_ == "Established" && status == "True";
    conditions
        .unwrap_or_default()
        .iter()
        .any(|condition| established(&condition.type_, &condition.status))
}
