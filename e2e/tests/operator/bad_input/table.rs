//! The table of wrong manifests, and what each entry means as requests.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::manifests::{bases, merge, merged};

/// Where all wrong manifests are put.
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
    pub after: Option<After>,
    /// Put there twice: what a writer says of other writers is kept only the second time.
    #[serde(default)]
    pub twice: bool,
    /// There, status and all, before the operator starts. What a status says of attempts is believed only by an
    /// operator that has not counted any of this run itself: later, a writer races with its first look at the run, and
    /// loses.
    #[serde(default)]
    pub before: bool,
    /// Made while the CRDs take anything.
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

/// A field of another object that has to be there first.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct After {
    pub kind: String,
    pub name: String,
    pub field: String,
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

    /// What is there after the change, from what the API server holds.
    pub fn changed(&self, there: &Value) -> Option<Value> {
        self.change.as_ref().map(|change| merged(there, change))
    }

    /// Content type and bytes of a body that is no manifest.
    pub fn body(&self) -> Option<(&str, Vec<u8>)> {
        let mut raw = self.raw.clone()?;
        for repeat in self.repeat.iter().filter(|repeat| repeat.at == "/raw") {
            raw.push_str(&repeat.of.repeat(repeat.times));
        }
        Some((self.content.as_deref().unwrap_or("application/json"), raw.into_bytes()))
    }
}

impl Repeat {
    /// A list of texts at the end of a pointer that says `inline`, a map at `labels`, otherwise a text.
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
