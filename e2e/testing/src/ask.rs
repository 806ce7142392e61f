//! One manifest put to an API server as kubectl puts it: strict about unknown fields, with the answer in the server's
//! own words.

use kube::{
    Client,
    api::ApiResource,
    core::{GroupVersionKind, TypeMeta},
};
use serde_json::Value;

/// What is to be done with a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Create,
    /// Puts it in the place of what is there.
    Replace,
    /// Server-side apply, as kubectl apply --server-side does.
    Apply,
    /// Merges it into the status of what is there, as a foreign writer would.
    PatchStatus,
    Delete,
    /// Only looks at what is there.
    Get,
}

/// Why a manifest was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Refusal {
    /// 422 where the object is judged wrong, 400 where it could not be read; 0 where there was no answer.
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

/// Asks; with `dry_run` everything is judged and nothing is kept.
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

/// Sends a body that may be no manifest at all to where objects of this kind are made.
pub async fn ask_raw(client: &Client, like: &Value, content: &str, body: Vec<u8>) -> Result<Value, Refusal> {
    let request = http::Request::post(format!("{}?fieldValidation=Strict", path_of(like)?))
        .header("content-type", content)
        .body(body)
        .map_err(Refusal::unsent)?;
    client.request(request).await.map_err(Refusal::of)
}

/// Where objects of a manifest's kind and namespace are.
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
