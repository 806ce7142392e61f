//! Manifests that test cases are made from, and JSON merge patches of them.

use serde_json::Value;

/// Manifests that cases are made from, by name.
pub fn bases() -> serde_json::Map<String, Value> {
    serde_yaml_ng::from_str(include_str!("bases.yaml")).unwrap()
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
