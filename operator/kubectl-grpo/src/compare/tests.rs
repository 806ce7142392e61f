#![allow(clippy::unwrap_used)]

use super::*;
use serde_json::json;

fn run(name: &str, spec: Value, status: Value) -> GrpoRun {
    let mut full = json!({
        "model": {"image": {"reference": "model:1"}},
        "tasks": {"train": {"dataset": {"image": {"reference": "tasks:1", "path": "train.jsonl"}}}},
        "agent": {"bash": {}},
        "rollout": {"iterations": 4, "prompts": 8, "samples": 8},
        "store": {"persistentVolumeClaim": {"claimName": "runs"}},
    });
    for (field, value) in spec.as_object().unwrap() {
        full[field] = value.clone();
    }
    let object = json!({
        "apiVersion": "grpo.dev/v1alpha1", "kind": "GrpoRun",
        "metadata": {"name": name, "namespace": "team"}, "spec": full, "status": status,
    });
    serde_json::from_value(object).unwrap()
}

fn evaluated(rates: &[(&str, f64, u32)]) -> Value {
    let all = rates.iter().map(|(weights, rate, episodes)| {
        json!({"set": "heldout", "weights": weights, "resolvedRate": rate, "episodes": episodes})
    });
    json!({
        "phase": "Succeeded",
        "progress": {
            "iteration": 4, "iterations": 4, "resolvedRate": 0.5, "reward": 0.5, "weights": "l1-v4",
            "evaluations": all.collect::<Vec<_>>(),
        },
    })
}

#[test]
fn only_fields_that_differ_are_shown_and_an_absent_one_is_a_dash() {
    let one = run("one", json!({"seed": 1}), json!({}));
    let two = run("two", json!({"seed": 2, "priorityClassName": "high"}), json!({}));
    let rows = differences(&[one, two]);
    let shown: Vec<[&str; 3]> = rows.iter().map(|row| [&*row[0], &*row[1], &*row[2]]).collect();
    assert_eq!(shown, [["priorityClassName", "-", "high"], ["seed", "1", "2"]]);
}

#[test]
fn equal_specs_are_said_to_be_equal() {
    let text = screen(&[run("one", json!({}), json!({})), run("two", json!({}), json!({}))]);
    assert!(text.starts_with("The specs are equal.\n"), "{text}");
}

#[test]
fn sets_in_another_order_do_not_differ() {
    let set = |name: &str| json!({"name": name, "dataset": {"image": {"reference": "tasks:1", "path": "x.jsonl"}}});
    let tasks = |names: [&str; 2]| json!({"tasks": {"evaluate": names.map(set)}});
    let one = run("one", tasks(["a", "b"]), json!({}));
    let two = run("two", tasks(["b", "a"]), json!({}));
    assert_eq!(differences(&[one, two]), Vec::<Vec<String>>::new());
}

#[test]
fn evaluations_are_the_first_and_the_last_with_their_intervals() {
    let one = run(
        "one",
        json!({}),
        evaluated(&[("l1-v0", 0.25, 64), ("l1-v2", 0.4, 64), ("l1-v4", 0.5, 64)]),
    );
    let two = run("two", json!({}), json!({"phase": "Running"}));
    let text = screen(&[one, two]);
    for line in [
        "heldout, first   0.25 of 64 (0.16 to 0.37) l1-v0   -",
        "heldout, last    0.50 of 64 (0.38 to 0.62) l1-v4   -",
        "phase            Succeeded",
    ] {
        let words: Vec<&str> = line.split_whitespace().collect();
        let found = text
            .lines()
            .any(|shown| shown.split_whitespace().collect::<Vec<_>>().starts_with(&words));
        assert!(found, "no line {line:?} in\n{text}");
    }
    assert!(!text.contains("l1-v2"), "{text}");
}

#[test]
fn a_full_list_without_the_first_evaluation_says_so() {
    let list = |steps: Vec<u32>| -> Vec<Evaluation> {
        let evaluation = |step: u32| Evaluation {
            set: "heldout".to_owned(),
            weights: paths::weights_version("l1", step),
            resolved_rate: 0.5,
            episodes: 8,
        };
        steps.into_iter().map(evaluation).collect()
    };
    let every_ten = |from: u32, count: u32| (0..count).map(|at| from + 10 * at).collect::<Vec<u32>>();
    for (steps, expected) in [
        (every_ten(100, 63), true),
        (every_ten(100, 64), false),
        (every_ten(0, 64), true),
        (every_ten(10, 64), true),
        ([vec![0], every_ten(100, 63)].concat(), true),
        ([vec![10], every_ten(100, 63)].concat(), true),
        ([vec![30], every_ten(100, 63)].concat(), true),
    ] {
        assert_eq!(has_first(&list(steps.clone()), "heldout"), expected, "{steps:?}");
    }
}

#[test]
fn the_first_of_a_list_that_lost_earlier_ones_is_not_shown_as_the_first_of_the_run() {
    let versions: Vec<String> = (100..164).map(|step| format!("l1-v{step}")).collect();
    let all: Vec<(&str, f64, u32)> = versions.iter().map(|version| (version.as_str(), 0.5, 8)).collect();
    let text = screen(&[run("one", json!({}), evaluated(&all))]);
    assert!(text.contains("l1-v100, first of the last 64"), "{text}");
    assert_eq!(text.matches("first of the last").count(), 1, "{text}");
}

#[test]
fn the_interval_is_wilsons() {
    // The same formula in Python gives 0.16015 and 0.36816.
    let (low, high) = wilson(0.25, 64.0);
    assert!(
        (low - 0.160_15).abs() < 1e-5 && (high - 0.368_16).abs() < 1e-5,
        "{low} {high}"
    );
    assert_eq!(wilson(0.0, 0.0), (0.0, 1.0));
    let (low, high) = wilson(1.0, 3.0);
    assert!(low > 0.4 && (high - 1.0).abs() < 1e-9, "{low} {high}");
}

#[test]
fn a_value_cannot_command_the_terminal() {
    let one = run("one", json!({"priorityClassName": "a\u{1b}[31mb"}), json!({}));
    let two = run("two", json!({}), json!({}));
    assert!(!screen(&[one, two]).contains('\u{1b}'));
}
