use super::*;

fn manifest() -> RunManifest {
    RunManifest(json!({"metadata": {"name": "demo"}, "spec": {"tasks": {"evaluate": [{"name": "a"}, {"name": "b"}]}}}))
}

#[test]
fn a_field_that_is_not_there_is_made_on_the_way() {
    let changed = manifest()
        .with("/rollout/iterations", json!(2))
        .with("/tasks/evaluate/1/samples", json!(8));
    assert_eq!(changed.0["spec"]["rollout"]["iterations"], 2);
    assert_eq!(changed.0["spec"]["tasks"]["evaluate"][1]["samples"], 8);
}

#[test]
fn every_set_is_changed() {
    let changed = manifest().for_each_set(|set| set["seed"] = json!(7));
    assert_eq!(changed.0["spec"]["tasks"]["evaluate"][0]["seed"], 7);
    assert_eq!(changed.0["spec"]["tasks"]["evaluate"][1]["seed"], 7);
}
