//! Where replicas keep versions of the weights and downloaded models, and what they request for them.

use serde_json::{Value, json};

use super::*;

#[test]
fn versions_of_the_weights_are_kept_on_a_volume_of_the_size_and_kind_that_the_pool_names() {
    let volume = |engine: &str, cache: Value| {
        let mut seen = with_engine(engine, 1);
        seen.pool.spec.weights_cache = serde_json::from_value(cache).unwrap();
        let pod = decided(&seen).create[0].0.object.clone();
        let volumes = pod["spec"]["volumes"].as_array().unwrap();
        volumes.iter().find(|volume| volume["name"] == "cache").unwrap()["emptyDir"].clone()
    };
    for engine in ["{embedded: {}}", "{vllm: {}}", "{sglang: {}}"] {
        assert_eq!(volume(engine, Value::Null), json!({}), "{engine}");
        let disk = volume(engine, json!({"sizeLimit": "40Gi"}));
        assert_eq!(disk, json!({"sizeLimit": "40Gi"}), "{engine}");
        let memory = volume(engine, json!({"sizeLimit": "40Gi", "medium": "Memory"}));
        assert_eq!(memory, json!({"sizeLimit": "40Gi", "medium": "Memory"}), "{engine}");
    }
}

#[test]
fn the_agent_requests_the_disk_of_the_caches_that_have_a_limit_there() {
    for (caches, wanted) in [
        (json!({}), json!(null)),
        (json!({"weightsCache": {"sizeLimit": "40Gi"}}), json!("40960Mi")),
        (
            json!({"weightsCache": {"sizeLimit": "40Gi", "medium": "Memory"}}),
            json!(null),
        ),
        (json!({"modelCache": {"sizeLimit": "60Gi"}}), json!("61440Mi")),
        (json!({"modelCache": {"claimName": "models"}}), json!(null)),
        (
            json!({"weightsCache": {"sizeLimit": "1500M"}, "modelCache": {"sizeLimit": "1Gi"}}),
            json!("2455Mi"),
        ),
    ] {
        let mut seen = with_engine("{vllm: {}}", 1);
        seen.pool.spec.weights_cache = serde_json::from_value(caches["weightsCache"].clone()).unwrap();
        seen.pool.spec.model_cache = serde_json::from_value(caches["modelCache"].clone()).unwrap();
        let pod = decided(&seen).create[0].0.object.clone();
        let containers = pod["spec"]["initContainers"].as_array().unwrap();
        let agent = containers
            .iter()
            .find(|container| container["name"] == "agent")
            .unwrap();
        assert_eq!(agent["resources"]["requests"]["ephemeral-storage"], wanted, "{caches}");
    }
}

/// The engine's other pods have no agent: they only download the model. A model that is an image needs no cache.
#[test]
fn every_pod_of_a_replica_requests_the_disk_of_the_caches_that_are_filled_in_it() {
    let requested = |engine: &str, model: &str, resources: Value| {
        let mut seen = with_engine(engine, 1);
        seen.pool.spec.weights_cache = serde_json::from_value(json!({"sizeLimit": "40Gi"})).unwrap();
        seen.pool.spec.model_cache = serde_json::from_value(json!({"sizeLimit": "60Gi"})).unwrap();
        seen.pool.spec.model = serde_yaml_ng::from_str(model).unwrap();
        seen.pool.spec.resources = serde_json::from_value(resources).unwrap();
        let pods = decided(&seen).create;
        let of = |pod: &Value| {
            let containers = ["initContainers", "containers"].map(|list| pod["spec"][list].as_array().cloned());
            let disk = |container: &Value| {
                let disk = &container["resources"]["requests"]["ephemeral-storage"];
                disk.as_str()
                    .map(|disk| format!("{} {disk}", container["name"].as_str().unwrap()))
            };
            let asked: Vec<String> = containers.iter().flatten().flatten().filter_map(disk).collect();
            asked.join(", ")
        };
        pods.iter().map(|(pod, _)| of(&pod.object)).collect::<Vec<_>>()
    };
    let (image, hub) = (
        "{image: {reference: 'example.com/model:1', path: weights}}",
        "{hub: {repo: Qwen/Qwen3-8B}}",
    );
    let vllm = "{vllm: {tensorParallel: 8, pipelineParallel: 2, nodes: 2}}";
    assert_eq!(requested(vllm, hub, json!({})), ["agent 102400Mi", "engine 61440Mi"]);
    let own = json!({"requests": {"ephemeral-storage": "1Ti"}});
    assert_eq!(
        requested(vllm, hub, own),
        ["model 1Ti, engine 1Ti", "model 1Ti, engine 1Ti"]
    );
    assert_eq!(requested("{embedded: {}}", image, json!({})), ["agent 40960Mi"]);
}

#[test]
fn the_agent_requests_the_memory_of_a_weights_cache_in_memory() {
    let requested = |medium: &str| {
        let mut seen = seen(1);
        seen.pool.spec.weights_cache = serde_json::from_value(json!({"sizeLimit": "40Gi", "medium": medium})).unwrap();
        let pod = decided(&seen).create[0].0.object.clone();
        let containers = pod["spec"]["containers"].as_array().unwrap();
        let agent = containers
            .iter()
            .find(|container| container["name"] == "agent")
            .unwrap();
        agent["resources"]["requests"]["memory"].clone()
    };
    assert_eq!(
        (requested("Disk"), requested("Memory")),
        (json!("64Mi"), json!("41024Mi"))
    );
}

#[test]
fn agents_have_the_resources_that_the_pool_names_for_them_and_downloads_those_of_the_engine() {
    let made = |engine: &str, agents: Value, engines: Value| {
        let mut seen = with_engine(engine, 1);
        seen.pool.spec.model = serde_yaml_ng::from_str("{hub: {repo: Qwen/Qwen3-8B}}").unwrap();
        seen.pool.spec.weights_cache =
            serde_json::from_value(json!({"sizeLimit": "40Gi", "medium": "Memory"})).unwrap();
        seen.pool.spec.agent_resources = serde_json::from_value(agents).unwrap();
        seen.pool.spec.resources = serde_json::from_value(engines).unwrap();
        let pod = decided(&seen).create[0].0.object.clone();
        let of = |list: &str| pod["spec"][list].as_array().cloned().unwrap_or_default();
        let containers = [of("initContainers"), of("containers")].concat();
        ["agent", "model"].map(|name| {
            let mut containers = containers.iter();
            let found = containers.find(|container| container["name"] == name).unwrap();
            found["resources"].clone()
        })
    };
    let little = json!({"cpu": "20m", "memory": "64Mi"});
    for engine in ["{embedded: {}}", "{vllm: {}}"] {
        assert_eq!(
            made(engine, json!(null), json!(null)),
            [
                json!({"requests": {"cpu": "20m", "memory": "41024Mi"}}),
                json!({"requests": little})
            ]
        );
        let agents = json!({"requests": {"cpu": "1", "memory": "42Gi"}, "limits": {"cpu": "2", "memory": "44Gi"}});
        let engines = json!({"limits": {"cpu": "8", "memory": "64Gi", "rdma/hca": "1"}});
        assert_eq!(
            made(engine, agents.clone(), engines),
            [
                agents,
                json!({"requests": {}, "limits": {"cpu": "8", "memory": "64Gi"}})
            ]
        );
    }
}

#[test]
fn a_pod_downloads_a_model_of_a_bucket_and_only_its_init_container_sees_the_keys() {
    for engine in ["{embedded: {}}", "{vllm: {}}", "{sglang: {}}"] {
        let pool = seeing(&format!(
            "{{apiVersion: grpo.dev/v1alpha1, kind: InferencePool, metadata: {{name: demo}}, \
             spec: {{model: {{objectStore: {{url: 's3://a/b', credentialsSecretRef: {{name: keys}}}}}}, engine: {engine}}}}}"
        ));
        let decision = decided(&pool);
        assert_eq!(condition(&decision, "Accepted").0, "True", "{engine}");
        let spec = &decision.create[0].0.object["spec"];
        let first = &spec["initContainers"][0];
        let args = first["args"].to_string();
        for words in [
            r#""--object-store","s3://a/b""#,
            r#""--credentials","/model-credentials""#,
            "/model/current",
        ] {
            assert!(args.contains(words), "{engine}: {args}");
        }
        let volumes = spec["volumes"].as_array().unwrap().iter();
        let secrets: Vec<_> = volumes.filter(|volume| !volume["secret"].is_null()).collect();
        assert_eq!(secrets.len(), 1, "{engine}");
        assert_eq!(
            secrets[0]["secret"],
            serde_json::json!({"secretName": "keys", "defaultMode": 0o440})
        );
        assert!(first["volumeMounts"].to_string().contains("/model-credentials"));
        let containers = spec["containers"].to_string();
        assert!(
            containers.contains("/model/current") && !containers.contains("/model-credentials"),
            "{engine}"
        );
        assert!(
            !spec.to_string().contains("secretKeyRef") && !spec.to_string().contains("envFrom"),
            "{engine}"
        );
    }
}

/// The arguments of each pod's init container that downloads the model.
fn fetches(seen: &InferencePoolObservation) -> Vec<String> {
    let pods = decided(seen).create.into_iter().map(|(pod, _)| pod.object);
    let first = pods.map(|pod| pod["spec"]["initContainers"][0].clone());
    first
        .inspect(|first| assert_eq!(first["name"], "model"))
        .map(|first| first["args"].to_string())
        .collect()
}

#[test]
fn replicas_take_the_commit_that_the_driver_of_their_run_says_or_the_one_of_their_cache() {
    let model = "spec: {model: {hub: {repo: a/b}}, engine: {vllm: {tensorParallel: 16, nodes: 2}}}";
    let mut pool = seeing(&format!(
        "{{apiVersion: grpo.dev/v1alpha1, kind: InferencePool, metadata: {{name: demo}}, {model}}}"
    ));
    pool.run = None;
    let alone = fetches(&pool);
    assert_eq!(alone.len(), 2, "the pods of a replica read the model each");
    let name = format!(r#""--pin-name","{}""#, pool.owner.uid);
    assert!(alone.iter().all(|args| args.contains(&name)), "{alone:?}");
    pool.run = Some("demo".into());
    let of_run = fetches(&pool);
    let url = format!(
        r#""--pin-url","http://demo-driver.{}.svc:8070/v1/model""#,
        pool.owner.namespace
    );
    assert!(of_run.iter().all(|args| args.contains(&url)), "{of_run:?}");
}
