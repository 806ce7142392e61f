use grpo_crds::{GrpoRun, grpo_run::Phase};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    fixtures::{object, pod, running},
    grpo_run::{
        decide::decide,
        decision::{AdmissionStep, ClaimStep},
        observation::RunObservation,
        tests::{condition, decided, inference_pool, new_demo, seen},
    },
    settings::Settings,
};

/// The cases, shared with the tests of the contracts.
const CASES: &str = include_str!("../../../../../libs/contracts/tests/unsupported.yaml");
const BASES: &str = include_str!("../../../../../crds/tests/support/bases.yaml");

#[derive(Deserialize)]
struct Case {
    what: String,
    base: String,
    patch: Value,
    finds: Vec<(String, Option<String>)>,
}

fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in fields {
        match (value, target.as_object_mut()) {
            (Value::Null, Some(known)) => drop(known.remove(name)),
            _ => merge(&mut target[name], value),
        }
    }
}

/// Every case: its name, the run as the API server accepted it, and the refused fields.
fn cases() -> Vec<(String, GrpoRun, Vec<String>)> {
    let cases: Vec<Case> = serde_yaml_ng::from_str(CASES).unwrap();
    let bases: Value = serde_yaml_ng::from_str(BASES).unwrap();
    let made = |case: Case| {
        let mut run = bases[&case.base].clone();
        merge(&mut run["spec"], &case.patch);
        let run = object(&run.to_string());
        (case.what, run, case.finds.into_iter().map(|(path, _)| path).collect())
    };
    cases.into_iter().map(made).collect()
}

#[test]
fn a_run_with_a_field_that_is_not_executed_is_not_accepted_and_nothing_is_made_for_it() {
    let cases = cases();
    assert!(cases.len() > 10);
    for (what, run, paths) in cases {
        let free = inference_pool(None, "True", "");
        let decision = decided(&RunObservation {
            inference: Some(free),
            ..seen(run)
        });
        let (status, reason, message) = condition(&decision, "Accepted");
        assert_eq!((&*status, &*reason), ("False", "NotSupported"), "{what}");
        for path in paths {
            assert!(message.contains(&format!("spec.{path}: ")), "{what}: {message}");
        }
        let accepted = &decision.status.conditions[0];
        assert_eq!(accepted.observed_generation, Some(1), "{what}");
        assert!(decision.objects.is_empty() && decision.create.is_empty(), "{what}");
        assert_eq!(
            (decision.claim, &decision.admission),
            (ClaimStep::Leave, &AdmissionStep::Forget),
            "{what}"
        );
        assert_eq!(decision.status.phase, Some(Phase::Failed), "{what}");
    }
}

#[test]
fn an_accepted_run_says_so_from_its_first_status_on() {
    let (status, reason, _) = condition(&decided(&new_demo()), "Accepted");
    assert_eq!((&*status, &*reason), ("True", "SpecValid"));
}

/// The condition of the first case's run with `change`, under an operator with these settings.
fn first(settings: &Settings, change: impl FnOnce(&mut RunObservation)) -> (String, String, String) {
    let mut run = seen(cases().remove(0).1);
    change(&mut run);
    condition(&decide(&run, settings), "Accepted")
}

#[test]
fn a_run_that_began_under_another_version_or_is_admitted_by_a_flag_is_accepted_and_its_fields_are_named() {
    let usual = Settings::for_tests();
    let begun = first(&usual, |run| {
        run.driver_pods = vec![pod("run-driver-1-0", 1, 0, running())]
    });
    let told = first(&Settings::admitting_unsupported(), |_| ());
    for (status, reason, message) in [begun, told] {
        assert_eq!((&*status, &*reason), ("True", "Tolerated"));
        assert!(message.contains("spec.agent.limits.promptTokens: 9"), "{message}");
    }
    assert_eq!(first(&usual, |run| run.run.spec.suspend = true).0, "False");
}

#[test]
fn a_refused_run_stays_refused_and_a_run_that_has_ended_keeps_what_it_was_told() {
    let refused = decided(&seen(cases().remove(0).1));
    let again = first(&Settings::admitting_unsupported(), |run| {
        run.run.status = Some(refused.status.clone());
    });
    assert_eq!(again, condition(&refused, "Accepted"));

    let succeeded = json!({"conditions": [
        {"type": "Succeeded", "status": "True", "reason": "Finished", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
    ]});
    let (status, ..) = first(&Settings::for_tests(), |run| {
        run.run.status = Some(serde_json::from_value(succeeded).unwrap());
    });
    assert_eq!(status, "True");
}
