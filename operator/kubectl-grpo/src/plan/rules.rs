//! Judges a manifest as the API server does, without a server: by the schema and the CEL rules of this version's CRDs.
//!
//! A cluster with another version of the CRDs may judge differently.

use super::error::PlanError;
use kube::core::cel::{CompiledSchema, ErrorKind, Validator, compile_schema};
use regex::Regex;
use serde_json::Value;
use std::collections::BTreeMap;

/// The schemas of our kinds, each compiled when it is first needed.
pub struct Rules {
    schemas: BTreeMap<String, Value>,
    compiled: BTreeMap<String, CompiledSchema>,
    validator: Validator,
}

/// The judgement on a manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// Reasons for which the API server would refuse it.
    pub refused: Vec<String>,
    /// Rules that could not be evaluated here.
    pub unchecked: Vec<String>,
}

impl Rules {
    pub fn new() -> Result<Self, PlanError> {
        let mut schemas = BTreeMap::new();
        for crd in grpo_crds::crd::all() {
            schemas.insert(crd.spec.names.kind.clone(), grpo_crds::crd::schema(&crd)?);
        }
        Ok(Self {
            schemas,
            compiled: BTreeMap::new(),
            validator: Validator::new(),
        })
    }

    /// Whether manifests of this kind can be judged here.
    pub fn knows(&self, kind: &str) -> bool {
        self.schemas.contains_key(kind)
    }

    /// The manifest without empty fields that may not be null, which the API server leaves out.
    pub fn without_nulls(&self, manifest: &Value) -> Value {
        let kind = manifest["kind"].as_str().unwrap_or_default();
        let schema = self.schemas.get(kind);
        schema.map_or_else(|| manifest.clone(), |schema| without_nulls(schema, manifest))
    }

    /// Judges a manifest from [`Rules::without_nulls`].
    pub fn judge(&mut self, manifest: &Value) -> Judged {
        let kind = manifest["kind"].as_str().unwrap_or_default();
        let Some(schema) = self.schemas.get(kind) else {
            return Judged::default();
        };
        let mut judged = Judged::default();
        let version = format!("{}/v1alpha1", grpo_crds::GROUP);
        if manifest["apiVersion"] != version {
            judged.refused.push(format!("apiVersion: this version knows {version}"));
        }
        if manifest["metadata"]["name"].is_null() {
            judged.refused.push("metadata.name: required value".to_owned());
        }
        let manifest = with_defaults(schema, manifest);
        for (field, value) in manifest.as_object().into_iter().flatten() {
            match field.as_str() {
                "apiVersion" | "kind" | "metadata" | "status" => {}
                "spec" => bounds("spec", &schema["properties"]["spec"], value, &mut judged),
                other => judged.refused.push(format!("{other}: unknown field")),
            }
        }
        if manifest["spec"].is_null() {
            judged.refused.push("spec: required value".to_owned());
        }
        // The API server evaluates no rule on a value that its schema refuses.
        if judged.refused.is_empty() {
            let compiled = self
                .compiled
                .entry(kind.to_owned())
                .or_insert_with(|| compile_schema(schema));
            let errors = self.validator.validate_compiled(compiled, &manifest, None);
            for error in errors.err().into_iter().flatten() {
                match error.kind {
                    ErrorKind::ValidationFailure => judged.refused.push(at(&error.field_path, &error.message)),
                    _ => judged.unchecked.push(at(&error.field_path, &error.message)),
                }
            }
        }
        judged
    }
}

fn at(path: &str, message: &str) -> String {
    match path {
        "" => message.to_owned(),
        path => format!("{path}: {message}"),
    }
}

fn without_nulls(schema: &Value, value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(|item| without_nulls(&schema["items"], item)).collect(),
        Value::Object(fields) => {
            let of = |name: &String| match &schema["properties"][name] {
                Value::Null => &schema["additionalProperties"],
                known => known,
            };
            let kept = fields
                .iter()
                .filter(|(name, value)| !value.is_null() || !of(name).is_object() || of(name)["nullable"] == true);
            kept.map(|(name, value)| (name.clone(), without_nulls(of(name), value)))
                .collect()
        }
        other => other.clone(),
    }
}

/// The manifest with the schema's defaults for missing fields, and with whole numbers as floats where the schema has
/// `number`, as the API server reads them.
fn with_defaults(schema: &Value, value: &Value) -> Value {
    match value {
        Value::Number(number) if schema["type"] == "number" => number.as_f64().into(),
        Value::Array(items) => items.iter().map(|item| with_defaults(&schema["items"], item)).collect(),
        Value::Object(fields) => {
            let mut whole = fields.clone();
            for (name, field) in schema["properties"].as_object().into_iter().flatten() {
                let given = whole
                    .get(name)
                    .filter(|value| !value.is_null() || field["nullable"] == true);
                let found = given.or(Some(&field["default"]).filter(|default| !default.is_null()));
                if let Some(found) = found {
                    let found = with_defaults(field, found);
                    whole.insert(name.clone(), found);
                }
            }
            for (name, value) in &mut whole {
                if schema["properties"][name].is_null() && schema["additionalProperties"].is_object() {
                    *value = with_defaults(&schema["additionalProperties"], value);
                }
            }
            Value::Object(whole)
        }
        other => other.clone(),
    }
}

fn bounds(path: &str, schema: &Value, value: &Value, judged: &mut Judged) {
    if schema["x-kubernetes-preserve-unknown-fields"] == true && schema["properties"].is_null() {
        return;
    }
    if !is_of_type(schema, value) {
        let wanted = schema["type"].as_str().unwrap_or_default();
        judged.refused.push(format!("{path}: {value} is not of type {wanted}"));
        return;
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        let allowed: Vec<String> = allowed.iter().map(Value::to_string).collect();
        judged
            .refused
            .push(format!("{path}: {value} is not one of {}", allowed.join(", ")));
    }
    let limit = |key: &str| schema[key].as_f64();
    let mut size = |what: &str, size: f64, low: &str, high: &str| {
        let bound = |key: &str| limit(key).map_or_else(|| "any".to_owned(), |limit| limit.to_string());
        if limit(low).is_some_and(|low| size < low) || limit(high).is_some_and(|high| size > high) {
            let range = format!("from {} to {}", bound(low), bound(high));
            judged
                .refused
                .push(format!("{path}: {what} {size} is not in the range {range}"));
        }
    };
    match value {
        Value::Number(number) => size("the value", number.as_f64().unwrap_or(f64::NAN), "minimum", "maximum"),
        Value::String(text) => {
            size("the length", text.chars().count() as f64, "minLength", "maxLength");
            match schema["pattern"].as_str().map(Regex::new) {
                Some(Ok(pattern)) if !pattern.is_match(text) => {
                    judged
                        .refused
                        .push(format!("{path}: {text:?} does not match {pattern}"));
                }
                Some(Err(error)) => judged.unchecked.push(format!("{path}: {error}")),
                _ => {}
            }
        }
        Value::Array(items) => {
            size("the number of items", items.len() as f64, "minItems", "maxItems");
            for (index, item) in items.iter().enumerate() {
                bounds(&format!("{path}[{index}]"), &schema["items"], item, judged);
            }
        }
        Value::Object(fields) => {
            size(
                "the number of keys",
                fields.len() as f64,
                "minProperties",
                "maxProperties",
            );
            let required = schema["required"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str);
            let missing = required.filter(|name| !fields.contains_key(*name));
            judged
                .refused
                .extend(missing.map(|name| format!("{path}.{name}: required value")));
            for (name, value) in fields {
                let path = format!("{path}.{name}");
                match (&schema["properties"][name], &schema["additionalProperties"]) {
                    (Value::Null, Value::Object(_)) => bounds(&path, &schema["additionalProperties"], value, judged),
                    (Value::Null, _) if schema["x-kubernetes-preserve-unknown-fields"] == true => {}
                    (Value::Null, _) => judged.refused.push(format!("{path}: unknown field")),
                    (field, _) => bounds(&path, field, value, judged),
                }
            }
        }
        Value::Bool(_) | Value::Null => {}
    }
}

fn is_of_type(schema: &Value, value: &Value) -> bool {
    if value.is_null() {
        return schema["nullable"] == true;
    }
    if schema["x-kubernetes-int-or-string"] == true {
        return value.is_string() || value.is_i64() || value.is_u64();
    }
    match schema["type"].as_str() {
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => true,
    }
}

#[cfg(test)]
mod tests;
