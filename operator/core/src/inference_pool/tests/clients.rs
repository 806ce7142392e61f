//! Clients outside of runs.

use super::*;

/// A pool that no run owns, with two clients: one of its own namespace, one of another.
fn with_clients(engine: &str) -> InferencePoolObservation {
    let pool = seeing(&format!(
        "{{apiVersion: grpo.dev/v1alpha1, kind: InferencePool, metadata: {{name: demo}}, spec: {{\
         model: {{image: {{reference: 'example.com/model:1', path: weights}}}}, engine: {engine}, \
         clients: [{{serviceAccount: notebook}}, {{serviceAccount: harness, namespace: eval}}]}}}}"
    ));
    InferencePoolObservation { run: None, ..pool }
}

/// The arguments of the agent in the pool's first pod.
fn agent_arguments(decision: &Decision) -> String {
    let spec = &decision.create[0].0.object["spec"];
    let lists = ["initContainers", "containers"].map(|list| spec[list].as_array().cloned().unwrap_or_default());
    let agent = lists.iter().flatten().find(|container| container["name"] == "agent");
    agent.unwrap()["args"].to_string()
}

#[test]
fn the_agents_of_every_engine_let_clients_sample_and_grant_them_nothing_else() {
    for engine in [
        "{embedded: {}}",
        "{vllm: {}}",
        "{sglang: {}}",
        "{external: {url: 'http://vllm.other.svc:8000/v1'}}",
    ] {
        let decision = decided(&with_clients(engine));
        let arguments = agent_arguments(&decision);
        let granted = r#""--allow-sampling","team/notebook","--allow-sampling","eval/harness""#;
        assert!(arguments.contains(granted), "{engine}: {arguments}");
        for other in [
            r#""--allow","team/notebook""#,
            r#""--allow","eval/harness""#,
            "--allow-chunks",
        ] {
            assert!(!arguments.contains(other), "{engine}: {arguments}");
        }
    }
}

#[test]
fn clients_reach_the_replicas_that_serve_through_a_service_of_their_own() {
    let decision = decided(&with_clients("{vllm: {}}"));
    decision.objects.iter().for_each(assert_understood);
    let service = &find(&decision.objects, "Service", "demo-clients")["spec"];
    assert_eq!(service["clusterIP"], Value::Null, "a headless service divides nothing");
    assert_eq!(service["publishNotReadyAddresses"], Value::Null);
    let all = &find(&decision.objects, "Service", "demo-engines")["spec"];
    assert_eq!(
        (&service["selector"], &service["ports"]),
        (&all["selector"], &all["ports"])
    );
    assert_eq!(
        decision.status.clients_url.as_deref(),
        Some("http://demo-clients.team.svc:8000")
    );
    assert!(decision.delete_services.is_empty());
}

#[test]
fn labelled_pods_of_the_clients_namespaces_reach_the_agents() {
    let decision = decided(&with_clients("{embedded: {}}"));
    let policy = &find(&decision.objects, "NetworkPolicy", "demo-engines")["spec"];
    let from = policy["ingress"][1]["from"].as_array().unwrap();
    assert_eq!(
        from.last().unwrap(),
        &json!({
            "namespaceSelector": {"matchExpressions": [
                {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["eval", "team"]},
            ]},
            "podSelector": {"matchLabels": {"grpo.dev/inference-client": "demo"}},
        })
    );
    let without = decided(&seen(1));
    let policy = &find(&without.objects, "NetworkPolicy", "demo-engines")["spec"];
    assert_eq!(policy["ingress"][1]["from"].as_array().unwrap().len(), from.len() - 1);
}

#[test]
fn the_service_goes_when_the_pool_has_no_clients_any_more() {
    let mut pool = with_clients("{embedded: {}}");
    pool.pool.spec.clients.clear();
    let decision = decided(&pool);
    assert_eq!(decision.delete_services, ["demo-clients"]);
    assert!(!names(&decision.objects).contains(&"Service/demo-clients".to_owned()));
    assert_eq!(decision.status.clients_url, None);
    assert!(!agent_arguments(&decision).contains("--allow-sampling"));
    // What a deleted pool owns goes with it.
    pool.pool.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(pool.now));
    assert!(decided(&pool).delete_services.is_empty());
}

#[test]
fn a_change_of_the_clients_replaces_replicas_also_while_a_run_claims_the_pool() {
    let mut pool = with_clients("{embedded: {}}");
    let claim = json!({"claimedBy": {"name": "r", "uid": "u"}});
    pool.pool.status = Some(serde_json::from_value(claim).unwrap());
    pool.pods = vec![current(&pool, 0, running())];
    assert!(decided(&pool).delete.is_empty());
    pool.pool.spec.clients.pop();
    assert_eq!(
        decided(&pool).delete,
        ["demo-engine-0-1-0"],
        "a removed client is out at once"
    );
}
