use super::*;
use serde_json::json;

fn pool(change: impl FnOnce(&mut Value)) -> Value {
    let mut pool = json!({
        "apiVersion": "grpo.dev/v1alpha1", "kind": "SandboxPool", "metadata": {"name": "boxes"}, "spec": {"max": 4},
    });
    change(&mut pool);
    pool
}

fn refused(change: impl FnOnce(&mut Value)) -> Vec<String> {
    let mut rules = Rules::new().unwrap();
    let read = rules.without_nulls(&pool(change));
    rules.judge(&read).refused
}

#[test]
fn a_sound_manifest_is_accepted_and_every_rule_is_evaluated() {
    assert_eq!(Rules::new().unwrap().judge(&pool(|_| {})), Judged::default());
}

#[test]
fn the_schema_refuses_bounds_types_unknown_and_missing_fields_with_their_paths() {
    for (words, found) in [
        ("spec.max: the value 0", refused(|pool| pool["spec"]["max"] = json!(0))),
        (
            "spec.max: \"four\" is not of type integer",
            refused(|pool| pool["spec"]["max"] = json!("four")),
        ),
        (
            "spec.maximum: unknown field",
            refused(|pool| pool["spec"]["maximum"] = json!(4)),
        ),
        ("spec.max: required value", refused(|pool| pool["spec"] = json!({}))),
        ("spec: required value", refused(|pool| pool["spec"] = Value::Null)),
        (
            "metadata.name: required value",
            refused(|pool| pool["metadata"] = json!({})),
        ),
        (
            "this version knows grpo.dev/v1alpha1",
            refused(|pool| pool["apiVersion"] = json!("grpo.dev/v2")),
        ),
        ("specs: unknown field", refused(|pool| pool["specs"] = json!({}))),
    ] {
        assert!(
            found.iter().any(|said| said.contains(words)),
            "wanted {words:?}, got {found:?}"
        );
    }
}

#[test]
fn rules_in_cel_see_the_defaults_that_the_api_server_fills_in() {
    let found = refused(|pool| pool["spec"]["warm"] = json!({"max": 5}));
    assert!(found.iter().any(|said| said.contains("warm.max")), "{found:?}");
    let found = refused(|pool| pool["metadata"]["name"] = json!("Boxes.of.mine"));
    assert!(found.iter().any(|said| said.contains("40 characters")), "{found:?}");
}

#[test]
fn an_empty_field_is_left_out_as_the_api_server_leaves_it_out() {
    let rules = Rules::new().unwrap();
    let read = rules.without_nulls(&pool(|pool| {
        pool["spec"] = json!({"max": 4, "warm": null, "unknown": null});
    }));
    assert_eq!(read["spec"], json!({"max": 4, "unknown": null}));
    let missing = refused(|pool| pool["spec"]["max"] = Value::Null);
    assert!(
        missing.iter().any(|said| said.contains("spec.max: required value")),
        "{missing:?}"
    );
}
