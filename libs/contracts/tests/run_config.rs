//! `run.json`: where processes find model, datasets, store and endpoints.

use std::path::Path;

use grpo_contracts::RunConfig;
use grpo_crds::GrpoRun;

use crate::support::bases;

#[test]
fn run_json_says_where_everything_is() {
    let mut manifest = bases()["train"].clone();
    let spec = &mut manifest["spec"];
    let same = serde_json::json!({"image": {"reference": "example.com/tasks:1", "path": "heldout.jsonl"}});
    let other = serde_json::json!({"persistentVolumeClaim": {"claimName": "tasks", "path": "a/b.jsonl"}});
    spec["tasks"]["evaluate"] =
        serde_json::json!([{"name": "one", "dataset": same}, {"name": "two", "dataset": other}]);
    let mut run: GrpoRun = serde_json::from_value(manifest).unwrap();
    run.metadata.namespace = Some("team".into());
    let config = RunConfig::of(&run);
    assert_eq!(config.store_path, "team/run");
    assert_eq!(config.model_path, "/model");
    assert_eq!(config.endpoints.gateway, "http://run-gateway.team.svc:8080");
    assert_eq!(config.endpoints.engines_host, "run-engines.team.svc");
    assert_eq!(config.datasets.len(), 2, "two sets of one image share its mount");
    let file = |set: usize| config.dataset_file(&run.spec.tasks.evaluate[set].dataset).unwrap();
    assert_eq!(file(0), Path::new("/datasets/0/heldout.jsonl"));
    assert_eq!(file(1), Path::new("/datasets/1/a/b.jsonl"));
    let again: RunConfig = serde_json::from_str(&serde_json::to_string(&config).unwrap()).unwrap();
    assert_eq!(again, config);
}
