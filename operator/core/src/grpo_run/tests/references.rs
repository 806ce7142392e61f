//! Secrets and ConfigMaps that a run names: checked before the run asks for capacity, and mounted in the driver alone.

use grpo_crds::GrpoRun;
use serde_json::{Value, json};

use super::{condition, decided, names, new_demo, running_demo, seen};
use crate::{
    grpo_run::{observation::RunObservation, references::references},
    settings::Settings,
};

/// The demo with a gated dataset of the hub, and with a list of instances for both of its sets.
fn with_references(mut run: GrpoRun) -> GrpoRun {
    let hub = json!({"repo": "a/b", "split": "train", "tokenSecretRef": {"name": "hub", "key": "HF_TOKEN"}});
    let ids = json!({"instanceIds": {"configMapRef": {"name": "django", "key": "ids.txt"}}});
    let train = run.spec.tasks.train.as_mut().unwrap();
    train.dataset = serde_json::from_value(json!({"hub": hub})).unwrap();
    train.select = serde_json::from_value(ids.clone()).unwrap();
    run.spec.tasks.evaluate[0].select = serde_json::from_value(ids).unwrap();
    run
}

#[test]
fn statements_of_prompts_are_mounted_in_the_driver_and_looked_for_before_it_begins() {
    let mut run = new_demo().run;
    let text = json!({"configMapRef": {"name": "statements", "key": "s.json"}});
    run.spec.tasks.train.as_mut().unwrap().prompt_overrides = serde_json::from_value(text).unwrap();
    let keys = json!({"url": "s3://a/b.jsonl", "credentialsSecretRef": {"name": "keys"}});
    let file = json!({"dataset": {"objectStore": keys}});
    run.spec.tasks.evaluate[0].prompt_overrides = serde_json::from_value(file).unwrap();
    let paths: Vec<String> = references(&run.spec)
        .into_iter()
        .map(|reference| reference.path)
        .collect();
    let set = &run.spec.tasks.evaluate[0].name;
    for path in [
        "tasks.train.promptOverrides.configMapRef".to_owned(),
        format!("tasks.evaluate[{set}].promptOverrides.dataset.objectStore.credentialsSecretRef"),
    ] {
        assert!(paths.contains(&path), "{path}: {paths:?}");
    }
    let pod = driver_pod(&seen(run), &Settings::for_tests());
    let volumes = pod["volumes"].as_array().unwrap();
    let of = |kind: &str, name: &str| {
        volumes
            .iter()
            .filter(|volume| volume[kind].to_string().contains(name))
            .count()
    };
    assert_eq!((of("configMap", "s.json"), of("secret", "keys")), (1, 1));
}

#[test]
fn the_tokens_of_trackers_and_of_a_reward_service_are_looked_for_and_mounted_in_the_driver_alone() {
    let mut run = new_demo().run;
    let token = |name: &str| json!({"name": name, "key": "token"});
    run.spec.trackers = serde_json::from_value(json!({
        "mlflow": {"url": "http://m", "tokenSecretRef": token("mlflow")},
        "wandb": {"upload": {"apiKeySecretRef": token("wandb")}},
    }))
    .unwrap();
    run.spec.reward.http =
        serde_json::from_value(json!({"url": "http://r", "tokenSecretRef": token("rewards")})).unwrap();
    let references = references(&run.spec);
    for path in [
        "trackers.mlflow.tokenSecretRef",
        "trackers.wandb.upload.apiKeySecretRef",
        "reward.http.tokenSecretRef",
    ] {
        assert!(references.iter().any(|reference| reference.path == path), "{path}");
    }
    let decision = super::decide(&seen(run), &Settings::for_tests());
    let with = |secret: &str| {
        let pods = decision.create.iter().map(|(_, pod, _)| pod);
        let pods = pods.filter(|pod| {
            pod.object["spec"]["volumes"]
                .to_string()
                .contains(&format!("\"{secret}\""))
        });
        pods.map(|pod| pod.name.contains("-driver-")).collect::<Vec<_>>()
    };
    for secret in ["mlflow", "wandb", "rewards"] {
        assert_eq!(with(secret), [true], "{secret} is mounted in the driver alone");
    }
    let mounts = decision
        .create
        .iter()
        .map(|(_, pod, _)| pod)
        .find(|pod| pod.name.contains("-driver-"));
    let mounts = mounts.unwrap().object["spec"]["containers"][0]["volumeMounts"].to_string();
    for path in ["/mlflow-token", "/wandb-key", "/reward-token"] {
        assert!(mounts.contains(&format!("\"{path}\"")), "{path}: {mounts}");
    }
}

fn driver_pod(run: &RunObservation, settings: &Settings) -> Value {
    let decision = super::decide(run, settings);
    let pods = decision.create.into_iter().map(|(_, pod, _)| pod);
    let mut pods = pods.filter(|pod| pod.name.contains("-driver-"));
    pods.next().unwrap().object["spec"].clone()
}

#[test]
fn a_token_and_a_list_of_instances_are_files_of_the_driver_and_the_list_is_mounted_once() {
    let run = seen(with_references(new_demo().run));
    let pod = driver_pod(&run, &Settings::for_tests());
    let volumes = pod["volumes"].as_array().unwrap();
    let of = |kind: &str, name: &str| {
        volumes
            .iter()
            .filter(|volume| volume[kind].to_string().contains(name))
            .count()
    };
    assert_eq!((of("secret", "HF_TOKEN"), of("configMap", "ids.txt")), (1, 1));
    let mounts = &pod["containers"][0]["volumeMounts"];
    for path in ["/datasets/0", "/config-maps/0"] {
        let mount = mounts
            .as_array()
            .unwrap()
            .iter()
            .find(|mount| mount["mountPath"] == path);
        assert_eq!(mount.unwrap()["readOnly"], true, "{path}");
    }
    let decision = super::decide(&run, &Settings::for_tests());
    let pods = decision.create.iter().map(|(_, pod, _)| pod);
    let others = pods.filter(|pod| !pod.name.contains("-driver-"));
    assert!(
        others
            .map(|pod| pod.object.to_string())
            .all(|pod| !pod.contains("HF_TOKEN"))
    );
}

#[test]
fn a_cluster_has_one_hub_unless_the_run_names_another() {
    let settings = Settings {
        hub_endpoint: Some("https://mirror.example.com".into()),
        ..Settings::for_tests()
    };
    let endpoints = |run: &RunObservation, settings: &Settings| {
        let environment = driver_pod(run, settings)["containers"][0]["env"].clone();
        let all = environment
            .as_array()
            .unwrap()
            .iter()
            .filter(|variable| variable["name"] == "HF_ENDPOINT");
        all.map(|variable| variable["value"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let mut run = new_demo();
    assert_eq!(endpoints(&run, &Settings::for_tests()), Vec::<String>::new());
    assert_eq!(endpoints(&run, &settings), ["https://mirror.example.com"]);
    let own = json!({"env": [{"name": "HF_ENDPOINT", "value": "http://own"}]});
    run.run.spec.driver = Some(serde_json::from_value(own).unwrap());
    assert_eq!(endpoints(&run, &settings), ["http://own"]);
}

#[test]
fn what_a_run_names_and_what_does_not_exist_is_named_until_a_pod_is_on_a_node() {
    let mut run = running_demo();
    run.run = with_references(run.run);
    run.missing = references(&run.run.spec);
    assert_eq!(run.missing.len(), 3);
    run.driver_pods.clear();
    run.trainer_pods.clear();
    let (_, reason, message) = condition(&decided(&run), "Provisioned");
    assert_eq!(reason, "ReferenceMissing");
    for words in [
        "tasks.train.dataset.hub.tokenSecretRef: there is no Secret hub with the key HF_TOKEN in namespace team; create it",
        "tasks.train.select.instanceIds.configMapRef: there is no ConfigMap django with the key ids.txt",
        "tasks.evaluate[train].select.instanceIds.configMapRef: ",
    ] {
        assert!(message.contains(words), "{message}");
    }
    let mut begun = running_demo();
    begun.missing = run.missing;
    begun.driver_pods[0].node_name = Some("node-a".into());
    assert_ne!(condition(&decided(&begun), "Provisioned").1, "ReferenceMissing");
}

#[test]
fn with_a_queue_no_pod_is_made_while_a_reference_is_missing() {
    let mut run = new_demo();
    run.run = with_references(run.run);
    run.run.spec.queue_name = Some("gpus".into());
    run.missing = references(&run.run.spec);
    let decision = decided(&run);
    assert!(decision.create.is_empty(), "{:?}", names(&decision.objects));
}

/// The demo with a gated model of the hub.
fn with_model(mut run: GrpoRun) -> GrpoRun {
    let hub = json!({"repo": "a/b", "tokenSecretRef": {"name": "hub", "key": "token"}});
    run.spec.model = serde_json::from_value(json!({"hub": hub})).unwrap();
    run
}

#[test]
fn trainer_and_engines_take_the_model_that_the_driver_says_and_only_what_downloads_sees_the_token() {
    let run = seen(with_model(new_demo().run));
    let decision = super::decide(&run, &Settings::for_tests());
    let pods: Vec<_> = decision.create.iter().map(|(_, pod, _)| pod).collect();
    for pod in &pods {
        let spec = &pod.object["spec"];
        let (main, first) = (&spec["containers"][0], &spec["initContainers"][0]);
        let driver = pod.name.contains("-driver-");
        let token = "/model-token";
        assert_eq!(main.to_string().contains(token), driver, "{}", pod.name);
        assert_eq!(first["name"] == "model", !driver, "{}", pod.name);
        if !driver {
            let args = first["args"].to_string();
            for words in ["demo-driver.team.svc:8070/v1/model", "/store/team/demo/hub", token] {
                assert!(args.contains(words), "{args}");
            }
        }
    }
    assert_eq!(pods.len(), 3, "a driver and two of the trainer");
    let policies = decision
        .objects
        .iter()
        .filter(|object| object.object["kind"] == "NetworkPolicy");
    let mut policies = policies.filter(|policy| policy.name.ends_with("-driver"));
    let policy = policies.next().unwrap().object.to_string();
    assert!(policy.contains(r#""grpo.dev/role":"trainer""#), "{policy}");
}

#[test]
fn driver_and_trainer_share_the_cache_of_the_runs_pool() {
    let mut run = with_model(new_demo().run);
    let pool = run.spec.inference.pool.as_mut().unwrap();
    pool.model_cache = serde_json::from_value(json!({"claimName": "models"})).unwrap();
    let decision = super::decide(&seen(run), &Settings::for_tests());
    for (_, pod, _) in &decision.create {
        let spec = &pod.object["spec"];
        let claims = spec["volumes"].as_array().unwrap().iter();
        let claims = claims.filter(|volume| volume["persistentVolumeClaim"]["claimName"] == "models");
        assert_eq!(claims.count(), 1, "{}", pod.name);
        let mounts = spec["containers"][0]["volumeMounts"].as_array().unwrap();
        let cache = mounts
            .iter()
            .find(|mount| mount["mountPath"] == "/model-cache")
            .unwrap();
        assert_eq!(
            cache["readOnly"] == true,
            pod.name.contains("-trainer-"),
            "{}",
            pod.name
        );
    }
}

/// The demo with its model and dataset in buckets.
fn with_buckets(mut run: GrpoRun) -> GrpoRun {
    let bucket = |url: &str, secret: &str| json!({"objectStore": {"url": url, "endpoint": "http://s3.team.svc:9000", "credentialsSecretRef": {"name": secret}}});
    run.spec.model = serde_json::from_value(bucket("s3://models/qwen", "models")).unwrap();
    let train = run.spec.tasks.train.as_mut().unwrap();
    train.dataset = serde_json::from_value(bucket("s3://tasks/train.parquet", "tasks")).unwrap();
    run
}

#[test]
fn keys_of_buckets_are_folders_of_what_downloads_and_in_no_environment() {
    let run = seen(with_buckets(new_demo().run));
    let decision = super::decide(&run, &Settings::for_tests());
    let pods: Vec<_> = decision.create.iter().map(|(_, pod, _)| pod).collect();
    assert_eq!(pods.len(), 3, "a driver and two of the trainer");
    for pod in &pods {
        let spec = &pod.object["spec"];
        let (main, first) = (&spec["containers"][0], &spec["initContainers"][0]);
        let driver = pod.name.contains("-driver-");
        let volumes = spec["volumes"].as_array().unwrap().iter();
        let secrets = volumes.filter_map(|volume| volume["secret"].as_object());
        let secrets: Vec<Value> = secrets.map(|secret| json!(secret)).collect();
        let folder = |name: &str| json!({"secretName": name, "defaultMode": 0o440});
        let (wanted, reader) = match driver {
            true => (vec![folder("tasks"), folder("models")], main),
            false => (vec![folder("models")], first),
        };
        assert_eq!(secrets, wanted, "{}", pod.name);
        let mounts = reader["volumeMounts"].to_string();
        assert!(
            mounts.contains(r#""mountPath":"/model-credentials","name":"model-credentials","readOnly":true"#),
            "{mounts}"
        );
        assert_eq!(mounts.contains(r#""mountPath":"/datasets/0""#), driver, "{mounts}");
        let all = spec.to_string();
        assert!(
            !all.contains("secretKeyRef") && !all.contains("envFrom"),
            "{}",
            pod.name
        );
        if !driver {
            let args = first["args"].to_string();
            let store = r#""--object-store","s3://models/qwen","--object-store-endpoint","http://s3.team.svc:9000""#;
            for words in [
                store,
                r#""--credentials","/model-credentials""#,
                "demo-driver.team.svc:8070/v1/model",
            ] {
                assert!(args.contains(words), "{args}");
            }
        }
    }
    let policies = decision
        .objects
        .iter()
        .filter(|object| object.object["kind"] == "NetworkPolicy");
    let mut policies = policies.filter(|policy| policy.name.ends_with("-driver"));
    let policy = policies.next().unwrap().object.to_string();
    assert!(policy.contains(r#""grpo.dev/role":"trainer""#), "{policy}");
}

#[test]
fn a_missing_secret_of_a_bucket_is_named_without_a_key() {
    let found = references(&with_buckets(new_demo().run).spec);
    let messages: Vec<_> = found.iter().map(|reference| reference.message("team")).collect();
    let wanted = [
        "model.objectStore.credentialsSecretRef: there is no Secret models in namespace team; create it",
        "tasks.train.dataset.objectStore.credentialsSecretRef: there is no Secret tasks in namespace team; create it",
    ];
    assert_eq!(messages, wanted);
}

#[test]
fn a_missing_token_of_the_model_is_a_missing_reference() {
    let found = references(&with_model(new_demo().run).spec);
    let paths: Vec<_> = found.iter().map(|reference| reference.path.as_str()).collect();
    assert_eq!(paths, ["model.hub.tokenSecretRef"]);
}

#[test]
fn the_keys_of_a_stores_bucket_are_files_of_driver_and_trainer_and_asked_for_before() {
    let mut run = new_demo();
    run.run.spec.store = serde_json::from_value(json!({"objectStore": {
        "url": "s3://runs/a", "credentialsSecretRef": {"name": "s3"}}}))
    .unwrap();
    let named = references(&run.run.spec);
    assert_eq!(named.len(), 1);
    let message = named[0].message("team");
    assert!(
        message.contains("store.objectStore.credentialsSecretRef: there is no Secret s3 in"),
        "{message}"
    );
    let decision = super::decide(&seen(run.run), &Settings::for_tests());
    let mut pods = 0;
    for (_, pod, _) in decision
        .create
        .iter()
        .filter(|(_, pod, _)| pod.object["spec"]["containers"].is_array())
    {
        let text = pod.object["spec"].to_string();
        let volume = json!({"name": "store-credentials", "secret": {"secretName": "s3", "defaultMode": 0o440}});
        let volumes = pod.object["spec"]["volumes"].as_array().unwrap();
        if pod.name.contains("-driver-") || pod.name.contains("-trainer-") {
            assert!(volumes.contains(&volume), "{}", pod.name);
            assert!(text.contains(r#""mountPath":"/store-credentials""#), "{}", pod.name);
            pods += 1;
        } else {
            assert!(!text.contains("store-credentials"), "{}", pod.name);
        }
    }
    // The driver and two ranks.
    assert_eq!(pods, 3);
}

/// A cloud's webhook needs an account of a known name and a label, and sets variables that the operator leaves unset.
#[test]
fn buckets_without_a_secret_are_reached_as_the_account_of_the_pod() {
    let mut run = new_demo();
    let bucket = |url: &str| json!({"objectStore": {"url": url}});
    let spec = &mut run.run.spec;
    spec.model = serde_json::from_value(bucket("az://models/qwen")).unwrap();
    spec.store = serde_json::from_value(bucket("s3://runs/a")).unwrap();
    spec.tasks.train.as_mut().unwrap().dataset = serde_json::from_value(bucket("gs://tasks/train.jsonl")).unwrap();
    let label = "azure.workload.identity/use";
    let process = json!({"podTemplate": {"metadata": {"labels": {label: "true"}}},
        "env": [{"name": "AZURE_STORAGE_ACCOUNT_NAME", "value": "team"}]});
    spec.driver = serde_json::from_value(process.clone()).unwrap();
    let mut trainer = json!(spec.trainer);
    trainer
        .as_object_mut()
        .unwrap()
        .extend(process.as_object().unwrap().clone());
    spec.trainer = serde_json::from_value(trainer).unwrap();
    assert!(references(spec).is_empty());

    let decision = super::decide(&seen(run.run), &Settings::for_tests());
    let accounts = decision
        .objects
        .iter()
        .filter(|object| object.object["kind"] == "ServiceAccount");
    let accounts: Vec<&str> = accounts.map(|account| account.name.as_str()).collect();
    let pods: Vec<_> = decision.create.iter().map(|(_, pod, _)| pod).collect();
    assert_eq!(pods.len(), 3, "a driver and two of the trainer");
    for pod in &pods {
        let (account, readers) = match pod.name.contains("-driver-") {
            true => ("demo-driver", vec!["containers"]),
            false => ("demo-trainer", vec!["containers", "initContainers"]),
        };
        let spec = &pod.object["spec"];
        assert_eq!(spec["serviceAccountName"], account, "{}", pod.name);
        assert!(accounts.contains(&account), "{accounts:?}");
        assert_eq!(pod.object["metadata"]["labels"][label], "true", "{}", pod.name);
        assert!(!spec.to_string().contains("credentials"), "{}", pod.name);
        for reader in readers {
            let variables = spec[reader][0]["env"].as_array().unwrap();
            let wanted = json!({"name": "AZURE_STORAGE_ACCOUNT_NAME", "value": "team"});
            assert!(variables.contains(&wanted), "{}: {reader}", pod.name);
        }
    }
}
