//! Every CEL rule and every bound: what it is for is refused, its neighbour is accepted, and the words help.

use std::collections::BTreeSet;

use crate::support::{
    Case, bases, bounds,
    judge::{Broken, Judge},
    merged, rules, schema_of,
};
use serde_json::Value;

#[test]
fn the_bases_are_accepted() {
    let judge = Judge::new();
    for (name, base) in bases() {
        assert_eq!(judge.refusal(&base, None), Ok(()), "{name}");
    }
}

/// The cases of fields that no process executes say who refuses them: the operator refuses what the rules accept.
#[test]
fn the_rules_refuse_of_what_is_not_executed_what_its_cases_say_and_accept_the_rest() {
    let cases: Vec<Value> =
        serde_yaml_ng::from_str(include_str!("../../libs/contracts/tests/unsupported.yaml")).unwrap();
    let (judge, bases) = (Judge::new(), bases());
    for case in cases {
        let base = &bases[case["base"].as_str().unwrap()];
        let run = merged(base, &serde_json::json!({"spec": case["patch"]}));
        let refused = judge.refusal(&run, None).is_err();
        assert_eq!(refused, case["by"] == "ApiServer", "{}", case["what"]);
    }
}

/// Judges a pair, and says which rules the refused one breaks.
fn judged(judge: &Judge, case: &Case) -> Vec<Broken> {
    let accepted = judge.refusal(&case.accepted, case.old.as_ref());
    assert_eq!(accepted, Ok(()), "{}: the neighbour", case.name);
    let Err((words, broken)) = judge.refusal(&case.refused, case.old.as_ref()) else {
        panic!("{}: accepted\n{:#}", case.name, case.refused["spec"]);
    };
    for wanted in &case.says {
        assert!(
            words.contains(wanted.as_str()),
            "{}: wanted {wanted:?}, got {words}",
            case.name
        );
    }
    broken
}

#[test]
fn every_rule_refuses_what_it_is_for_and_accepts_the_neighbour() {
    let judge = Judge::new();
    let broken: BTreeSet<Broken> = rules::cases().iter().flat_map(|case| judged(&judge, case)).collect();
    let mut without = Vec::new();
    for kind in ["GrpoRun", "InferencePool", "SandboxPool"] {
        collect(kind, "", &schema_of(kind), &broken, &mut without);
    }
    assert!(
        without.is_empty(),
        "rules without a case in rules.yaml:\n{}",
        without.join("\n")
    );
}

fn collect(kind: &str, path: &str, schema: &Value, broken: &BTreeSet<Broken>, without: &mut Vec<String>) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        let rule = Broken {
            kind: kind.to_owned(),
            path: path.to_owned(),
            rule: rule["rule"].as_str().unwrap().to_owned(),
        };
        if !broken.contains(&rule) {
            without.push(format!("{kind} {path}: {}", rule.rule));
        }
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        collect(kind, &path, field, broken, without);
    }
    if let Some(items) = schema.get("items") {
        collect(kind, &format!("{path}[]"), items, broken, without);
    }
}

#[test]
fn every_bound_refuses_one_value_more_and_accepts_the_last_one() {
    let judge = Judge::new();
    let cases = bounds::cases(&judge);
    for case in &cases {
        judged(&judge, case);
    }
    assert!(cases.len() > 500, "{} bounds", cases.len());
}
