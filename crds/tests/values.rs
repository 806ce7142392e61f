//! The chart's values and their schema say the same, and the schema says what every value is. That helm judges by it is
//! tested with helm.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::Value;

fn chart() -> (Value, Value) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/grpo-operator");
    let read = |file: &str| fs::read_to_string(folder.join(file)).unwrap();
    (
        serde_yaml_ng::from_str(&read("values.yaml")).unwrap(),
        serde_json::from_str(&read("values.schema.json")).unwrap(),
    )
}

fn keys(value: &Value) -> BTreeSet<&String> {
    value.as_object().into_iter().flat_map(|fields| fields.keys()).collect()
}

#[test]
fn every_value_is_in_the_schema_and_every_property_of_the_schema_has_a_value() {
    let (values, schema) = chart();
    let global = "global".to_owned();
    let mut known = keys(&schema["properties"]);
    assert!(known.remove(&global), "helm gives every chart a value called global");
    assert_eq!(keys(&values), known);
    assert_eq!(
        keys(&values["images"]),
        keys(&schema["properties"]["images"]["properties"])
    );
}

#[test]
fn every_property_is_described_and_nothing_else_is_allowed() {
    fn walk(path: &str, schema: &Value, wrong: &mut Vec<String>) {
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            if property["description"].as_str().is_none_or(|text| !text.ends_with('.')) {
                wrong.push(format!("{path} has no description"));
            }
            walk(&path, property, wrong);
        }
        // A parent chart's values are not ours to know.
        if schema["type"] == "object" && schema.get("additionalProperties").is_none() && path != "values.global" {
            wrong.push(format!("{path} allows anything"));
        }
        if let Some(items) = schema.get("items") {
            walk(&format!("{path}[]"), items, wrong);
        }
    }
    let (_, schema) = chart();
    let mut wrong = Vec::new();
    walk("values", &schema, &mut wrong);
    for (name, definition) in schema["$defs"].as_object().unwrap() {
        walk(&format!("$defs.{name}"), definition, &mut wrong);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_value_is_explained_where_people_change_it() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/grpo-operator/values.yaml");
    let text = fs::read_to_string(file).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let top = |line: &str| line.starts_with(|first: char| first.is_ascii_lowercase());
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| top(line)) {
        // One comment may stand above several that belong together.
        let above = lines[..at].iter().rev().take_while(|line| !line.is_empty());
        assert!(
            above.clone().any(|line| line.starts_with('#')),
            "no comment above {line}"
        );
    }
}
