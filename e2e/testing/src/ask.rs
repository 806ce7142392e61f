//! Sends one manifest to an API server as kubectl does: strict about unknown fields, with the answer in the server's
//! own words.

use kube::{
    Client,
    api::ApiResource,
    core::{GroupVersionKind, TypeMeta},
};
use serde_json::Value;

/// The operation on a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Create,
    /// Replaces the existing object.
    Replace,
    /// Server-side apply, as with `kubectl apply --server-side`.
    Apply,
    /// Merges into the status of the existing object, as a foreign writer would.
    PatchStatus,
    Delete,
    /// Only reads the existing object.
    Get,
}

/// Why the API server refused a manifest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Refusal {
    /// 422 for an invalid object, 400 for an unreadable one, 0 without an answer.
    pub code: u16,
    pub message: String,
}

impl Refusal {
    fn of(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self {
                code: status.code,
                message: status.message.clone(),
            },
            other => Self {
                code: 0,
                message: other.to_string(),
            },
        }
    }

    fn unsent(what: impl ToString) -> Self {
        Self {
            code: 0,
            message: what.to_string(),
        }
    }
}

/// Sends the request; with `dry_run` the server checks everything and stores nothing.
pub async fn ask(client: &Client, verb: Verb, manifest: &Value, dry_run: bool) -> Result<Value, Refusal> {
    let path = path_of(manifest)?;
    let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
    let (method, path, content) = match verb {
        Verb::Create => ("POST", path, "application/json"),
        Verb::Replace => ("PUT", format!("{path}/{name}"), "application/json"),
        Verb::Apply => ("PATCH", format!("{path}/{name}"), "application/apply-patch+yaml"),
        Verb::PatchStatus => ("PATCH", format!("{path}/{name}/status"), "application/merge-patch+json"),
        Verb::Delete => ("DELETE", format!("{path}/{name}"), "application/json"),
        Verb::Get => ("GET", format!("{path}/{name}"), "application/json"),
    };
    let mut query = "fieldValidation=Strict".to_owned();
    if dry_run {
        query.push_str("&dryRun=All");
    }
    if verb == Verb::Apply {
        query.push_str("&fieldManager=kubectl&force=true");
    }
    let body = match verb {
        Verb::PatchStatus => serde_json::json!({"status": manifest["status"]}).to_string(),
        Verb::Delete | Verb::Get => String::new(),
        _ => manifest.to_string(),
    };
    let request = http::Request::builder()
        .method(method)
        .uri(format!("{path}?{query}"))
        .header("content-type", content)
        .body(body.into_bytes())
        .map_err(Refusal::unsent)?;
    client.request(request).await.map_err(Refusal::of)
}

/// Sends a body that may not be a manifest to the path for creating objects of this kind.
pub async fn ask_raw(client: &Client, like: &Value, content: &str, body: Vec<u8>) -> Result<Value, Refusal> {
    let request = http::Request::post(format!("{}?fieldValidation=Strict", path_of(like)?))
        .header("content-type", content)
        .body(body)
        .map_err(Refusal::unsent)?;
    client.request(request).await.map_err(Refusal::of)
}

/// The path of objects of a manifest's kind and namespace.
fn path_of(manifest: &Value) -> Result<String, Refusal> {
    let of = |field: &str| manifest[field].as_str().unwrap_or_default().to_owned();
    let types = TypeMeta {
        api_version: of("apiVersion"),
        kind: of("kind"),
    };
    let kind = GroupVersionKind::try_from(&types).map_err(Refusal::unsent)?;
    let resource = ApiResource::from_gvk(&kind);
    let group = match resource.group.as_str() {
        "" => "/api".to_owned(),
        group => format!("/apis/{group}"),
    };
    let namespace = match manifest["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("/namespaces/{namespace}"),
        None => String::new(),
    };
    Ok(format!("{group}/{}{namespace}/{}", resource.version, resource.plural))
}
