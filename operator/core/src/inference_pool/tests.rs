mod caches;
mod callers;
mod clients;
mod colocation;
mod golden;
mod status;

use std::time::Duration;

use grpo_crds::InferencePool;
use grpo_engine_protocol::{AgentState, AgentStatus};
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::{
    decide::{Decision, decide},
    observation::InferencePoolObservation,
    template::template,
};
use crate::{
    desired_object::Owner,
    fixtures::{assert_understood, ended, find, names, object, pod, running},
    pods::{PodFacts, PodState},
    quota::QuotaWait,
    settings::Settings,
};

/// A pool accepted by the API server, without pods.
pub fn seeing(yaml: &str) -> InferencePoolObservation {
    let pool: InferencePool = object(yaml);
    InferencePoolObservation {
        owner: Owner::of(&pool).unwrap(),
        pool,
        pods: Vec::new(),
        earlier_pods: Vec::new(),
        agents: Default::default(),
        run: Some("demo".into()),
        claim_is_void: false,
        quota: None,
        now: "2026-01-01T00:00:00Z".parse().unwrap(),
    }
}

fn with_engine(engine: &str, replicas: u32) -> InferencePoolObservation {
    seeing(&format!(
        "{{apiVersion: grpo.dev/v1alpha1, kind: InferencePool, metadata: {{name: demo}}, \
         spec: {{model: {{image: {{reference: 'example.com/model:1', path: weights}}}}, engine: {engine}, replicas: {replicas}}}}}"
    ))
}

fn seen(replicas: u32) -> InferencePoolObservation {
    with_engine("{embedded: {}}", replicas)
}

fn decided(seen: &InferencePoolObservation) -> Decision {
    decide(seen, &Settings::for_tests())
}

/// A pod with the current template.
fn current(seen: &InferencePoolObservation, replica: u32, state: PodState) -> PodFacts {
    PodFacts {
        template: Some(template(seen, &Settings::for_tests())),
        group: replica,
        ..pod(&format!("demo-engine-{replica}-1-0"), 1, 0, state)
    }
}

fn agent(serving: Option<&str>, wanted: Option<&str>, message: Option<&str>) -> AgentStatus {
    AgentStatus {
        instance: "i".into(),
        serving: serving.map(str::to_owned),
        wanted: wanted.map(str::to_owned),
        state: if serving.is_some() {
            AgentState::Idle
        } else {
            AgentState::Booting
        },
        message: message.map(str::to_owned),
        loaded_sha256: None,
        pulled: None,
        changed: None,
        relays: false,
    }
}

fn made(decision: &Decision) -> Vec<&str> {
    decision.create.iter().map(|(pod, _)| pod.name.as_str()).collect()
}

fn condition<'a>(decision: &'a Decision, type_: &str) -> (&'a str, &'a str) {
    let found = decision
        .status
        .conditions
        .iter()
        .find(|condition| condition.type_ == type_);
    found.map_or(("", ""), |condition| {
        (condition.status.as_str(), condition.message.as_str())
    })
}

/// Engines of several nodes need no field of their own for RDMA.
#[test]
fn an_extended_resource_of_the_pool_reaches_the_engine() {
    let mut seen = with_engine("{vllm: {tensorParallel: 8}}", 1);
    seen.pool.spec.resources = serde_json::from_value(json!({"limits": {"rdma/hca": "1"}})).unwrap();
    let pod = decided(&seen).create[0].0.object.clone();
    let limits = &pod["spec"]["containers"][0]["resources"]["limits"];
    assert_eq!(*limits, json!({"nvidia.com/gpu": "8", "rdma/hca": "1"}));
}

#[test]
fn a_new_pool_is_given_its_pods_and_a_service_that_names_them_all() {
    let decision = decided(&seen(2));
    assert_eq!(made(&decision), ["demo-engine-0-1-0", "demo-engine-1-1-0"]);
    assert_eq!(
        names(&decision.objects),
        [
            "ServiceAccount/demo-engines",
            "Service/demo-engines",
            "NetworkPolicy/demo-engines"
        ]
    );
    let service = find(&decision.objects, "Service", "demo-engines");
    assert_eq!(service["spec"]["publishNotReadyAddresses"], true);
    assert_eq!(
        decision.status.url.as_deref(),
        Some("http://demo-engines.team.svc:8000")
    );
    decision
        .objects
        .iter()
        .chain(decision.create.iter().map(|(pod, _)| pod))
        .for_each(assert_understood);
}

#[test]
fn replicas_that_serve_are_left_alone() {
    let mut pool = seen(2);
    pool.pods = vec![current(&pool, 0, running()), current(&pool, 1, running())];
    let decision = decided(&pool);
    assert!(decision.create.is_empty() && decision.delete.is_empty());
    assert_eq!(decision.status.ready.as_deref(), Some("2/2"));
    assert_eq!(condition(&decision, "Ready").0, "True");
}

#[test]
fn surplus_finished_and_outdated_replicas_go() {
    let mut pool = seen(3);
    pool.pods = vec![
        current(&pool, 0, running()),
        current(&pool, 1, ended(1, "")),
        PodFacts {
            template: Some("of another spec".into()),
            ..current(&pool, 2, PodState::Running { ready: false })
        },
        current(&pool, 3, running()),
        current(&pool, 4, running()),
    ];
    pool.pool.spec.replicas = 2;
    let mut decision = decided(&pool);
    decision.delete.sort();
    assert_eq!(
        decision.delete,
        ["demo-engine-1-1-0", "demo-engine-2-1-0", "demo-engine-4-1-0"]
    );
    assert!(decision.create.is_empty(), "what still ends still holds what it had");
}

#[test]
fn a_replica_of_several_pods_is_one_replica_with_one_door() {
    let mut pool = with_engine("{vllm: {tensorParallel: 8, pipelineParallel: 2, nodes: 2}}", 1);
    let decision = decided(&pool);
    assert_eq!(made(&decision), ["demo-engine-0-1-0", "demo-engine-0-1-1"]);
    let pods: Vec<&Value> = decision.create.iter().map(|(pod, _)| &pod.object).collect();
    let selector = find(&decision.objects, "Service", "demo-engines")["spec"]["selector"].clone();
    let selected = |pod: &Value| {
        let labels = &pod["metadata"]["labels"];
        selector
            .as_object()
            .unwrap()
            .iter()
            .all(|(key, value)| labels[key] == *value)
    };
    assert_eq!((selected(pods[0]), selected(pods[1])), (true, false));
    assert_eq!(pods[1]["spec"]["initContainers"], json!(null));
    assert_eq!(pods[0]["spec"]["restartPolicy"], "Never");
    for pod in &pods {
        assert_eq!(
            pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"],
            "8"
        );
    }
    let member = |rank: u32, state: PodState| PodFacts {
        rank,
        name: format!("demo-engine-0-1-{rank}"),
        ..current(&pool, 0, state)
    };
    pool.pods = vec![member(0, running()), member(1, PodState::Running { ready: true })];
    let decision = decided(&pool);
    assert!(decision.create.is_empty() && decision.delete.is_empty());
    assert_eq!(
        (decision.status.replicas, decision.status.ready.as_deref()),
        (1, Some("1/1"))
    );
}

#[test]
fn all_pods_of_a_replica_have_the_operators_pull_secrets() {
    let pool = with_engine("{vllm: {tensorParallel: 2, nodes: 2}}", 1);
    let settings = Settings {
        pull_secrets: vec!["operators".into()],
        ..Settings::for_tests()
    };
    let decision = decide(&pool, &settings);
    assert_eq!(decision.create.len(), 2);
    for (pod, _) in &decision.create {
        assert_eq!(pod.object["spec"]["imagePullSecrets"], json!([{"name": "operators"}]));
    }
}

#[test]
fn an_upgrade_of_the_operator_starts_no_engine_again_that_a_run_has_claimed() {
    let upgraded = Settings {
        agent_image: "grpo.dev/engine-agent:2".into(),
        engine_image: "grpo.dev/engine:2".into(),
        image_pull_policy: "Always".into(),
        process_log: "debug".into(),
        ..Settings::for_tests()
    };
    let deleted = |claimed: bool, change: fn(&mut InferencePool)| {
        let mut pool = seen(1);
        pool.pods = vec![current(&pool, 0, running())];
        let claim = claimed.then(|| json!({"claimedBy": {"name": "run", "uid": "uid-of-run"}}));
        pool.pool.status = claim.map(|status| serde_json::from_value(status).unwrap());
        change(&mut pool.pool);
        decide(&pool, &upgraded).delete
    };
    let nothing: [&str; 0] = [];
    assert_eq!(deleted(true, |_| ()), nothing);
    assert_eq!(deleted(true, |pool| pool.spec.replicas = 2), nothing);
    let variable = |pool: &mut InferencePool| {
        pool.spec.env = serde_json::from_value(json!([{"name": "A", "value": "b"}])).unwrap();
    };
    assert_eq!(deleted(true, variable), ["demo-engine-0-1-0"], "its spec changed");
    assert_eq!(deleted(false, |_| ()), ["demo-engine-0-1-0"], "no run has claimed it");
}

#[test]
fn a_claimed_engine_that_never_ran_is_made_anew_when_the_operators_image_is_corrected() {
    let mut pool = seen(1);
    let status = json!({"claimedBy": {"name": "run", "uid": "uid-of-run"}});
    pool.pool.status = Some(serde_json::from_value(status).unwrap());
    let waiting = PodState::Waiting {
        reason: "ImagePullBackOff".into(),
        message: "no such image".into(),
    };
    pool.pods = vec![current(&pool, 0, waiting)];
    let corrected = Settings {
        engine_image: "grpo.dev/engine:2".into(),
        ..Settings::for_tests()
    };
    assert_eq!(decide(&pool, &corrected).delete, ["demo-engine-0-1-0"]);
}

#[test]
fn engines_of_an_operator_that_knew_one_digest_stay() {
    let settings = Settings::for_tests();
    let mut pool = seen(1);
    let now = template(&pool, &settings);
    let (_, build) = now.split_once('-').unwrap();
    let of = |digest: &str, pool: &InferencePoolObservation| PodFacts {
        template: Some(digest.to_owned()),
        ..current(pool, 0, running())
    };
    pool.pods = vec![of(build, &pool)];
    assert!(decide(&pool, &settings).delete.is_empty(), "made as it is made now");
    pool.pods = vec![of("68a91067aa523387", &pool)];
    assert_eq!(decide(&pool, &settings).delete, ["demo-engine-0-1-0"]);
    let status = json!({"claimedBy": {"name": "run", "uid": "uid-of-run"}});
    pool.pool.status = Some(serde_json::from_value(status).unwrap());
    assert!(decide(&pool, &settings).delete.is_empty(), "it holds a run's weights");
}

#[test]
fn a_flag_that_the_operator_sets_itself_leaves_everything_as_it_is_and_is_named() {
    let mut pool = with_engine("{vllm: {extraArgs: ['--tensor-par=4']}}", 1);
    pool.pods = vec![PodFacts {
        template: Some("of an earlier spec".into()),
        ..current(&pool, 0, running())
    }];
    let decision = decided(&pool);
    assert!(decision.create.is_empty() && decision.delete.is_empty());
    let (status, message) = condition(&decision, "Accepted");
    assert_eq!(status, "False");
    for words in ["extraArgs[0]", "--tensor-par=4", "engine.vllm.tensorParallel"] {
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(condition(&decision, "Ready").0, "False");
}

#[test]
fn what_agents_say_is_shown_as_weights_and_updated() {
    let mut pool = seen(2);
    pool.pods = vec![current(&pool, 0, running()), current(&pool, 1, running())];
    pool.agents = [
        ("demo-engine-0-1-0".to_owned(), agent(Some("a-v2"), Some("a-v2"), None)),
        (
            "demo-engine-1-1-0".to_owned(),
            agent(Some("a-v1"), Some("a-v2"), Some("pulling a-v2")),
        ),
    ]
    .into();
    let decision = decided(&pool);
    assert_eq!(decision.status.weights.as_deref(), Some("a-v1,a-v2"));
    assert_eq!(decision.status.updated.as_deref(), Some("1/2"));
    let (status, message) = condition(&decision, "Updated");
    assert_eq!(status, "False");
    assert!(
        message.contains("pod demo-engine-1-1-0 is to serve a-v2: pulling a-v2"),
        "{message}"
    );
    assert_eq!(condition(&decision, "Ready").0, "True", "a sync empties no service");
}

#[test]
fn an_external_engine_is_ready_when_its_probe_was_passed_and_says_what_failed() {
    let mut pool = with_engine("{external: {url: 'https://example.com/v1'}}", 1);
    pool.pods = vec![current(&pool, 0, PodState::Running { ready: false })];
    pool.agents = [(
        "demo-engine-0-1-0".to_owned(),
        agent(None, None, Some("no logprobs came back")),
    )]
    .into();
    let decision = decided(&pool);
    assert_eq!(condition(&decision, "Probed"), ("False", "no logprobs came back"));
    assert!(condition(&decision, "Ready").1.contains("no logprobs came back"));
    assert!(
        decision.again.is_some(),
        "the server may become fit without a pod's doing"
    );
    pool.pods = vec![current(&pool, 0, running())];
    pool.agents = [("demo-engine-0-1-0".to_owned(), agent(Some("base"), None, None))].into();
    let decision = decided(&pool);
    assert_eq!(condition(&decision, "Probed").0, "True");
    assert_eq!(condition(&decision, "Ready").0, "True");
}

#[test]
fn an_external_server_is_asked_through_the_api_that_it_has() {
    for (api, kind, words) in [("Tokens", "openai", "token ids"), ("Chat", "chat", "in text")] {
        let engine = format!("{{external: {{url: 'https://example.com/v1', api: {api}}}}}");
        let mut pool = with_engine(&engine, 1);
        let args = decided(&pool).create[0].0.object["spec"]["containers"][0]["args"].to_string();
        assert!(args.contains(&format!(r#""--kind","{kind}""#)), "{args}");
        pool.pods = vec![current(&pool, 0, running())];
        pool.agents = [("demo-engine-0-1-0".to_owned(), agent(Some("base"), None, None))].into();
        let decision = decided(&pool);
        assert!(condition(&decision, "Probed").1.contains(words));
    }
}

#[test]
fn the_variables_of_a_pool_reach_the_agent_of_an_external_engine_and_no_other_agent() {
    let has = |engine: &str| {
        let mut seen = with_engine(engine, 1);
        let proxy = json!([{"name": "HTTPS_PROXY", "value": "http://proxy.example.com:3128"}]);
        seen.pool.spec.env = serde_json::from_value(proxy.clone()).unwrap();
        let decision = decided(&seen);
        let spec = &decision.create[0].0.object["spec"];
        let of = |list: &str| spec[list].as_array().cloned().unwrap_or_default();
        let containers = [of("containers"), of("initContainers")].concat();
        let agent = containers
            .iter()
            .find(|container| container["name"] == "agent")
            .unwrap();
        agent["env"].as_array().unwrap().contains(&proxy[0])
    };
    assert!(has("{external: {url: 'https://example.com/v1'}}"));
    assert!(!has("{embedded: {}}"));
    assert!(!has("{vllm: {}}"));
}

#[test]
fn a_pool_at_rest_is_not_looked_at_again() {
    let mut pool = seen(1);
    pool.pods = vec![current(&pool, 0, running())];
    pool.agents = [("demo-engine-0-1-0".to_owned(), agent(Some("base"), None, None))].into();
    assert_eq!(decided(&pool).again, None);
}

#[test]
fn what_a_replica_waits_for_is_in_the_message() {
    let mut pool = seen(1);
    let waiting = PodState::Waiting {
        reason: "ImagePullBackOff".into(),
        message: "pod demo-engine-0-1-0 cannot get an image".into(),
    };
    pool.pods = vec![current(&pool, 0, waiting)];
    let decision = decided(&pool);
    assert_eq!(condition(&decision, "Ready").0, "False");
    assert!(decision.status.message.unwrap().contains("cannot get an image"));
}

#[test]
fn a_claim_of_a_run_that_is_gone_is_released_and_the_operators_status_never_holds_one() {
    let mut pool = seen(1);
    pool.claim_is_void = true;
    let decision = decided(&pool);
    assert!(decision.release_claim);
    assert_eq!(decision.status.claimed_by, None);
}

#[test]
fn a_pool_says_whose_weights_it_serves_also_after_the_claim_until_it_serves_its_own_model_again() {
    let claim = |name: &str| json!({"name": name, "uid": format!("uid-of-{name}")});
    let whose = |status: Value, agents: &[AgentStatus]| {
        let mut pool = seen(1);
        pool.pods = vec![current(&pool, 0, running())];
        pool.pool.status = Some(serde_json::from_value(status).unwrap());
        let names = ["demo-engine-0-1-0".to_owned()].into_iter();
        pool.agents = names.zip(agents.iter().cloned()).collect();
        decided(&pool).status.weights_of.map(|run| run.name)
    };
    let (trained, base) = (
        agent(Some("l1-v5"), Some("l1-v5"), None),
        agent(Some("base"), None, None),
    );
    let first = || Some("first".to_owned());
    assert_eq!(
        whose(json!({"claimedBy": claim("first")}), std::slice::from_ref(&base)),
        first()
    );
    let after = json!({"weightsOf": claim("first")});
    assert_eq!(whose(after.clone(), std::slice::from_ref(&trained)), first());
    assert_eq!(
        whose(after.clone(), &[]),
        first(),
        "an agent that misses a question may serve them"
    );
    assert_eq!(whose(after.clone(), std::slice::from_ref(&base)), None);
    let both = json!({"weightsOf": claim("first"), "claimedBy": claim("second")});
    assert_eq!(whose(both, std::slice::from_ref(&base)), Some("second".to_owned()));
    assert_eq!(whose(json!({}), &[base]), None);
}

#[test]
fn a_pool_that_the_quota_refused_makes_nothing_and_gives_back_what_is_on_no_node() {
    let mut pool = seen(3);
    let mut pods = [0, 1].map(|number| current(&pool, number, PodState::Running { ready: false }));
    pods[0].node_name = Some("node-a".into());
    let unbound = pods[1].name.clone();
    pool.pods = pods.into();
    for (refused, delete) in [(true, vec![unbound]), (false, Vec::new())] {
        pool.quota = Some(QuotaWait {
            until: pool.now + SignedDuration::from_secs(10),
            refused,
            message: "exceeded quota: pods".into(),
        });
        let decision = decided(&pool);
        assert!(decision.create.is_empty());
        assert_eq!(decision.delete, delete);
        assert!(decision.again.unwrap() <= Duration::from_secs(11));
        let ready = decision.status.conditions.iter().find(|one| one.type_ == "Ready");
        assert_eq!(ready.unwrap().reason, "QuotaExceeded");
        assert!(decision.status.message.unwrap().contains("exceeded quota: pods"));
    }
}
