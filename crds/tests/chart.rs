//! What is derived from the types and checked in: it must be what the types say.

use std::{fs, path::Path};

#[test]
fn the_chart_holds_the_crds_that_the_types_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/grpo-operator/crds");
    let documents = grpo_crds::crd::documents().unwrap();
    for (file, wanted) in &documents {
        let found = fs::read_to_string(folder.join(file)).unwrap_or_default();
        assert!(
            &found == wanted,
            "{file} is not what the types say: run `cargo run -p grpo-crds --bin grpo-crdgen`"
        );
    }
    assert_eq!(
        fs::read_dir(&folder).unwrap().count(),
        documents.len(),
        "the chart holds a CRD that no type describes"
    );
}

#[test]
fn what_yaml_1_1_takes_for_a_truth_value_is_quoted() {
    for (file, yaml) in grpo_crds::crd::documents().unwrap() {
        let bare = ["- Off", "- On", "- Yes", "- No"].map(|word| yaml.lines().any(|line| line.trim_start() == word));
        assert_eq!(bare, [false; 4], "{file}");
    }
}

#[test]
fn the_book_holds_the_reference_that_the_types_say() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/src/reference.md");
    assert!(
        fs::read_to_string(page).unwrap_or_default() == grpo_crds::reference::page().unwrap(),
        "docs/src/reference.md is not what the types say: run `cargo run -p grpo-crds --bin grpo-crdgen`"
    );
}

#[test]
fn every_field_of_a_spec_says_what_it_is() {
    for line in grpo_crds::reference::page()
        .unwrap()
        .lines()
        .filter(|line| line.starts_with("| `spec."))
    {
        assert!(!line.ends_with("|  |"), "no text: {line}");
    }
}

#[test]
fn every_crd_is_small_enough_for_client_side_apply() {
    for crd in grpo_crds::crd::all() {
        let bytes = serde_json::to_string(&crd).unwrap().len();
        assert!(bytes < 256 * 1024, "{} has {bytes} bytes", crd.metadata.name.unwrap());
    }
}

#[test]
fn every_text_list_and_map_of_a_spec_is_bounded() {
    for crd in grpo_crds::crd::all() {
        let crd = serde_json::to_value(&crd).unwrap();
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        let mut unbounded = Vec::new();
        collect_unbounded("spec", schema, &mut unbounded);
        assert!(unbounded.is_empty(), "{unbounded:#?}");
    }
}

/// Types of Kubernetes' own are bounded by the API server where they are used.
const FOREIGN: [&str; 6] = [
    ".resources.",
    ".agentResources.",
    ".tolerations.",
    ".imagePullSecrets.",
    ".nodeSelector.",
    ".metadata.",
];

fn collect_unbounded(path: &str, schema: &serde_json::Value, unbounded: &mut Vec<String>) {
    let here = format!("{path}.");
    if FOREIGN.iter().any(|foreign| here.contains(foreign)) {
        return;
    }
    let has = |key: &str| schema.get(key).is_some();
    match schema["type"].as_str() {
        Some("string") if !has("maxLength") && !has("enum") => unbounded.push(format!("{path}: no maxLength")),
        Some("array") if !has("maxItems") => unbounded.push(format!("{path}: no maxItems")),
        Some("integer" | "number") if !has("maximum") && !path.ends_with("betas[]") => {
            unbounded.push(format!("{path}: no maximum"))
        }
        _ => {}
    }
    if let Some(properties) = schema["properties"].as_object() {
        for (name, schema) in properties {
            collect_unbounded(&format!("{path}.{name}"), schema, unbounded);
        }
    }
    if has("items") {
        collect_unbounded(&format!("{path}[]"), &schema["items"], unbounded);
    }
}
