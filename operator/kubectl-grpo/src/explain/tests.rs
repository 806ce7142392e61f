#![allow(clippy::unwrap_used)]

use super::*;
use grpo_contracts::reason::Reason;
use grpo_crds::{GrpoRun, InferencePool, SandboxPool};
use grpo_records::{DropReason, VoidReason};
use kube::CustomResourceExt;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Every reason that users can see.
fn all_reasons() -> BTreeSet<String> {
    let ours = Reason::ALL.iter().map(|reason| reason.text().to_owned());
    let voids = VoidReason::ALL.iter().map(|reason| format!("{reason:?}"));
    let dropped = DropReason::ALL.iter().map(|reason| format!("{reason:?}"));
    ours.chain(voids).chain(dropped).collect()
}

#[test]
fn every_reason_has_one_entry_and_every_entry_is_of_a_reason() {
    let entries = entries();
    let named: Vec<&str> = entries.iter().map(|entry| entry.reason).collect();
    let known: BTreeSet<&str> = named.iter().copied().collect();
    assert_eq!(named.len(), known.len(), "a reason has two entries: {named:?}");
    let reasons = all_reasons();
    let missing: Vec<&String> = reasons
        .iter()
        .filter(|reason| !known.contains(reason.as_str()))
        .collect();
    let unknown: Vec<&&str> = known.iter().filter(|reason| !reasons.contains(**reason)).collect();
    assert!(
        missing.is_empty(),
        "docs/src/troubleshooting.md has no section on {missing:?}"
    );
    assert!(
        unknown.is_empty(),
        "docs/src/troubleshooting.md has sections on {unknown:?}, which nothing gives"
    );
}

#[test]
fn every_entry_has_a_cause_and_a_next_step_in_this_order() {
    for entry in entries().iter().filter(|entry| entry.part != HEALTHY) {
        let at = |words: &str| {
            entry
                .text
                .find(words)
                .unwrap_or_else(|| panic!("{}: no {words}", entry.reason))
        };
        assert!(at("**Cause.** ") < at("**Next step.** "), "{}", entry.reason);
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The schema's description of a field below `spec` or `status`, if the field exists.
fn described<'a>(schema: &'a Value, path: &str) -> Option<&'a str> {
    let mut at = schema;
    for name in path.split('.') {
        let fields = at.get("properties").or_else(|| at["items"].get("properties"));
        at = fields?.get(name)?;
    }
    Some(at["description"].as_str().unwrap_or_default())
}

fn schemas() -> Vec<Value> {
    [GrpoRun::crd(), InferencePool::crd(), SandboxPool::crd()]
        .iter()
        .map(|crd| serde_json::to_value(&crd.spec.versions[0].schema).unwrap()["openAPIV3Schema"].clone())
        .collect()
}

/// Words in back quotes that look like a path of fields, such as `trainer.offload`.
fn paths(text: &str) -> Vec<String> {
    let quoted = text.split('`').skip(1).step_by(2);
    let names = quoted.map(|word| word.split([':', ' ']).next().unwrap_or_default());
    let is_name = |name: &str| {
        name.starts_with(|first: char| first.is_ascii_lowercase()) && name.chars().all(|c| c.is_ascii_alphanumeric())
    };
    let is_path = |word: &&str| word.contains('.') && word.split('.').all(is_name);
    let ends = [".json", ".jinja", ".yaml", ".jsonl", ".toml", ".cfg"];
    let is_file = |word: &&str| ends.iter().any(|end| word.ends_with(end));
    names
        .filter(is_path)
        .filter(|word| !is_file(word))
        .map(str::to_owned)
        .collect()
}

#[test]
fn a_remedy_names_fields_that_exist_and_are_not_refused() {
    let schemas = schemas();
    let mut seen = 0;
    for entry in entries() {
        for path in paths(entry.text) {
            let inside = |schema: &Value| {
                let below = |part: &str| described(&schema["properties"][part], &path).map(str::to_owned);
                let whole = described(schema, &path).map(str::to_owned);
                below("spec").or(below("status")).or(whole)
            };
            let found = schemas.iter().find_map(inside);
            let found = found.unwrap_or_else(|| panic!("{}: no kind has the field {path}", entry.reason));
            assert!(
                !found.contains("Refused: true"),
                "{} recommends {path}, which is refused",
                entry.reason
            );
            seen += 1;
        }
    }
    assert!(seen > 40, "only {seen} fields were found on the page");
}

/// Fields whose every use is refused.
fn refused(schema: &Value, at: &str, found: &mut Vec<String>) {
    let fields = schema.get("properties").or_else(|| schema["items"].get("properties"));
    for (name, field) in fields.and_then(Value::as_object).into_iter().flatten() {
        let path = format!("{at}.{name}");
        if field["description"]
            .as_str()
            .is_some_and(|words| words.contains("Refused: true"))
        {
            found.push(path.trim_start_matches(".spec.").to_owned());
        }
        refused(field, &path, found);
    }
}

#[test]
fn no_message_of_operator_or_driver_recommends_a_refused_field() {
    let mut fields = Vec::new();
    let field = serde_json::json!({"description": "Later. Refused: true; leave it out."});
    let spec = serde_json::json!({"properties": {"trainer": {"properties": {"later": field}}}});
    refused(&serde_json::json!({"properties": {"spec": spec}}), "", &mut fields);
    assert_eq!(fields, ["trainer.later"], "this test finds no refused field");
    schemas().iter().for_each(|schema| refused(schema, "", &mut fields));
    for folder in [
        "operator/core/src",
        "operator/controllers/src",
        "rollout-image/driver/src",
    ] {
        for file in sources(&root().join(folder)) {
            let text = std::fs::read_to_string(&file).unwrap();
            let strings = text
                .lines()
                .filter(|line| line.contains('"') && !line.trim_start().starts_with("//"));
            for line in strings {
                let named = fields.iter().find(|field| line.contains(field.as_str()));
                assert!(named.is_none(), "{}: {line}", file.display());
            }
        }
    }
}

/// Rust files below a folder, except tests.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "tests" {
            found.extend(sources(&path));
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
            found.push(path);
        }
    }
    found
}

#[test]
fn an_answer_has_cause_next_step_and_command_without_marks_of_markdown() {
    let text = explain(Some("storemissing")).unwrap();
    assert!(
        text.starts_with("StoreMissing (The run is Pending)\n\nCause. The Persistent"),
        "{text}"
    );
    assert!(text.contains("\n    kubectl get persistentvolumeclaims\n"), "{text}");
    for mark in ["```", "**", "]("] {
        assert!(!text.contains(mark), "{text}");
    }
    let healthy = explain(Some("SpecValid")).unwrap();
    assert!(healthy.contains("this version executes each field"), "{healthy}");
}

#[test]
fn a_word_that_is_no_reason_gets_the_similar_ones() {
    let error = explain(Some("Store")).unwrap_err().to_string();
    assert!(
        error.contains("StoreMissing") && error.contains("StoreNotEmpty"),
        "{error}"
    );
    let error = explain(Some("Nonsense")).unwrap_err().to_string();
    assert!(error.contains("kubectl grpo explain"), "{error}");
}

#[test]
fn without_a_reason_all_are_listed() {
    let text = explain(None).unwrap();
    let all = all_reasons();
    assert!(
        all.iter().all(|reason| text.contains(&format!("  {reason}\n"))),
        "{text}"
    );
}

#[test]
fn links_are_shown_by_their_words() {
    assert_eq!(
        plain("see [Quota](a.md) and [GPUs](b.md#x), [open"),
        "see Quota and GPUs, [open"
    );
}
