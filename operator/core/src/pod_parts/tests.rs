use super::*;

#[test]
fn what_is_laid_over_a_pod_adds_to_what_it_has_and_replaces_single_values_only() {
    let mut pod = json!({"metadata": {"labels": {}}, "spec": {
        "priorityClassName": "run",
        "imagePullSecrets": [{"name": "run"}],
        "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "kubernetes.io/hostname"}]}},
    }});
    let before = pod.clone();
    let overlay: PodOverlay = serde_yaml_ng::from_str(
        "{spec: {priorityClassName: own, imagePullSecrets: [{name: run}, {name: own}], nodeSelector: {gpu: h200}, \
             tolerations: [{key: gpu, operator: Exists}]}}",
    )
    .unwrap();
    lay_over(&mut pod, Some(&overlay));
    let spec = &pod["spec"];
    assert_eq!(spec["priorityClassName"], "own");
    assert_eq!(spec["imagePullSecrets"], json!([{"name": "run"}, {"name": "own"}]));
    assert_eq!(spec["affinity"], before["spec"]["affinity"]);
    assert_eq!(spec["nodeSelector"], json!({"gpu": "h200"}));
    assert_eq!(spec["tolerations"][0]["key"], "gpu");
}

#[test]
fn an_overlays_affinity_stands_beside_the_pods_own() {
    let mut spec = json!({"affinity": {"podAffinity": {"a": [1]}}});
    merge(
        &mut spec,
        json!({"affinity": {"podAffinity": {"a": [2]}, "nodeAffinity": {"b": 3}}}),
    );
    assert_eq!(
        spec,
        json!({"affinity": {"podAffinity": {"a": [1, 2]}, "nodeAffinity": {"b": 3}}})
    );
}
