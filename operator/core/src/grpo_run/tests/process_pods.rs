//! The pods of driver and trainer: what they mount and may do, their secrets, priority and places.

use grpo_contracts::RunConfig;
use serde_json::{Value, json};

use super::*;

#[test]
fn the_driver_finds_its_config_store_model_and_datasets() {
    let decision = decided(&new_demo());
    let spec = &created(&decision, "demo-driver-1-0")["spec"];
    let container = &spec["containers"][0];
    assert_eq!(container["args"], json!(["--config", "/etc/grpo/run.json"]));
    assert_eq!(spec["serviceAccountName"], "demo-driver");
    assert_eq!(spec["restartPolicy"], "Never");
    let mounts: Vec<&str> = container["volumeMounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mount| mount["mountPath"].as_str().unwrap())
        .collect();
    let tokens = "/var/run/secrets/grpo.dev/tokens";
    assert_eq!(mounts, ["/etc/grpo", "/store", "/tmp", "/model", "/datasets/0", tokens]);
    let volumes = spec["volumes"].as_array().unwrap();
    assert_eq!(volumes[3]["image"]["reference"], "grpo.dev/demo/model:1");
    assert_eq!(volumes[4]["image"]["reference"], "grpo.dev/demo/tasks:1");
    assert_eq!(variable(container, "GRPO_ATTEMPT"), "1");

    let text = find(&decision.objects, "ConfigMap", "demo-config")["data"]["run.json"]
        .as_str()
        .unwrap();
    let config: RunConfig = serde_json::from_str(text).unwrap();
    assert_eq!(
        (config.uid.as_str(), config.store_path.as_str()),
        ("uid-1", "team/demo")
    );
}

#[test]
fn the_driver_has_a_token_for_each_service_it_calls_and_the_trainer_for_none() {
    let decision = decided(&new_demo());
    let audiences = |pod: &str| {
        let volumes = created(&decision, pod)["spec"]["volumes"].clone();
        let sources = volumes
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|volume| volume["projected"]["sources"].as_array());
        let tokens = sources.flatten().filter_map(|source| source.get("serviceAccountToken"));
        tokens
            .map(|token| token["audience"].as_str().map(str::to_owned))
            .collect::<Vec<_>>()
    };
    let of = |audience: &str| Some(audience.to_owned());
    assert_eq!(
        audiences("demo-driver-1-0"),
        ["gateway.grpo.dev", "trainer.grpo.dev", "engine-agent.grpo.dev"].map(of)
    );
    // The API server's own audience, for the cluster's public keys.
    assert_eq!(audiences("demo-trainer-1-0"), [None]);
}

/// Admission looks at the volumes of these claims.
#[test]
fn every_claim_that_a_pod_mounts_is_the_stores_or_named_by_the_spec() {
    let mut run: Value = serde_yaml_ng::from_str(DEMO).unwrap();
    let rows = json!({"persistentVolumeClaim": {"claimName": "rows", "path": "rows.jsonl"}});
    run["spec"]["tasks"]["train"]["dataset"] = rows;
    run["spec"]["model"] = json!({"persistentVolumeClaim": {"claimName": "models", "path": "m"}});
    run["spec"]["inference"]["pool"]["modelCache"] = json!({"claimName": "cache"});
    let seen = seen(object(&run.to_string()));
    assert_eq!(seen.store_claim().as_deref(), Some("demo-store"));
    let named = seen.named_claims();
    assert_eq!(named.iter().collect::<Vec<_>>(), ["cache", "models", "rows"]);
    let mut mounted = std::collections::BTreeSet::new();
    for (_, pod, _) in &decided(&seen).create {
        for volume in pod.object["spec"]["volumes"].as_array().into_iter().flatten() {
            mounted.extend(volume["persistentVolumeClaim"]["claimName"].as_str().map(str::to_owned));
        }
    }
    assert!(mounted.contains("rows") && mounted.contains("models"), "{mounted:?}");
    assert!(
        mounted
            .iter()
            .all(|claim| claim == "demo-store" || named.contains(claim)),
        "{mounted:?}"
    );
}

/// A claim of `WaitForFirstConsumer` gets its volume after admission, and later pods must go where that can be reached.
#[test]
fn an_admitted_run_looks_up_the_claims_whose_volumes_are_not_known_and_a_waiting_run_all() {
    let models = |run: &mut GrpoRun| {
        run.spec.model = serde_json::from_value(json!({"persistentVolumeClaim": {"claimName": "models"}})).unwrap();
    };
    let with_template = with_spec(new_demo(), models);
    let with_claim = with_spec(with_template.clone(), |run| {
        run.spec.store = serde_json::from_value(json!({"persistentVolumeClaim": {"claimName": "runs"}})).unwrap();
    });
    let in_queue = with_spec(with_claim.clone(), |run| run.spec.queue_name = Some("gpus".into()));
    let kind = Some(StoreVolume::OneNode);
    for (run, admitted, known, kind, wanted) in [
        (&with_template, false, "models", kind, "demo-store models"),
        (&with_template, true, "", kind, "demo-store models"),
        (&with_template, true, "models", kind, "demo-store"),
        (&with_template, true, "demo-store models", None, ""),
        (&with_claim, true, "models runs", kind, ""),
        (&with_claim, true, "models runs", None, "runs"),
        (&in_queue, true, "", kind, ""),
        (&in_queue, true, "", None, "runs"),
    ] {
        let verdict = Verdict {
            admitted,
            reason: Reason::Admitted,
            message: String::new(),
        };
        let run = RunObservation {
            verdict: Some(verdict),
            ..run.clone()
        };
        let known: VolumeTerms = known
            .split_whitespace()
            .map(|claim| (claim.to_owned(), Vec::new()))
            .collect();
        let found = Vec::from_iter(run.claims_to_look_up(&known, kind)).join(" ");
        assert_eq!(found, wanted, "admitted: {admitted}, known: {known:?}");
    }
}

#[test]
fn all_pods_of_a_run_have_the_operators_pull_secrets_beside_their_own_each_once() {
    let mut run: GrpoRun = object(DEMO);
    let secrets = json!([{"name": "own"}, {"name": "operators"}]);
    run.spec.image_pull_secrets = serde_json::from_value(secrets).unwrap();
    let settings = Settings {
        pull_secrets: vec!["operators".into(), "second".into()],
        ..Settings::for_tests()
    };
    let decision = decide(&seen(run), &settings);
    assert_eq!(decision.create.len(), 3);
    for (_, pod, _) in &decision.create {
        let secrets = &pod.object["spec"]["imagePullSecrets"];
        assert_eq!(
            secrets,
            &json!([{"name": "own"}, {"name": "operators"}, {"name": "second"}]),
            "{}",
            pod.name
        );
    }
    let without = decided(&new_demo());
    assert!(
        without
            .create
            .iter()
            .all(|(_, pod, _)| pod.object["spec"]["imagePullSecrets"].is_null())
    );
}

/// On a cluster of exactly the run's size a required rule would leave no node for the next attempt, for ever.
#[test]
fn pods_prefer_other_nodes_than_those_on_which_a_rank_hung_but_may_use_them_and_stay_with_their_store() {
    let mut demo = new_demo();
    demo.attempts.trainer = AttemptStatus {
        current: 2,
        avoid_nodes: vec!["gpu-2".into(), "gpu-7".into()],
        progress_mark: Some(String::new()),
        ..AttemptStatus::default()
    };
    let decision = decided(&demo);
    let pod = created(&decision, "demo-trainer-2-0");
    let affinity = &pod["spec"]["affinity"];
    let nodes = &affinity["nodeAffinity"];
    assert_eq!(nodes["requiredDuringSchedulingIgnoredDuringExecution"], Value::Null);
    let not = |node: &str| {
        let field = json!({"key": "metadata.name", "operator": "NotIn", "values": [node]});
        json!({"weight": 100, "preference": {"matchFields": [field]}})
    };
    assert_eq!(
        nodes["preferredDuringSchedulingIgnoredDuringExecution"],
        json!([not("gpu-2"), not("gpu-7")])
    );
    assert!(affinity["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0].is_object());
    let driver = created(&decision, "demo-driver-1-0");
    assert_eq!(driver["spec"]["affinity"]["nodeAffinity"], Value::Null);

    demo.attempts.driver = AttemptStatus {
        avoid_nodes: vec!["gpu-3".into()],
        progress_mark: Some(String::new()),
        ..AttemptStatus::default()
    };
    let decision = decided(&demo);
    let driver = created(&decision, "demo-driver-1-0");
    let nodes = &driver["spec"]["affinity"]["nodeAffinity"];
    assert_eq!(
        nodes["preferredDuringSchedulingIgnoredDuringExecution"],
        json!([not("gpu-3")])
    );
}

#[test]
fn pods_of_a_run_have_its_priority_and_pull_with_its_secrets_beside_their_own() {
    let mut run: GrpoRun = object(DEMO);
    run.spec.priority_class_name = Some("training".into());
    run.spec.image_pull_secrets = serde_yaml_ng::from_str("[{name: registry}]").unwrap();
    run.spec.trainer.as_mut().unwrap().pod_template =
        serde_yaml_ng::from_str("{spec: {priorityClassName: urgent, imagePullSecrets: [{name: own}]}}").unwrap();
    let decision = decided(&seen(run));
    let of = |name: &str| {
        let spec = &created(&decision, name)["spec"];
        (spec["priorityClassName"].clone(), spec["imagePullSecrets"].clone())
    };
    assert_eq!(
        of("demo-driver-1-0"),
        (json!("training"), json!([{"name": "registry"}]))
    );
    assert_eq!(
        of("demo-trainer-1-0"),
        (json!("urgent"), json!([{"name": "registry"}, {"name": "own"}]))
    );
}

#[test]
fn pods_that_share_a_volume_of_one_node_are_put_on_one_node() {
    let affinity = |store| {
        let decision = decided(&RunObservation { store, ..new_demo() });
        created(&decision, "demo-trainer-1-0")["spec"]["affinity"].clone()
    };
    let terms = affinity(StoreVolume::OneNode);
    let term = &terms["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0];
    assert_eq!(term["labelSelector"]["matchLabels"]["grpo.dev/store"], "demo-store");
    assert_eq!(affinity(StoreVolume::Shared), Value::Null);
}

#[test]
fn what_users_lay_over_pods_is_added_and_our_labels_win() {
    let mut run: GrpoRun = object(DEMO);
    run.spec.trainer.as_mut().unwrap().pod_template = Some(
        serde_yaml_ng::from_str(
            "{metadata: {labels: {team: a, grpo.dev/role: mine}}, spec: {nodeSelector: {gpu: h200}, runtimeClassName: nvidia}}",
        )
        .unwrap(),
    );
    let decision = decided(&seen(run));
    let pod = created(&decision, "demo-trainer-1-0");
    assert_eq!(pod["metadata"]["labels"]["team"], "a");
    assert_eq!(pod["metadata"]["labels"]["grpo.dev/role"], "trainer");
    assert_eq!(pod["spec"]["nodeSelector"]["gpu"], "h200");
    assert_eq!(pod["spec"]["runtimeClassName"], "nvidia");
    assert_eq!(pod["spec"]["restartPolicy"], "Never");
}

#[test]
fn pods_meet_the_restricted_standard() {
    let decision = decided(&new_demo());
    for (_, pod, _) in &decision.create {
        let spec = &pod.object["spec"];
        assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
        assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        let container = &spec["containers"][0]["securityContext"];
        assert_eq!(container["capabilities"]["drop"], json!(["ALL"]));
        assert_eq!(container["allowPrivilegeEscalation"], false);
    }
}
