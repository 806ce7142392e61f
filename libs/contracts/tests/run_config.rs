//! `run.json`: where processes find the model, datasets, the store and endpoints.

use std::path::PathBuf;

use grpo_contracts::access::Service;
use grpo_contracts::{DatasetLocation, RemoteModel, RunConfig};
use grpo_crds::GrpoRun;

use crate::support::bases;

#[test]
fn run_json_says_where_everything_is() {
    let mut manifest = bases()["train"].clone();
    let spec = &mut manifest["spec"];
    let same = serde_json::json!({"image": {"reference": "example.com/tasks:1", "path": "heldout.jsonl"}});
    let other = serde_json::json!({"persistentVolumeClaim": {"claimName": "tasks", "path": "a/b.jsonl"}});
    let hub = serde_json::json!({"hub": {"repo": "a/b", "tokenSecretRef": {"name": "hub", "key": "token"}}});
    let bucket = |secret: &str| serde_json::json!({"objectStore": {"url": "s3://b/a.jsonl", "credentialsSecretRef": {"name": secret}}});
    let ids = serde_json::json!({"instanceIds": {"configMapRef": {"name": "django", "key": "ids.txt"}}});
    spec["tasks"]["evaluate"] = serde_json::json!([
        {"name": "one", "dataset": same}, {"name": "two", "dataset": other, "select": ids},
        {"name": "three", "dataset": hub, "select": ids}, {"name": "four", "dataset": bucket("keys")},
        {"name": "five", "dataset": bucket("other")},
    ]);
    let mut run: GrpoRun = serde_json::from_value(manifest).unwrap();
    run.metadata.namespace = Some("team".into());
    let config = RunConfig::of(&run);
    assert_eq!(config.store_path, "team/run");
    assert_eq!(config.model_path, "/model");
    assert_eq!(config.endpoints.gateway, "http://run-gateway.team.svc:8080");
    assert_eq!(config.endpoints.engines_host, "run-engines.team.svc");
    assert_eq!(config.datasets.len(), 5, "two sets of one image share its mount");
    let location = |set: usize| config.dataset(&run.spec.tasks.evaluate[set].dataset).unwrap();
    assert_eq!(location(0), DatasetLocation::File("/datasets/0/heldout.jsonl".into()));
    assert_eq!(location(1), DatasetLocation::File("/datasets/1/a/b.jsonl".into()));
    let dataset = run.spec.tasks.evaluate[2].dataset.hub.clone().unwrap();
    let token = Some(PathBuf::from("/datasets/2/token"));
    assert_eq!(location(2), DatasetLocation::Hub { dataset, token });
    let file = run.spec.tasks.evaluate[4].dataset.object_store.clone().unwrap();
    let credentials = Some(PathBuf::from("/datasets/4"));
    assert_eq!(location(4), DatasetLocation::ObjectStore { file, credentials });
    assert_eq!(config.config_maps.len(), 1, "two sets share a list");
    let list = &config.config_maps[0].config_map_ref;
    assert_eq!(config.config_map(list), Some("/config-maps/0/text".into()));
    let again: RunConfig = serde_json::from_str(&serde_json::to_string(&config).unwrap()).unwrap();
    assert_eq!(again, config);
}

#[test]
fn a_drivers_token_for_another_namespaces_gateway_is_for_that_pool_alone() {
    for (pool_ref, audience) in [
        (serde_json::Value::Null, "gateway.grpo.dev"),
        (serde_json::json!({"name": "shared"}), "gateway.grpo.dev"),
        (
            serde_json::json!({"name": "shared", "namespace": "team"}),
            "gateway.grpo.dev",
        ),
        (
            serde_json::json!({"name": "shared", "namespace": "pools"}),
            "shared.pools.gateway.grpo.dev",
        ),
    ] {
        let mut manifest = bases()["train"].clone();
        if !pool_ref.is_null() {
            manifest["spec"]["sandboxes"] = serde_json::json!({"poolRef": pool_ref});
        }
        let mut run: GrpoRun = serde_json::from_value(manifest).unwrap();
        run.metadata.namespace = Some("team".into());
        let config = RunConfig::of(&run);
        assert_eq!(config.audience(Service::Gateway), audience);
        assert_eq!(config.audience(Service::Trainer), Service::Trainer.audience());
        let driver = RunConfig::driver_service("team", "run");
        assert_eq!(config.endpoints.driver, format!("http://{driver}"));
    }
}

#[test]
fn a_model_of_the_hub_lies_in_the_pools_cache_if_others_share_it_or_in_the_store() {
    let pool = |cache: &str| format!("{{engine: {{vllm: {{}}}}, modelCache: {{{cache}}}}}");
    let (claim, folder, scratch) = (pool("claimName: c"), pool("hostPath: /c"), pool("sizeLimit: 1Gi"));
    // A driver needs no weights if no trainer or engine shares its cache.
    let cases = [
        ("train", claim.as_str(), "/model-cache/hub", true),
        ("evaluate", &claim, "/model-cache/hub", true),
        ("train", &folder, "/model-cache/hub", false),
        ("train", &scratch, "/store/team/run/hub", true),
        ("evaluate", &scratch, "/store/team/run/hub", false),
    ];
    for (base, pool, cache, weights) in cases {
        let mut manifest = bases()[base].clone();
        let token = serde_json::json!({"name": "hub", "key": "token"});
        manifest["spec"]["model"] = serde_json::json!({"hub": {"repo": "a/b", "tokenSecretRef": token}});
        manifest["spec"]["inference"] = serde_yaml_ng::from_str(&format!("{{pool: {pool}}}")).unwrap();
        let mut run: GrpoRun = serde_json::from_value(manifest).unwrap();
        run.metadata.namespace = Some("team".into());
        let config = RunConfig::of(&run);
        let download = config.model_download.unwrap();
        assert_eq!(
            (download.cache.as_str(), download.weights),
            (cache, weights),
            "{base} {pool}"
        );
        assert_eq!(download.from.secret().as_deref(), Some("/model-token/token"));
        assert_eq!(config.model_path, "/model/current");
    }
}

#[test]
fn a_model_of_an_object_store_is_named_as_in_the_manifest_and_the_driver_brings_weights_where_others_share_its_cache() {
    let bucket = serde_json::json!({"objectStore": {"url": "s3://runs/a"}});
    let source = serde_json::json!({"url": "s3://models/a", "credentialsSecretRef": {"name": "keys"}});
    for (store, weights) in [(None, true), (Some(bucket), false)] {
        let mut manifest = bases()["train"].clone();
        manifest["spec"]["model"] = serde_json::json!({"objectStore": source});
        if let Some(store) = store {
            manifest["spec"]["store"] = store;
        }
        let run: GrpoRun = serde_json::from_value(manifest).unwrap();
        let config = RunConfig::of(&run);
        assert_eq!(config.model_path, "/model/current");
        let written = serde_json::to_value(&config).unwrap();
        assert_eq!(written["modelDownload"]["objectStore"], source);
        let read: RunConfig = serde_json::from_value(written).unwrap();
        assert_eq!(read, config);
        let download = read.model_download.unwrap();
        assert!(matches!(download.from, RemoteModel::ObjectStore(_)));
        assert_eq!(
            (download.weights, download.from.secret().as_deref()),
            (weights, Some("/model-credentials"))
        );
    }
}

#[test]
fn the_download_of_a_model_of_the_hub_reads_as_it_did() {
    let text = r#"{"hub":{"repo":"a/b"},"cache":"/store/hub","weights":true}"#;
    let download: grpo_contracts::ModelDownload = serde_json::from_str(text).unwrap();
    assert_eq!(serde_json::to_string(&download).unwrap(), text);
}

#[test]
fn conversations_are_mounted_and_found_where_they_lie() {
    let mut manifest = bases()["finetune"].clone();
    let held_out = serde_json::json!({"hub": {"repo": "a/b", "tokenSecretRef": {"name": "hub", "key": "token"}}});
    manifest["spec"]["finetune"]["validation"] = serde_json::json!({"dataset": held_out});
    let run: GrpoRun = serde_json::from_value(manifest).unwrap();
    let config = RunConfig::of(&run);
    let finetune = run.spec.finetune.unwrap();
    let rows = config.dataset(&finetune.dataset).unwrap();
    assert_eq!(rows, DatasetLocation::File("/datasets/0/episodes.jsonl".into()));
    let held_out = config.dataset(&finetune.validation.unwrap().dataset).unwrap();
    let expected = Some(PathBuf::from("/datasets/1/token"));
    assert!(matches!(held_out, DatasetLocation::Hub { token, .. } if token == expected));
}
