//! Manifests as people write them: the examples are read whole, and what is wrong is refused with words that help.

use std::{fs, path::Path};

use grpo_crds::{GrpoRun, InferencePool, SandboxPool};
use kube::core::cel::{validate_cel, validate_cel_update};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

/// Smallest run that trains.
const RUN: &str = "
apiVersion: grpo.dev/v1alpha1
kind: GrpoRun
metadata: {name: demo, namespace: default, uid: u-1}
spec:
  model: {image: {reference: 'example.com/model:1'}}
  tasks: {train: {dataset: {image: {reference: 'example.com/tasks:1', path: train.jsonl}}}}
  agent: {bash: {}}
  trainer: {}
  inference: {pool: {engine: {embedded: {}}}}
  sandboxes: {pool: {max: 4}}
  store: {volumeClaimTemplate: {resources: {requests: {storage: 1Gi}}}}
";

fn run() -> GrpoRun {
    serde_yaml_ng::from_str(RUN).unwrap()
}

fn changed(change: impl FnOnce(&mut Value)) -> GrpoRun {
    let mut value = serde_json::to_value(run()).unwrap();
    change(&mut value["spec"]);
    serde_json::from_value(value).unwrap()
}

/// What the refusal says, and the change that is refused.
type Change = (&'static str, Box<dyn Fn(&mut Value)>);

/// What the API server would say.
fn refusal(run: &GrpoRun) -> String {
    validate_cel(run).map_or_else(|errors| format!("{errors:?}"), |()| "accepted".into())
}

fn refusal_of_change(to: &GrpoRun) -> String {
    validate_cel_update(to, &run()).map_or_else(|errors| format!("{errors:?}"), |()| "accepted".into())
}

#[test]
fn the_smallest_run_is_accepted_and_everything_else_has_a_default() {
    let run = run();
    assert_eq!(refusal(&run), "accepted");
    let spec = run.spec;
    assert_eq!(
        (spec.rollout.prompts, spec.rollout.samples, spec.rollout.max_staleness),
        (8, 8, 0)
    );
    assert_eq!((spec.reward.resolved, spec.reward.unresolved), (1.0, 0.0));
    assert_eq!(spec.agent.limits.turns, 50);
    assert_eq!(spec.trainer.unwrap().nodes, 1);
}

#[test]
fn of_every_union_exactly_one_member_is_accepted() {
    let claim = || serde_json::json!({"claimName": "runs", "path": "x"});
    let both: Vec<Change> = vec![
        (
            "image, persistentVolumeClaim, hub and objectStore",
            Box::new(move |spec| spec["model"]["persistentVolumeClaim"] = claim()),
        ),
        (
            "image, persistentVolumeClaim, hub and objectStore",
            Box::new(|spec| spec["model"] = serde_json::json!({})),
        ),
        (
            "path is missing",
            Box::new(|spec| {
                spec["tasks"]["train"]["dataset"]["image"]
                    .as_object_mut()
                    .unwrap()
                    .remove("path");
            }),
        ),
        (
            "pool and poolRef",
            Box::new(|spec| spec["inference"]["poolRef"] = serde_json::json!({"name": "other"})),
        ),
        (
            "sandboxes.pool and sandboxes.poolRef",
            Box::new(|spec| spec["sandboxes"] = serde_json::json!({})),
        ),
        (
            "volumeClaimTemplate, persistentVolumeClaim and objectStore",
            Box::new(move |spec| spec["store"]["persistentVolumeClaim"] = claim()),
        ),
        ("needs an agent", Box::new(|spec| spec["agent"] = serde_json::json!({}))),
        (
            "give the engine",
            Box::new(|spec| spec["inference"]["pool"]["engine"] = serde_json::json!({})),
        ),
        (
            "give the engine",
            Box::new(|spec| spec["inference"]["pool"]["engine"]["vllm"] = serde_json::json!({})),
        ),
    ];
    for (words, change) in both {
        let said = refusal(&changed(change));
        assert!(said.contains(words), "wanted {words:?}, got {said}");
    }
}

#[test]
fn what_a_mode_needs_is_asked_for() {
    let without_trainer = changed(|spec| {
        spec.as_object_mut().unwrap().remove("trainer");
    });
    assert!(refusal(&without_trainer).contains("mode Train needs trainer"));
    assert!(refusal(&changed(|spec| spec["mode"] = "Evaluate".into())).contains("at least one set in tasks.evaluate"));
    assert!(refusal(&changed(|spec| spec["rollout"]["sampling"]["topP"] = 0.9.into())).contains("whole distribution"));
    assert!(refusal(&changed(|spec| spec["reward"]["resolved"] = (-1).into())).contains("worth more"));
    assert!(refusal(&changed(|spec| spec["sandboxes"]["pool"]["warm"]["max"] = 5.into())).contains("warm.max"));
}

#[test]
fn names_that_make_no_service_names_are_refused() {
    for name in ["a-name-of-more-than-forty-characters-is-too-long", "1demo", "de.mo"] {
        let mut run = run();
        run.metadata.name = Some(name.into());
        assert!(refusal(&run).contains("at most 40 characters"), "{name}");
    }
}

#[test]
fn what_a_run_is_about_cannot_be_changed_and_what_steers_it_can() {
    let refused: Vec<Change> = vec![
        ("mode and seed", Box::new(|spec| spec["seed"] = 7.into())),
        (
            "model is immutable",
            Box::new(|spec| spec["model"]["image"]["reference"] = "example.com/other:1".into()),
        ),
        (
            "agent is immutable",
            Box::new(|spec| spec["agent"]["limits"]["turns"] = 3.into()),
        ),
        (
            "algorithm is immutable",
            Box::new(|spec| spec["algorithm"]["clip"]["high"] = 0.3.into()),
        ),
        (
            "the trainer's size",
            Box::new(|spec| spec["trainer"]["nodes"] = 2.into()),
        ),
        (
            "prompts, samples",
            Box::new(|spec| spec["rollout"]["samples"] = 4.into()),
        ),
        (
            "path is immutable",
            Box::new(|spec| spec["store"]["path"] = "elsewhere".into()),
        ),
        (
            "the pool is immutable",
            Box::new(|spec| spec["inference"] = serde_json::json!({"poolRef": {"name": "other"}})),
        ),
    ];
    for (words, change) in refused {
        let said = refusal_of_change(&changed(change));
        assert!(said.contains(words), "wanted {words:?}, got {said}");
    }
    let steered = changed(|spec| {
        spec["rollout"]["iterations"] = 100.into();
        spec["checkpoint"]["every"] = 1.into();
        spec["rollout"]["sampling"]["temperature"] = 0.7.into();
    });
    assert_eq!(refusal_of_change(&steered), "accepted");
}

#[test]
fn every_example_is_read_whole_and_accepted() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples");
    let mut read = 0;
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    for file in files.filter(|path| path.is_file()) {
        let text = fs::read_to_string(&file).unwrap();
        for document in serde_yaml_ng::Deserializer::from_str(&text) {
            let document = Value::deserialize(document).unwrap();
            let whole = match document["kind"].as_str() {
                Some("GrpoRun") => whole::<GrpoRun>(&document),
                Some("InferencePool") => whole::<InferencePool>(&document),
                Some("SandboxPool") => whole::<SandboxPool>(&document),
                other => panic!("{}: kind {other:?}", file.display()),
            };
            assert_eq!(whole, Ok(()), "{}", file.display());
            read += 1;
        }
    }
    assert!(read > 0);
}

/// Reads a manifest, and says which of its fields the type does not have.
fn whole<K: DeserializeOwned + Serialize + kube::CustomResourceExt>(document: &Value) -> Result<(), String> {
    let object: K = serde_json::from_value(document.clone()).map_err(|error| error.to_string())?;
    let again = serde_json::to_value(&object).unwrap();
    let mut lost = Vec::new();
    collect_lost("", document, &again, &mut lost);
    if !lost.is_empty() {
        return Err(format!("unknown fields: {lost:?}"));
    }
    validate_cel(&object).map_err(|errors| format!("{errors:?}"))
}

fn collect_lost(path: &str, written: &Value, read: &Value, lost: &mut Vec<String>) {
    match (written, read) {
        (Value::Object(fields), read) => {
            for (name, value) in fields {
                match read.get(name) {
                    Some(read) => collect_lost(&format!("{path}.{name}"), value, read, lost),
                    None => lost.push(format!("{path}.{name}")),
                }
            }
        }
        (Value::Array(items), Value::Array(read)) if items.len() == read.len() => {
            for (n, (item, read)) in items.iter().zip(read).enumerate() {
                collect_lost(&format!("{path}[{n}]"), item, read, lost);
            }
        }
        (Value::Array(_), _) => lost.push(path.to_owned()),
        _ => {}
    }
}
