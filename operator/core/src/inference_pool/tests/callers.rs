//! Who may call the agents of a pool, and to whom they show their token.

use serde_json::json;

use super::*;

#[test]
fn the_engine_listens_on_loopback_and_the_agent_is_its_only_door() {
    let decision = decided(&seen(1));
    let containers = &decision.create[0].0.object["spec"]["containers"];
    assert_eq!(
        containers[0]["args"],
        json!(["--model-dir", "/model/weights", "--listen", "127.0.0.1:8001"])
    );
    assert_eq!(containers[0]["ports"], json!(null));
    assert_eq!(
        containers[1]["args"],
        json!([
            "--engine",
            "http://127.0.0.1:8001",
            "--cache-dir",
            "/cache",
            "--allow",
            "team/demo-driver",
            "--allow-chunks",
            "team/demo-engines"
        ])
    );
    assert_eq!(containers[1]["readinessProbe"]["httpGet"]["path"], "/readyz");
    assert_eq!(decision.create[0].0.object["spec"]["restartPolicy"], "Always");
}

#[test]
fn the_agents_of_a_runs_own_pool_let_in_its_driver_the_operator_and_for_chunks_each_other() {
    let pool = InferencePoolObservation {
        run: Some("mine".to_owned()),
        ..seen(1)
    };
    let settings = Settings {
        account: Some("grpo-system/grpo-operator".to_owned()),
        ..Settings::for_tests()
    };
    let decision = decide(&pool, &settings);
    let agent = decision.create[0].0.object["spec"]["containers"][1]["args"].to_string();
    let allowed = r#""--allow","team/mine-driver","--allow-chunks","team/demo-engines","--allow-status","grpo-system/grpo-operator"]"#;
    assert!(agent.ends_with(allowed), "{agent}");
    let policy = &find(&decision.objects, "NetworkPolicy", "demo-engines")["spec"];
    assert_eq!(
        policy["ingress"][1]["from"][0]["podSelector"]["matchLabels"],
        json!({"grpo.dev/role": "driver", "grpo.dev/run": "mine"})
    );
}

#[test]
fn the_agents_of_a_pool_that_no_run_owns_let_in_the_runs_of_its_namespace() {
    let pool = InferencePoolObservation { run: None, ..seen(1) };
    let decision = decided(&pool);
    let agent = decision.create[0].0.object["spec"]["containers"][1]["args"].to_string();
    assert!(
        agent.ends_with(r#""--allow","team/*-driver","--allow","team/*-engines"]"#),
        "{agent}"
    );
    let policy = &find(&decision.objects, "NetworkPolicy", "demo-engines")["spec"];
    assert_eq!(
        policy["ingress"][1]["from"][0],
        json!({"podSelector": {"matchExpressions": [
            {"key": "grpo.dev/role", "operator": "In", "values": ["driver", "engine"]},
        ]}}),
        "of any run, whether it samples from the pool or is judged by it"
    );
}

#[test]
fn an_agent_shows_its_token_to_other_agents_of_the_cluster_only() {
    let shows = |url: &str, more: &str| {
        let engine = format!("{{external: {{url: '{url}', weights: Agent{more}}}}}");
        let decision = decided(&with_engine(&engine, 1));
        let args = decision.create[0].0.object["spec"]["containers"][0]["args"].clone();
        args.as_array().unwrap().iter().any(|flag| flag == "--own-token")
    };
    assert!(shows("http://other-engines.team.svc:8000", ""));
    assert!(shows("http://other-engines.team.svc.cluster.local:8000/v1", ""));
    assert!(!shows("http://engines.example.com", ""));
    assert!(!shows("https://svc.example.com/x.svc", ""));
    assert!(!shows(
        "http://other-engines.team.svc:8000",
        ", apiKeySecretRef: {name: s, key: k}"
    ));
}
