//! The table of wrong manifests, and the requests of each entry.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::manifests::{bases, merge, merged};

/// The namespace of all wrong manifests.
pub const NAMESPACE: &str = "bad";

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub enum RefusedBy {
    Schema,
    Rule,
    Server,
    Operator,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Entry {
    pub what: String,
    base: String,
    #[serde(default)]
    patch: Value,
    #[serde(default)]
    repeat: Vec<Repeat>,
    change: Option<Value>,
    pub status: Option<Value>,
    pub raw: Option<String>,
    #[serde(rename = "as")]
    content: Option<String>,
    #[serde(default)]
    pub beside: Vec<Value>,
    /// Sent twice: the API server keeps a writer's text about other writers only the second time.
    #[serde(default)]
    pub twice: bool,
    /// Exists, with its status, before the operator starts. The operator trusts the attempts in a status only if it has
    /// not counted any of this run itself: a later writer would race with its first look at the run, and lose.
    #[serde(default)]
    pub before: bool,
    /// Created while the CRDs accept anything.
    #[serde(default)]
    pub stale: bool,
    pub refused_by: RefusedBy,
    pub condition: Option<String>,
    pub reason: Option<String>,
    /// The reason of an event that explains it.
    pub event: Option<String>,
    pub says: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Repeat {
    at: String,
    times: usize,
    of: String,
}

pub fn entries() -> Vec<Entry> {
    serde_yaml_ng::from_str(include_str!("../bad_input.yaml")).unwrap()
}

impl Entry {
    /// The manifest, under a name of its own.
    pub fn manifest(&self, number: usize) -> Value {
        let mut manifest = bases()[&self.base].clone();
        manifest["metadata"] = json!({"name": format!("bad-{number}"), "namespace": NAMESPACE});
        if !self.patch.is_null() {
            merge(&mut manifest, &self.patch);
        }
        for repeat in self.repeat.iter().filter(|repeat| repeat.at != "/raw") {
            repeat.put(&mut manifest);
        }
        manifest
    }

    /// The object after the change, from the API server's current one.
    pub fn changed(&self, there: &Value) -> Option<Value> {
        self.change.as_ref().map(|change| merged(there, change))
    }

    /// Content type and bytes of a body that is not a manifest.
    pub fn body(&self) -> Option<(&str, Vec<u8>)> {
        let mut raw = self.raw.clone()?;
        for repeat in self.repeat.iter().filter(|repeat| repeat.at == "/raw") {
            raw.push_str(&repeat.of.repeat(repeat.times));
        }
        Some((self.content.as_deref().unwrap_or("application/json"), raw.into_bytes()))
    }
}

impl Repeat {
    /// Puts a list of texts at a pointer that ends in `inline`, a map at `labels`, otherwise a text.
    fn put(&self, manifest: &mut Value) {
        let one = |n: usize| self.of.replace("{n}", &n.to_string());
        let value = match self.at.rsplit('/').next() {
            Some("inline") => Value::Array((0..self.times).map(|n| one(n).into()).collect()),
            Some("labels") => Value::Object((0..self.times).map(|n| (one(n), "a".into())).collect()),
            _ => Value::String(self.of.repeat(self.times)),
        };
        let mut place = manifest;
        for part in self.at.split('/').skip(1) {
            if place.is_null() {
                *place = json!({});
            }
            place = &mut place[part];
        }
        *place = value;
    }
}
