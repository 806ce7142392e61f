//! Manifests that must be refused, each beside a neighbour that must be accepted: one pair for every CEL rule
//! ([`rules`]) and one for every bound ([`bounds`]) of the three kinds. `tests/refusals.rs` judges them by kube's CEL
//! evaluation; against a real API server the same pairs are applied with server-side dry run.

#![allow(dead_code, clippy::unwrap_used, reason = "each test binary uses a part of it")]

pub mod bounds;
pub mod judge;
pub mod rules;

use serde_json::Value;

/// One pair.
#[derive(Clone, Debug)]
pub struct Case {
    /// What is judged, for messages.
    pub name: String,
    /// What is there already, where the pair is about a change.
    pub old: Option<Value>,
    pub refused: Value,
    pub accepted: Value,
    /// Words that the refusal must contain.
    pub says: Vec<String>,
}

/// Manifests that cases are made from, by name.
pub fn bases() -> serde_json::Map<String, Value> {
    serde_yaml_ng::from_str(include_str!("bases.yaml")).unwrap()
}

/// The schema of a kind.
pub fn schema_of(kind: &str) -> Value {
    let crds = grpo_crds::crd::all();
    let crd = crds.iter().find(|crd| crd.spec.names.kind == kind).unwrap();
    grpo_crds::crd::schema(crd).unwrap()
}

/// RFC 7386.
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = serde_json::json!({});
    }
    let fields = target.as_object_mut().unwrap();
    for (name, value) in patch {
        match value {
            Value::Null => {
                fields.remove(name);
            }
            value => merge(fields.entry(name.clone()).or_insert(Value::Null), value),
        }
    }
}

pub fn merged(base: &Value, patch: &Value) -> Value {
    let mut whole = base.clone();
    merge(&mut whole, patch);
    whole
}
