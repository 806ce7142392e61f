//! The image of a command-line agent, in pools of a run's own and in shared ones.

use serde_json::json;

use super::{condition, decided, new_demo, running_demo, with_spec};
use crate::{fixtures::find, grpo_run::observation::RunObservation, names};

#[test]
fn a_pool_of_the_runs_own_gets_the_agents_image_and_a_shared_pool_needs_it() {
    let with_cli = |sandboxes: serde_json::Value| {
        with_spec(new_demo(), |run| {
            run.spec.agent =
                serde_json::from_value(json!({"cli": {"preset": "QwenCode", "image": "agent:1"}})).unwrap();
            run.spec.sandboxes = serde_json::from_value(sandboxes).unwrap();
        })
    };
    let own = with_cli(json!({"pool": {"max": 4}}));
    let decision = decided(&own);
    let pool = find(&decision.objects, "SandboxPool", "demo");
    assert_eq!(pool["spec"]["agentImage"], "agent:1");
    let policy = find(&decision.objects, "NetworkPolicy", "demo-driver");
    let from = policy["spec"]["ingress"][0]["from"].as_array().unwrap();
    let gateway = json!({names::SANDBOX_POOL: "demo", names::ROLE: names::role::GATEWAY});
    assert!(
        from.contains(&json!({"podSelector": {"matchLabels": gateway}})),
        "{from:?}"
    );
    let shared = |image: Option<&str>| {
        let mut pool = running_demo().sandboxes.unwrap();
        pool.spec.agent_image = image.map(str::to_owned);
        let sandboxes = Some(pool);
        decided(&RunObservation {
            sandboxes,
            ..with_cli(json!({"poolRef": {"name": "demo"}}))
        })
    };
    for (image, has) in [
        (None, "has no agent image"),
        (Some("agent:2"), "has the agent image agent:2"),
    ] {
        let refused = shared(image);
        let (_, reason, message) = condition(&refused, "Admitted");
        assert_eq!(reason, "AgentImageMissing");
        for words in [has, "agent.cli.image of this run is agent:1", "set spec.agentImage"] {
            assert!(message.contains(words), "{message}");
        }
    }
    assert_ne!(condition(&shared(Some("agent:1")), "Admitted").1, "AgentImageMissing");
}

#[test]
fn the_gateway_of_a_pool_in_another_namespace_reaches_the_driver() {
    let from = |pool: serde_json::Value| {
        let run = with_spec(new_demo(), |run| {
            run.spec.agent =
                serde_json::from_value(json!({"cli": {"preset": "QwenCode", "image": "agent:1"}})).unwrap();
            run.spec.sandboxes = serde_json::from_value(json!({"poolRef": pool})).unwrap();
        });
        let decision = decided(&run);
        let policy = find(&decision.objects, "NetworkPolicy", "demo-driver");
        let mut from = policy["spec"]["ingress"][0]["from"].as_array().unwrap().iter();
        from.find(|peer| peer["podSelector"]["matchLabels"][names::ROLE] == names::role::GATEWAY)
            .unwrap()
            .clone()
    };
    let gateway = json!({"matchLabels": {names::SANDBOX_POOL: "shared", names::ROLE: names::role::GATEWAY}});
    assert_eq!(
        from(json!({"name": "shared", "namespace": "sandboxes"})),
        json!({
            "podSelector": gateway,
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "sandboxes"}},
        })
    );
    for near in [
        json!({"name": "shared"}),
        json!({"name": "shared", "namespace": "team"}),
    ] {
        assert_eq!(from(near), json!({"podSelector": gateway}));
    }
}
