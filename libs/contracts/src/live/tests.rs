use super::*;
use grpo_crds::GrpoRun;

fn config(patch: &str) -> RunConfig {
    let mut run: Value = serde_yaml_ng::from_str(include_str!("../../../../docs/examples/demo.yaml")).unwrap();
    run["metadata"]["uid"] = "uid-1".into();
    let patch: Value = serde_yaml_ng::from_str(patch).unwrap();
    merge(&mut run["spec"], &patch);
    let run: GrpoRun = serde_json::from_value(run).unwrap();
    RunConfig::of(&run)
}

fn merge(into: &mut Value, patch: &Value) {
    match patch {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| merge(&mut into[name], value)),
        value => *into = value.clone(),
    }
}

#[test]
fn exactly_what_may_change_while_a_run_runs_is_taken_over() {
    let old = config("{}");
    let newer = config(
        "{rollout: {iterations: 99, prompts: 3, sampling: {temperature: 0.5, maxTokensPerCall: 77}}, checkpoint: {every: 3, keep: 4}, \
             algorithm: {learningRate: 0.5}, trainer: {nodes: 7}, suspend: true, sandboxes: {pool: {max: 3}}, \
             ttlSecondsAfterFinished: 9}",
    );
    let LiveUpdate { config: taken, ignored } = old.with_live_changes_of(&newer).unwrap();
    assert_eq!(taken.spec.rollout.iterations, 99);
    assert_eq!(taken.spec.rollout.sampling, newer.spec.rollout.sampling);
    assert_eq!(taken.spec.checkpoint, newer.spec.checkpoint);
    assert_eq!(ignored, ["algorithm.learningRate", "rollout.prompts", "trainer.nodes"]);
    let mut back = taken;
    back.spec.rollout = old.spec.rollout.clone();
    back.spec.checkpoint = old.spec.checkpoint.clone();
    assert_eq!(back, old, "nothing else has changed");
}

#[test]
fn sets_are_evaluated_when_the_newer_file_says_and_stay_the_sets_they_were() {
    let old = config("{}");
    let mut newer = old.clone();
    let set = &mut newer.spec.tasks.evaluate[0];
    (set.every, set.at_end, set.samples) = (Some(5), !set.at_end, 200);
    let taken = old.with_live_changes_of(&newer).unwrap();
    let set = &taken.config.spec.tasks.evaluate[0];
    let before = &old.spec.tasks.evaluate[0];
    assert_eq!(
        (set.every, set.at_end, set.samples),
        (Some(5), !before.at_end, before.samples)
    );
    assert_eq!(taken.ignored, ["tasks.evaluate"]);
}

#[test]
fn the_file_of_a_namesake_is_not_taken() {
    let old = config("{}");
    let newer = RunConfig {
        uid: "uid-2".into(),
        ..old.clone()
    };
    let refused = old.with_live_changes_of(&newer).unwrap_err().to_string();
    assert!(refused.contains("uid-1") && refused.contains("uid-2"), "{refused}");
}
