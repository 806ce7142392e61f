use std::sync::Arc;

use grpo_crds::{SandboxPool, SandboxPoolSpec};
use grpo_sandbox_protocol::{EgressReport, PoolReport};
use serde_json::{Value, json};

use super::{
    decide::{Decision, decide},
    observation::SandboxPoolObservation,
};
use crate::{
    desired_object::{Keep, Owner},
    fixtures::{assert_understood, find, names, object, pod, running},
    pods::PodState,
    settings::Settings,
};

fn seen(spec: &str) -> SandboxPoolObservation {
    let pool: SandboxPool = object(&format!(
        "{{apiVersion: grpo.dev/v1alpha1, kind: SandboxPool, metadata: {{name: demo}}, spec: {spec}}}"
    ));
    SandboxPoolObservation {
        owner: Owner::of(&pool).unwrap(),
        pool,
        gateway_pods: Vec::new(),
        sandbox_pods: Vec::new(),
        leases: 0,
        report: None,
        run: None,
        now: "2026-01-01T00:00:00Z".parse().unwrap(),
    }
}

fn decided(seen: &SandboxPoolObservation) -> Decision {
    decide(seen, &Settings::for_tests())
}

#[test]
fn a_pool_is_given_a_gateway_with_its_rights_its_key_and_its_ledger() {
    let decision = decided(&seen("{max: 4}"));
    assert_eq!(
        names(&decision.objects),
        [
            "ConfigMap/demo-gateway",
            "Secret/demo-gateway-key",
            "ConfigMap/demo-ledger-0",
            "ServiceAccount/demo-gateway",
            "Role/demo-gateway",
            "RoleBinding/demo-gateway",
            "ServiceAccount/demo-client",
            "NetworkPolicy/demo-sandboxes",
            "NetworkPolicy/demo-gateway",
            "Service/demo-gateway",
            "Deployment/demo-gateway",
        ]
    );
    decision.objects.iter().for_each(assert_understood);
}

#[test]
fn key_and_ledger_are_made_once_and_never_written_again() {
    let decision = decided(&seen("{max: 4}"));
    let once: Vec<&str> = decision
        .objects
        .iter()
        .filter(|desired| desired.keep == Keep::CreatedOnce)
        .map(|desired| desired.name.as_str())
        .collect();
    assert_eq!(once, ["demo-gateway-key", "demo-ledger-0"]);
}

#[test]
fn the_gateway_reads_the_spec_as_its_pool_file_and_is_replaced_when_that_changes() {
    let of = |spec: &str| {
        let decision = decided(&seen(spec));
        let text = find(&decision.objects, "ConfigMap", "demo-gateway")["data"]["pool.json"]
            .as_str()
            .unwrap()
            .to_owned();
        let template = find(&decision.objects, "Deployment", "demo-gateway")["spec"]["template"].clone();
        (serde_json::from_str::<SandboxPoolSpec>(&text).unwrap(), template)
    };
    let (spec, template) = of("{max: 4}");
    assert_eq!(spec.max, 4);
    assert_eq!(of("{max: 4}").1, template);
    assert_ne!(of("{max: 5}").1, template);
    let container = &template["spec"]["containers"][0];
    assert_eq!(
        container["args"],
        json!([
            "--pool-file",
            "/etc/grpo/pool.json",
            "--pool",
            "demo",
            "--namespace",
            "team",
            "--pool-uid",
            "uid-1",
            "--key-file",
            "/etc/grpo/key/seed",
            "--sandboxd-image",
            "grpo.dev/sandboxd:dev",
            "--ledger",
            "demo-ledger-0",
            "--listen",
            "[::]:8080",
            "--allow",
            "team/*-driver",
            "--allow",
            "team/demo-client"
        ])
    );
}

#[test]
fn a_gateway_that_makes_no_progress_is_restarted() {
    let objects = decided(&seen("{max: 1}")).objects;
    let gateway = find(&objects, "Deployment", "demo-gateway");
    let probe = &gateway["spec"]["template"]["spec"]["containers"][0]["livenessProbe"];
    assert_eq!(probe["httpGet"], json!({"path": "/healthz", "port": 8080}));
    assert_eq!(
        (&probe["periodSeconds"], &probe["failureThreshold"]),
        (&json!(10), &json!(6))
    );
}

#[test]
fn the_gateway_of_a_runs_own_pool_lets_in_no_other_run() {
    let seen = SandboxPoolObservation {
        run: Some("mine".to_owned()),
        ..seen("{max: 1}")
    };
    let objects = decided(&seen).objects;
    let gateway = find(&objects, "Deployment", "demo-gateway");
    let arguments = gateway["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
    assert!(arguments.contains(r#""--allow","team/mine-driver""#), "{arguments}");
    assert!(!arguments.contains("*-driver"), "{arguments}");
    let policy = &find(&objects, "NetworkPolicy", "demo-gateway")["spec"];
    assert_eq!(policy["policyTypes"], json!(["Ingress"]));
    assert_eq!(
        policy["ingress"][0]["from"][0]["podSelector"]["matchLabels"],
        json!({"grpo.dev/role": "driver", "grpo.dev/run": "mine"})
    );
    assert_eq!(
        policy["ingress"][0]["ports"],
        json!([{"protocol": "TCP", "port": 8080}])
    );
}

#[test]
fn a_large_pool_has_a_ledger_for_every_256_leases() {
    let decision = decided(&seen("{max: 600}"));
    let ledgers = ["demo-ledger-0", "demo-ledger-1", "demo-ledger-2"];
    for ledger in ledgers {
        find(&decision.objects, "ConfigMap", ledger);
    }
    let rules = &find(&decision.objects, "Role", "demo-gateway")["rules"];
    assert_eq!(rules[1]["resourceNames"], json!(ledgers));
    let gateway = find(&decision.objects, "Deployment", "demo-gateway");
    let arguments = gateway["spec"]["template"]["spec"]["containers"][0]["args"]
        .as_array()
        .unwrap();
    let given = arguments
        .iter()
        .zip(arguments.iter().skip(1))
        .filter(|(flag, _)| *flag == "--ledger");
    assert_eq!(given.map(|(_, name)| name.clone()).collect::<Vec<_>>(), ledgers);
}

#[test]
fn the_gateway_may_touch_pods_and_its_own_ledger_and_read_events_only() {
    let decision = decided(&seen("{max: 4}"));
    let rules = &find(&decision.objects, "Role", "demo-gateway")["rules"];
    assert_eq!(rules[0]["resources"], json!(["pods"]));
    assert_eq!(rules[1]["resourceNames"], json!(["demo-ledger-0"]));
    let others: Vec<&Value> = rules.as_array().unwrap().iter().skip(2).collect();
    let read = |rule: &&Value| rule["resources"] == json!(["events"]) && rule["verbs"] == json!(["list"]);
    assert!(others.len() == 1 && others.iter().all(read), "{others:?}");
}

#[test]
fn sandboxes_are_reached_by_their_gateway_and_reach_nothing() {
    let decision = decided(&seen("{max: 4}"));
    let policy = &find(&decision.objects, "NetworkPolicy", "demo-sandboxes")["spec"];
    assert_eq!(policy["policyTypes"], json!(["Ingress", "Egress"]));
    assert_eq!(policy["egress"], json!(null), "no rule lets anything out");
    let from = &policy["ingress"][0]["from"][0]["podSelector"]["matchLabels"];
    assert_eq!(
        *from,
        json!({"grpo.dev/sandbox-pool": "demo", "grpo.dev/role": "gateway"})
    );
}

#[test]
fn the_pool_counts_its_sandboxes_and_is_ready_when_its_gateway_is() {
    let mut pool = seen("{max: 4, allowUnenforced: true}");
    assert_eq!(decided(&pool).status.conditions[0].status, "False");
    pool.gateway_pods = vec![pod("demo-gateway-x", 0, 0, running())];
    let starting = PodState::Waiting {
        reason: "ContainerCreating".into(),
        message: String::new(),
    };
    pool.sandbox_pods = vec![pod("demo-sbx-a", 0, 0, running()), pod("demo-sbx-b", 0, 0, starting)];
    pool.leases = 1;
    let status = decided(&pool).status;
    assert_eq!(status.conditions[0].status, "True");
    assert_eq!((status.ready, status.pending, status.leased), (1, 1, 1));
    assert_eq!(
        (
            status.conditions[1].status.as_str(),
            status.conditions[1].reason.as_str()
        ),
        ("Unknown", "NotProbed")
    );
    pool.report = Some(Arc::new(PoolReport {
        egress: Some(EgressReport {
            at: 1,
            tried: vec!["the API server (10.0.0.1:443)".into()],
            reached: Vec::new(),
            blocked_after_seconds: None,
            failed: None,
        }),
        ..PoolReport::default()
    }));
    pool.pool.status = Some(status);
    let decision = decided(&pool);
    assert_eq!(decision.status.egress_blocked.as_deref(), Some("True"));
    assert_eq!(decision.events.len(), 1);
    pool.pool.status = Some(decision.status);
    assert_eq!(decided(&pool).events.len(), 0, "told once");
}

#[test]
fn a_sandbox_image_that_cannot_be_pulled_is_shown_on_the_pool() {
    let mut pool = seen("{max: 4}");
    let stuck = PodState::Waiting {
        reason: "ImagePullBackOff".into(),
        message: "pod demo-sbx-a cannot get an image".into(),
    };
    pool.sandbox_pods = vec![pod("demo-sbx-a", 0, 0, stuck)];
    assert!(decided(&pool).status.message.unwrap().contains("cannot get an image"));
}

#[test]
fn runs_of_namespaces_that_a_pool_lets_in_reach_its_gateway_and_no_others() {
    let objects = decided(&seen("{max: 4, allowedNamespaces: [b, a, team]}")).objects;
    let gateway = find(&objects, "Deployment", "demo-gateway");
    let arguments = gateway["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
    for (account, times) in [
        ("team/*-driver", 1),
        ("a/*-driver", 1),
        ("b/*-driver", 1),
        ("team/demo-client", 1),
        ("a/demo-client", 0),
        ("c/*-driver", 0),
    ] {
        let found = arguments.matches(&format!("\"{account}\"")).count();
        assert_eq!(found, times, "{account}: {arguments}");
    }
    let policy = find(&objects, "NetworkPolicy", "demo-gateway");
    let from = policy["spec"]["ingress"][0]["from"].as_array().unwrap();
    let others = from.last().unwrap();
    let expression = &others["namespaceSelector"]["matchExpressions"][0];
    assert_eq!(expression["key"], "kubernetes.io/metadata.name");
    assert_eq!(expression["values"], json!(["b", "a"]));
    assert_eq!(others["podSelector"]["matchLabels"], json!({"grpo.dev/role": "driver"}));
}

#[test]
fn graders_reach_the_package_index_on_the_port_of_its_pods_and_nothing_else() {
    let ours = "{url: 'http://pypi/simple', pods: {matchLabels: {app: pypi}}}";
    let theirs =
        "{url: 'http://pypi.packages.svc/simple', port: 8080, pods: {namespace: packages, matchLabels: {app: pypi}}}";
    let outside = "{url: 'https://10.1.2.3/simple', cidr: 10.1.2.3/32}";
    let namespace = json!({"matchLabels": {"kubernetes.io/metadata.name": "packages"}});
    let pods = json!({"matchLabels": {"app": "pypi"}});
    for (index, peer, port) in [
        (ours, json!({"podSelector": pods}), 80),
        (
            theirs,
            json!({"namespaceSelector": namespace, "podSelector": pods}),
            8080,
        ),
        (outside, json!({"ipBlock": {"cidr": "10.1.2.3/32"}}), 443),
    ] {
        let decision = decided(&seen(&format!("{{max: 4, packageIndex: {index}}}")));
        decision.objects.iter().for_each(assert_understood);
        assert_eq!(decision.delete_policies.len(), 0);
        let policy = &find(&decision.objects, "NetworkPolicy", "demo-graders")["spec"];
        assert_eq!(
            policy["podSelector"]["matchLabels"],
            json!({"grpo.dev/sandbox-pool": "demo", "grpo.dev/role": "sandbox", "grpo.dev/grader": "true"})
        );
        assert_eq!(policy["policyTypes"], json!(["Egress"]));
        assert_eq!(
            policy["egress"],
            json!([{"to": [peer], "ports": [{"protocol": "TCP", "port": port}]}]),
            "{index}"
        );
        let of_all = &find(&decision.objects, "NetworkPolicy", "demo-sandboxes")["spec"];
        assert_eq!(of_all["egress"], json!(null), "agents reach nothing");
    }
}

#[test]
fn the_gateway_may_label_pods_only_in_a_pool_with_a_package_index() {
    let may_patch = |spec: &str| {
        let rules = find(&decided(&seen(spec)).objects, "Role", "demo-gateway")["rules"].clone();
        rules[0]["verbs"].as_array().unwrap().contains(&json!("patch"))
    };
    assert!(!may_patch("{max: 4}"));
    assert!(may_patch(
        "{max: 4, packageIndex: {url: 'http://10.1.2.3/simple', cidr: 10.1.2.3/32}}"
    ));
}

#[test]
fn the_policy_of_graders_goes_when_the_pool_names_no_package_index_any_more() {
    assert_eq!(decided(&seen("{max: 4}")).delete_policies, ["demo-graders"]);
}

#[test]
fn the_gateway_and_the_sandboxes_that_it_makes_have_the_operators_pull_secrets() {
    let settings = Settings {
        pull_secrets: vec!["operators".into()],
        ..Settings::for_tests()
    };
    let made = decide(
        &seen("{max: 4, podTemplate: {spec: {imagePullSecrets: [{name: own}]}}}"),
        &settings,
    )
    .objects;
    let gateway = &find(&made, "Deployment", "demo-gateway")["spec"]["template"]["spec"];
    assert_eq!(gateway["imagePullSecrets"], json!([{"name": "operators"}]));
    let text = find(&made, "ConfigMap", "demo-gateway")["data"]["pool.json"]
        .as_str()
        .unwrap();
    let pool: Value = serde_json::from_str(text).unwrap();
    let secrets = &pool["podTemplate"]["spec"]["imagePullSecrets"];
    assert_eq!(secrets, &json!([{"name": "own"}, {"name": "operators"}]));
}

#[test]
fn a_gateway_without_a_pod_says_where_the_cause_is_told() {
    let message = decided(&seen("{max: 4}")).status.message.unwrap();
    let command = "kubectl describe replicaset -n team -l grpo.dev/sandbox-pool=demo";
    assert!(message.contains(command), "{message}");
}

/// The API server refuses to apply a list of variables in which a name occurs twice.
#[test]
fn a_variable_occurs_once_in_the_gateway_also_if_the_pool_repeats_it_or_names_one_of_ours() {
    let ours = "{name: HOME, value: /root}, {name: RUST_LOG, value: debug}";
    let env = format!("[{{name: A, value: '1'}}, {ours}, {{name: A, value: '2'}}]");
    let objects = decided(&seen(&format!("{{max: 4, gateway: {{env: {env}}}}}"))).objects;
    let gateway = find(&objects, "Deployment", "demo-gateway");
    let variables = &gateway["spec"]["template"]["spec"]["containers"][0]["env"];
    for (name, value) in [("HOME", "/tmp"), ("A", "2"), ("RUST_LOG", "debug")] {
        let all = variables.as_array().unwrap().iter();
        let found: Vec<&Value> = all.filter(|one| one["name"] == name).collect();
        assert_eq!(found, [&json!({"name": name, "value": value})], "{variables}");
    }
}
