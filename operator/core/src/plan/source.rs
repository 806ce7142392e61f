//! The input objects of a plan, normalized so that their source does not matter.

use k8s_openapi::{NamespaceResourceScope, Resource};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Why objects cannot be planned.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    #[error("failed to read {what}: {source}; is it of a version that this code knows?")]
    Object { what: String, source: serde_json::Error },
    #[error("failed to write the section {section}: {source}")]
    Section {
        section: &'static str,
        source: serde_yaml_ng::Error,
    },
}

/// The objects, with names instead of uids.
pub struct Objects(Vec<Value>);

impl Objects {
    /// Replaces every uid by `<uid-of-Kind-name>` and the namespace by `<namespace>`, everywhere in the objects.
    pub fn normal(namespace: &str, objects: &[Value]) -> Result<Self, Unreadable> {
        let unreadable = |source| Unreadable::Object {
            what: "the objects".into(),
            source,
        };
        let mut text = serde_json::to_string(objects).map_err(unreadable)?;
        for object in objects {
            if let Some(uid) = object["metadata"]["uid"].as_str() {
                text = text.replace(uid, &format!("<uid-of-{}>", whole_name(object).replace(' ', "-")));
            }
        }
        serde_json::from_str(&text.replace(namespace, "<namespace>"))
            .map(Self)
            .map_err(unreadable)
    }

    pub fn of_kind<K: Resource<Scope = NamespaceResourceScope> + DeserializeOwned>(
        &self,
    ) -> Result<Vec<K>, Unreadable> {
        self.named(K::KIND)
    }

    /// All objects of a kind, sorted by name.
    pub fn named<K: DeserializeOwned>(&self, kind: &str) -> Result<Vec<K>, Unreadable> {
        let mut found: Vec<&Value> = self.0.iter().filter(|object| object["kind"] == kind).collect();
        found.sort_by_key(|object| name(object));
        found
            .into_iter()
            .map(|object| {
                serde_json::from_value(object.clone()).map_err(|source| Unreadable::Object {
                    what: whole_name(object),
                    source,
                })
            })
            .collect()
    }
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn whole_name(object: &Value) -> String {
    format!("{} {}", object["kind"].as_str().unwrap_or("an object"), name(object))
}
