//! Judges a manifest as the API server does: bounds, then CEL. The bounds are looked at here, the rules by kube's CEL
//! evaluation.

use std::collections::BTreeMap;

use kube::core::cel::{CompiledSchema, ErrorKind, ValidationErrors, Validator, compile_schema};
use regex::Regex;
use serde_json::Value;

use super::schema_of;

/// Schemas of the three kinds, compiled once.
pub struct Judge {
    kinds: BTreeMap<&'static str, (Value, CompiledSchema)>,
    validator: Validator,
}

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Broken {
    pub kind: String,
    /// Path in the schema: `[]` for any item.
    pub path: String,
    pub rule: String,
}

impl Judge {
    pub fn new() -> Self {
        let compiled = |kind| {
            let schema = schema_of(kind);
            let compiled = compile_schema(&schema);
            (kind, (schema, compiled))
        };
        Self {
            kinds: ["GrpoRun", "InferencePool", "SandboxPool"].map(compiled).into(),
            validator: Validator::new(),
        }
    }

    /// What is wrong with a manifest, in words, and which rules it breaks.
    pub fn refusal(&self, manifest: &Value, old: Option<&Value>) -> Result<(), (String, Vec<Broken>)> {
        let kind = manifest["kind"].as_str().unwrap();
        let (schema, compiled) = &self.kinds[kind];
        let mut wrong = Vec::new();
        bounds("spec", &schema["properties"]["spec"], &manifest["spec"], &mut wrong);
        if !wrong.is_empty() {
            return Err((wrong.join("; "), Vec::new()));
        }
        let manifest = with_floats(schema, manifest);
        let old = old.map(|old| with_floats(schema, old));
        let judged = self.validator.validate_compiled(compiled, &manifest, old.as_ref());
        judged.map_err(|errors| (errors.to_string(), broken(kind, &errors)))
    }
}

/// The API server reads a whole number as a float where the schema says `number`; kube's evaluation takes it as it is
/// written.
fn with_floats(schema: &Value, value: &Value) -> Value {
    match value {
        Value::Number(number) if schema["type"] == "number" => number.as_f64().into(),
        Value::Array(items) => items.iter().map(|item| with_floats(&schema["items"], item)).collect(),
        Value::Object(fields) => {
            let one =
                |(name, value): (&String, &Value)| (name.clone(), with_floats(&schema["properties"][name], value));
            Value::Object(fields.iter().map(one).collect())
        }
        other => other.clone(),
    }
}

fn broken(kind: &str, errors: &ValidationErrors) -> Vec<Broken> {
    let index = Regex::new(r"\[[0-9]+\]").unwrap();
    let one = |error: &kube::core::cel::ValidationError| {
        assert_eq!(error.kind, ErrorKind::ValidationFailure, "{error:?}");
        Broken {
            kind: kind.to_owned(),
            path: index.replace_all(&error.field_path, "[]").into_owned(),
            rule: error.rule.clone(),
        }
    };
    errors.iter().map(one).collect()
}

fn bounds(path: &str, schema: &Value, value: &Value, wrong: &mut Vec<String>) {
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        wrong.push(format!("{path}: Unsupported value: {value}"));
    }
    let limit = |key: &str| schema[key].as_f64();
    let mut size = |what: &str, size: f64, low: &str, high: &str| {
        if limit(low).is_some_and(|low| size < low) || limit(high).is_some_and(|high| size > high) {
            wrong.push(format!("{path}: {what} {size} is outside {low} and {high}"));
        }
    };
    match value {
        Value::Number(number) => size("value", number.as_f64().unwrap(), "minimum", "maximum"),
        Value::String(text) => {
            size("length", text.chars().count() as f64, "minLength", "maxLength");
            if let Some(pattern) = schema["pattern"].as_str()
                && !Regex::new(pattern).unwrap().is_match(text)
            {
                wrong.push(format!("{path}: {text:?} should match {pattern}"));
            }
        }
        Value::Array(items) => {
            size("length", items.len() as f64, "minItems", "maxItems");
            for (index, item) in items.iter().enumerate() {
                bounds(&format!("{path}[{index}]"), &schema["items"], item, wrong);
            }
        }
        Value::Object(fields) => {
            size("number of keys", fields.len() as f64, "minProperties", "maxProperties");
            for name in schema["required"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
            {
                if !fields.contains_key(name) {
                    wrong.push(format!("{path}.{name}: Required value"));
                }
            }
            for (name, value) in fields {
                match (&schema["properties"][name], &schema["additionalProperties"]) {
                    (Value::Null, Value::Object(_)) => {
                        bounds(&format!("{path}.{name}"), &schema["additionalProperties"], value, wrong);
                    }
                    (Value::Null, _) => wrong.push(format!("{path}.{name}: unknown field")),
                    (schema, _) => bounds(&format!("{path}.{name}"), schema, value, wrong),
                }
            }
        }
        Value::Bool(_) | Value::Null => {}
    }
}
