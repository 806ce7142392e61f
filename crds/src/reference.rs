//! The API's reference page, made from the CRDs: every field with its type, default, bounds and text.

use std::fmt::Write;

use serde_json::Value;

use crate::crd::{CrdError, schema};

/// Fields of these names hold Kubernetes' own types: their page is Kubernetes'.
pub const FOREIGN: [&str; 5] = [
    "resources",
    "agentResources",
    "tolerations",
    "imagePullSecrets",
    "conditions",
];

/// The page.
pub fn page() -> Result<String, CrdError> {
    let mut page = String::from(
        "<!-- Written by grpo-crdgen from the types in crds/; do not edit. -->\n\n# API reference\n\n\
         Group `grpo.dev`, version `v1alpha1`. Other groups have kinds of the same names: in doubt ask for `grporuns.grpo.dev`,\n\
         `inferencepools.grpo.dev` and `sandboxpools.grpo.dev`.\n\n\
         A field without a default that is not marked required may be left out. `[]` stands for every item of a list. Lengths are characters;\n\
         periods of time are written `90s`, `30m` or `1h30m`.\n",
    );
    for crd in crate::crd::all() {
        let schema = schema(&crd)?;
        let names = &crd.spec.names;
        let short = names.short_names.iter().flatten().next();
        // Writing to a String does not fail.
        let _ = write!(page, "\n## {}\n\n", names.kind);
        if let Some(short) = short {
            let _ = writeln!(page, "`kubectl get {short}`\n");
        }
        for part in ["spec", "status"] {
            let _ = write!(
                page,
                "### {} {part}\n\n| field | type | default | bounds | what it is |\n|---|---|---|---|---|\n",
                names.kind
            );
            fields(&mut page, part, &schema["properties"][part]);
            rules(&mut page, part, &schema["properties"][part]);
        }
    }
    Ok(page)
}

/// A row for every field below this schema, depth first.
fn fields(page: &mut String, path: &str, schema: &Value) {
    let required: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let default = match field.get("default") {
            Some(Value::Object(_)) => "its fields'".to_owned(),
            Some(value) => code(value),
            None if required.contains(&name.as_str()) => "required".to_owned(),
            None => String::new(),
        };
        let text = cell(field["description"].as_str().unwrap_or_default());
        let _ = writeln!(
            page,
            "| `{path}` | {} | {default} | {} | {text} |",
            kind(field),
            bounds(field)
        );
        if FOREIGN.contains(&name.as_str()) {
            continue;
        }
        match field.get("items") {
            Some(items) => fields(page, &format!("{path}[]"), items),
            None => fields(page, &path, field),
        }
    }
}

/// What the API server asks of the fields together.
fn rules(page: &mut String, part: &str, schema: &Value) {
    let mut found = Vec::new();
    collect(part, schema, &mut found);
    if found.is_empty() {
        return;
    }
    page.push_str("\nThe API server refuses what breaks one of these, in these words:\n\n");
    for (path, words) in found {
        let _ = writeln!(page, "- `{path}`: {words}");
    }
}

fn collect(path: &str, schema: &Value, found: &mut Vec<(String, String)>) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        let words = match (&rule["message"], &rule["messageExpression"]) {
            (Value::String(message), _) => message.clone(),
            (_, Value::String(expression)) => template(expression),
            _ => continue,
        };
        found.push((path.to_owned(), words));
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        collect(&format!("{path}.{name}"), field, found);
    }
    if let Some(items) = schema.get("items") {
        collect(&format!("{path}[]"), items, found);
    }
}

/// `'a is %s'.format([self.a])` as people read it.
fn template(expression: &str) -> String {
    let text = expression.split("'.format(").next().unwrap_or(expression);
    text.trim_start_matches('\'').replace("%s", "…").replace("%%", "%")
}

fn kind(field: &Value) -> String {
    if field["x-kubernetes-int-or-string"] == true {
        return "quantity".to_owned();
    }
    match (
        field["type"].as_str(),
        field.get("items"),
        field.get("additionalProperties"),
    ) {
        (Some("array"), Some(items), _) => format!("list of {}", kind(items)),
        (Some("object"), _, Some(values)) if values.is_object() => format!("map to {}", kind(values)),
        (Some("string"), ..) if field["format"] == "date-time" => "time".to_owned(),
        (Some("string"), ..) if field["pattern"] == crate::common::Period::PATTERN => "period".to_owned(),
        (Some("string"), ..) if field.get("enum").is_some() => "one of".to_owned(),
        (Some(other), ..) => other.to_owned(),
        (None, ..) => String::new(),
    }
}

fn bounds(field: &Value) -> String {
    let number = |key: &str| field.get(key).map(Value::to_string);
    let range = |low: Option<String>, high: Option<String>, unit: &str| match (low, high) {
        (Some(low), Some(high)) if low == high => Some(format!("{low}{unit}")),
        (Some(low), Some(high)) => Some(format!("{low} to {high}{unit}")),
        (Some(low), None) => Some(format!("at least {low}{unit}")),
        (None, Some(high)) => Some(format!("at most {high}{unit}")),
        (None, None) => None,
    };
    let period = field["pattern"] == crate::common::Period::PATTERN;
    let mut all = Vec::new();
    if let Some(values) = field["enum"].as_array() {
        let values = values.iter().filter(|value| !value.is_null());
        all.push(values.map(code).collect::<Vec<_>>().join(", "));
    }
    all.extend(range(number("minimum"), number("maximum"), ""));
    if !period {
        all.extend(range(number("minLength"), number("maxLength"), " characters"));
    }
    all.extend(range(number("minItems"), number("maxItems"), " items"));
    all.extend(range(None, number("maxProperties"), " keys"));
    if let Some(pattern) = field["pattern"].as_str().filter(|_| !period) {
        all.push(format!("`{}`", cell(pattern)));
    }
    all.join("; ")
}

fn code(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    // A cell holds one line.
    format!("`{}`", cell(&text.replace('`', "'").replace('\n', "⏎")))
}

fn cell(text: &str) -> String {
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', "\\|")
}
