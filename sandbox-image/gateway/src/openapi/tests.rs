//! The book's page of the API, `docs/src/gateway-api.md`, is written from the description: `make golden`.

use std::fmt::Write as _;
use std::path::Path;

use super::*;

const ABOUT: &str = "\
# The gateway's API

<!-- Made from the gateway's types by `make golden`. -->

The calls of a SandboxPool's gateway, `http://<pool>-gateway:8080`. Bodies are JSON, with field names in camelCase, unless a call says
otherwise. Calls below `/v1/` need a service-account token for the audience `gateway.grpo.dev` ([Security](security.md#tokens)). Every error
has the body [`ErrorBody`](#errorbody), also one of the HTTP library, such as an unknown path. Every 503 has `Retry-After`. How the queue,
losses and relays work: [Contracts between the processes](contracts.md). `GET /openapi.json` returns this description as OpenAPI 3.1.
";

/// The name behind a reference to a type.
fn referred(schema: &Value) -> Option<&str> {
    schema.get("$ref")?.as_str()?.rsplit('/').next()
}

fn link(name: &str) -> String {
    format!("[`{name}`](#{})", name.to_lowercase())
}

/// The type of a field or body in a table's cell.
fn kind(schema: &Value) -> String {
    if let Some(name) = referred(schema) {
        return link(name);
    }
    let parts = ["anyOf", "allOf", "oneOf"]
        .into_iter()
        .find_map(|key| schema[key].as_array());
    if let Some(parts) = parts {
        let parts = parts.iter().filter(|part| part["type"] != "null");
        return parts.map(kind).collect::<Vec<_>>().join(" or ");
    }
    if let Some(value) = schema.get("const") {
        return format!("`{value}`");
    }
    if let Some(values) = schema["enum"].as_array() {
        let values = values
            .iter()
            .filter_map(Value::as_str)
            .map(|value| format!("`{value}`"));
        return values.collect::<Vec<_>>().join(", ");
    }
    let names = match &schema["type"] {
        Value::String(name) => vec![name.as_str()],
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    match names.into_iter().find(|name| *name != "null") {
        Some("array") => format!("list of {}", kind(&schema["items"])),
        Some("object") => match schema.get("additionalProperties") {
            Some(values) if values.is_object() => format!("map to {}", kind(values)),
            _ => "object".to_owned(),
        },
        Some(name) => name.to_owned(),
        None => "any".to_owned(),
    }
}

/// A description as one line of a table.
fn line(schema: &Value) -> String {
    let text = schema["description"].as_str().unwrap_or_default();
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', "\\|")
}

/// The type of a body or an answer; none without content.
fn content(carrier: &Value) -> Option<String> {
    let (media, content) = carrier["content"].as_object()?.iter().next()?;
    Some(match content.get("schema") {
        Some(schema) => kind(schema),
        None => format!("`{media}`"),
    })
}

fn call(page: &mut String, method: &str, path: &str, told: &Value) {
    let _ = write!(
        page,
        "\n### `{} {path}`\n\n{}\n\n",
        method.to_uppercase(),
        told["summary"].as_str().unwrap()
    );
    for parameter in told["parameters"].as_array().into_iter().flatten() {
        let optional = if parameter["required"] == true {
            ""
        } else {
            ", optional"
        };
        let (name, place) = (parameter["name"].as_str().unwrap(), parameter["in"].as_str().unwrap());
        let _ = writeln!(page, "- `{name}` ({place}{optional}): {}", line(parameter));
    }
    if let Some(body) = content(&told["requestBody"]) {
        let _ = writeln!(page, "- Body: {body}");
    }
    for (status, answer) in told["responses"].as_object().unwrap() {
        let what = match content(answer) {
            Some(body) if !body.contains("errorbody") => format!("{body}. {}", line(answer)),
            _ => line(answer),
        };
        let _ = writeln!(page, "- {status}: {what}");
    }
}

fn type_of(page: &mut String, name: &str, schema: &Value) {
    let _ = writeln!(page, "\n### {name}\n\n{}", line(schema));
    let cases = schema["oneOf"].as_array();
    if let Some(fields) = schema["properties"].as_object() {
        let required = schema["required"].as_array();
        let is_required = |name: &str| required.is_some_and(|all| all.iter().any(|one| one == name));
        page.push_str("\n| field | type | meaning |\n|---|---|---|\n");
        for (field, schema) in fields {
            let optional = if is_required(field) { "" } else { ", optional" };
            let _ = writeln!(page, "| `{field}` | {}{optional} | {} |", kind(schema), line(schema));
        }
    } else if let Some(cases) = cases.filter(|cases| cases.iter().all(|case| case.get("const").is_some())) {
        page.push_str("\n| value | meaning |\n|---|---|\n");
        for case in cases {
            let _ = writeln!(page, "| `{}` | {} |", case["const"].as_str().unwrap(), line(case));
        }
    } else {
        let _ = writeln!(page, "\n{}", kind(schema));
    }
}

fn page(document: &Value) -> String {
    let mut page = ABOUT.to_owned();
    page.push_str("\n## Calls\n");
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, told) in methods.as_object().unwrap() {
            call(&mut page, method, path, told);
        }
    }
    page.push_str("\n## Types\n");
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        type_of(&mut page, name, schema);
    }
    page
}

#[test]
fn golden_the_books_page_of_the_api_is_what_the_types_say() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/gateway-api.md");
    let wanted = page(&document());
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&file, &wanted).unwrap();
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        found == wanted,
        "docs/src/gateway-api.md is not what the types say: run `make golden`"
    );
}
