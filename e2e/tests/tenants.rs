//! Two teams on a real cluster: mallory, who has the cluster role `edit` in a namespace of her own, tries to reach the
//! run of another team: by the API server, by manifests, at a viewer, and by the network, with tokens that she can
//! make.
//!
//! The cluster that `make cluster` builds enforces no NetworkPolicy, so only tokens and rights hold here.
//! Needs a cluster with images: `make test-tenants`. [`policies`] is for a cluster that enforces NetworkPolicies:
//! `make test-kind`.

mod policies;
mod viewer;

use crate::support::{RUN_LIMIT, Result, SOON, Scene, nodes, small_run};
use grpo_contracts::access::{Service, account};
use grpo_crds::SandboxPool;
use grpo_testing::cluster::token::service_token;
use grpo_testing::cluster::{kubeconfig_path, wait};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use serde_json::{Value, json};

const MALLORY: &str = "mallory";
const RUN: &str = "victim";
/// Answers of a service that did not let a caller in.
const REFUSED: [&str; 2] = ["401", "403"];
/// curl's code for no connection.
const NO_CONNECTION: &str = "000";

/// A service of the run: its role, its port, the audience of its tokens, and its calls.
struct Target {
    role: &'static str,
    port: u16,
    /// `None`: it takes no tokens.
    service: Option<Service>,
    calls: &'static [(&'static str, &'static str)],
}

const TARGETS: [Target; 5] = [
    Target {
        role: "gateway",
        port: 8080,
        service: Some(Service::Gateway),
        calls: &[
            ("GET", "/v1/pool"),
            ("GET", "/v1/pool/troubles"),
            ("POST", "/v1/leases"),
            ("PUT", "/v1/demand"),
            ("POST", "/v1/leases/a/exec"),
            ("DELETE", "/v1/leases/a"),
        ],
    },
    Target {
        role: "driver",
        port: 8070,
        service: Some(Service::Driver),
        calls: &[("GET", "/weights/base/manifest.json")],
    },
    Target {
        role: "trainer",
        port: 8090,
        service: Some(Service::Trainer),
        calls: &[("GET", "/v1/state"), ("PUT", "/v1/steps/1"), ("GET", "/v1/steps/1")],
    },
    Target {
        role: "engine",
        port: 8000,
        service: Some(Service::EngineAgent),
        calls: &[
            ("GET", "/agent/v1/status"),
            ("PUT", "/agent/v1/weights"),
            ("PUT", "/agent/v1/prefetch"),
            ("POST", "/v1/completions"),
            ("POST", "/v1/chat/completions"),
            ("GET", "/agent/v1/drain"),
        ],
    },
    Target {
        role: "sandbox",
        port: 7070,
        service: None,
        calls: &[
            ("POST", "/exec"),
            ("GET", "/files?path=/etc/passwd"),
            ("PUT", "/tree?path=/tmp"),
            ("GET", "/activity"),
        ],
    },
];

/// Ports that a pod serves on loopback only: records of the run, and the engine.
const LOOPBACK: [(&str, u16); 2] = [("driver", 8071), ("engine", 8001)];

/// The answer's code, asked from within the cluster's network.
fn ask_over_network(method: &str, address: &str, path: &str, token: Option<&str>) -> Result<String> {
    let mut command = nodes::command(nodes::LOCAL);
    command.args(["curl", "--silent", "--max-time", "10", "--output", "/dev/null"]);
    command.args(["--write-out", "%{http_code}", "--request", method]);
    command.args(["--header", "content-type: application/json", "--data", "{}"]);
    if let Some(token) = token {
        command.args(["--header", &format!("Authorization: Bearer {token}")]);
    }
    let ran = command.arg(format!("http://{address}{path}")).output()?;
    Ok(String::from_utf8_lossy(&ran.stdout).trim().to_owned())
}

/// The API server as mallory sees it.
async fn as_mallory() -> Result<Client> {
    let read = Kubeconfig::read_from(kubeconfig_path())?;
    let mut config = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    config.auth_info.impersonate = Some(MALLORY.to_owned());
    Ok(Client::try_from(config)?)
}

/// Requests to the API server that all must be refused.
fn requests(theirs: &str, pod: &str) -> Vec<(&'static str, String, Option<Value>)> {
    let run = format!("/apis/grpo.dev/v1alpha1/namespaces/{theirs}/grporuns/{RUN}");
    let core = format!("/api/v1/namespaces/{theirs}");
    let pool = |kind: &str| format!("/apis/grpo.dev/v1alpha1/namespaces/{theirs}/{kind}");
    let token = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": ["gateway.grpo.dev"]}});
    let policy =
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/grpo-system.grporuns.secrets.grpo.dev";
    vec![
        ("GET", run.clone(), None),
        ("PATCH", run.clone(), Some(json!({"spec": {"suspend": true}}))),
        (
            "PATCH",
            format!("{run}/status"),
            Some(json!({"status": {"phase": "Failed"}})),
        ),
        ("DELETE", run, None),
        ("GET", pool("grporuns"), None),
        ("GET", pool("sandboxpools"), None),
        ("GET", pool("inferencepools"), None),
        ("GET", format!("{core}/pods"), None),
        ("GET", format!("{core}/pods/{pod}/log"), None),
        ("POST", format!("{core}/pods/{pod}/portforward?ports=8071"), None),
        ("POST", format!("{core}/pods/{pod}/exec?command=id"), None),
        ("GET", format!("{core}/pods/{pod}/proxy/"), None),
        ("DELETE", format!("{core}/pods/{pod}"), None),
        ("GET", format!("{core}/secrets"), None),
        ("GET", format!("{core}/configmaps"), None),
        ("GET", format!("{core}/persistentvolumeclaims"), None),
        (
            "POST",
            format!("{core}/serviceaccounts/{}/token", account::driver(RUN)),
            Some(token),
        ),
        ("GET", "/apis/grpo.dev/v1alpha1/grporuns".to_owned(), None),
        ("GET", "/api/v1/secrets".to_owned(), None),
        ("GET", "/api/v1/namespaces/grpo-system/secrets".to_owned(), None),
        (
            "DELETE",
            "/apis/apps/v1/namespaces/grpo-system/deployments/grpo-operator".to_owned(),
            None,
        ),
        (
            "DELETE",
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/grporuns.grpo.dev".to_owned(),
            None,
        ),
        ("DELETE", policy.to_owned(), None),
        ("GET", "/api/v1/nodes".to_owned(), None),
    ]
}

/// The code of the API server's answer; 0 for a success.
async fn ask_api(client: &Client, method: &str, path: &str, body: Option<&Value>) -> Result<u16> {
    let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
    let content = match method {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", content)
        .body(body)?;
    match client.request_text(request).await {
        Ok(_) => Ok(0),
        Err(kube::Error::Api(status)) => Ok(status.code),
        Err(error) => Err(error.into()),
    }
}

/// Name and address of a ready pod of the run.
async fn pod_of(scene: &Scene, role: &str) -> Result<(String, String)> {
    let serves = |there: &wait::Objects<Pod>| {
        let mut ready = there.values().filter(|pod| wait::is_ready(pod));
        ready.find_map(|pod| Some((pod.metadata.name.clone()?, pod.status.as_ref()?.pod_ip.clone()?)))
    };
    let what = format!("a {role} of the run");
    scene
        .until_pods(&format!("grpo.dev/role={role}"), RUN_LIMIT, &what, serves)
        .await
}

/// The answer of a service of the run. A sandbox ends with its lease, so another one is asked if it is gone.
async fn ask_service(scene: &Scene, target: &Target, call: (&str, &str), token: Option<&str>) -> Result<String> {
    let mut code = String::new();
    for _ in 0..10 {
        let (_, address) = pod_of(scene, target.role).await?;
        code = ask_over_network(call.0, &format!("{address}:{}", target.port), call.1, token)?;
        if code != NO_CONNECTION {
            break;
        }
    }
    Ok(code)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a cluster with images: make test-tenants"]
async fn a_user_of_another_namespace_reaches_nothing_of_a_run() -> Result<()> {
    let (theirs, own) = (Scene::new("tenant").await?, Scene::new("hostile").await?);
    let binding = json!({
        "metadata": {"name": "mallory"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": MALLORY}],
    });
    own.make::<RoleBinding>(binding).await?;
    let run = small_run(RUN)?.with("/rollout/iterations", json!(6));
    theirs.apply(&run).await?;
    let (driver, _) = pod_of(&theirs, "driver").await?;
    let mut attempts = 0;

    // By the API server.
    let mallory = as_mallory().await?;
    let api_of_her_own = format!("/apis/grpo.dev/v1alpha1/namespaces/{}/grporuns", own.namespace);
    assert_eq!(
        ask_api(&mallory, "GET", &api_of_her_own, None).await?,
        0,
        "she is a user of the cluster"
    );
    for (method, path, body) in requests(&theirs.namespace, &driver) {
        let code = ask_api(&mallory, method, &path, body.as_ref()).await?;
        assert_eq!(code, 403, "{method} {path}");
        attempts += 1;
    }

    // By the network, with the tokens that she can make: of accounts with the names that the services accept.
    let accepted = [
        (Service::Gateway, account::driver(RUN)),
        (Service::Driver, account::engines(RUN)),
        (Service::Trainer, account::driver(RUN)),
        (Service::EngineAgent, account::driver(RUN)),
    ];
    for name in [account::driver(RUN), account::engines(RUN)] {
        own.make::<ServiceAccount>(json!({"metadata": {"name": name}})).await?;
    }
    for target in &TARGETS {
        let mut tokens = vec![None, Some("eyJhbGciOiJub25lIn0.e30.".to_owned())];
        for (service, name) in accepted.iter().filter(|(service, _)| Some(*service) == target.service) {
            tokens.push(Some(service_token(&mallory, &own.namespace, name, *service).await?));
            let other = accepted
                .iter()
                .map(|(other, _)| *other)
                .find(|other| other != service)
                .ok_or("one service")?;
            // Of the right account of her namespace, for another service.
            tokens.push(Some(service_token(&mallory, &own.namespace, name, other).await?));
            // The service is there, and lets its own caller in.
            let good = service_token(&theirs.client, &theirs.namespace, name, *service).await?;
            let code = ask_service(&theirs, target, target.calls[0], Some(&good)).await?;
            assert!(
                !REFUSED.contains(&code.as_str()) && code != NO_CONNECTION,
                "{} itself: {code}",
                target.role
            );
        }
        for call in target.calls {
            for token in &tokens {
                let code = ask_service(&theirs, target, *call, token.as_deref()).await?;
                assert!(
                    REFUSED.contains(&code.as_str()),
                    "{call:?} of the {}: {code}",
                    target.role
                );
                attempts += 1;
            }
        }
    }
    // With the operator's token, which the operator sends to the engine agents of every namespace, also to one that she
    // has replaced by a program of her own.
    let targets = &TARGETS;
    let engine = targets.iter().find(|target| target.role == "engine");
    let engine = engine.ok_or("no engine among the targets")?;
    let operators = service_token(&theirs.client, "grpo-system", "grpo-operator", Service::EngineAgent).await?;
    for call in engine.calls {
        let code = ask_service(&theirs, engine, *call, Some(&operators)).await?;
        let is_report = *call == ("GET", "/agent/v1/status");
        let wanted = if is_report { "200" } else { "403" };
        assert_eq!(code, wanted, "{call:?} with the operator's token");
        attempts += 1;
    }
    for (role, port) in LOOPBACK {
        let address = format!("{}:{port}", pod_of(&theirs, role).await?.1);
        assert_eq!(
            ask_over_network("GET", &address, "/v1/records", None)?,
            NO_CONNECTION,
            "{role} {port}"
        );
        attempts += 1;
    }

    // At a viewer of the other team.
    attempts += viewer::attempts(&theirs, RUN).await?;

    // By manifests: her run in the sandboxes of the other team.
    let pools: Api<SandboxPool> = Api::namespaced(theirs.client.clone(), &theirs.namespace);
    let pool = pools
        .list(&Default::default())
        .await?
        .items
        .into_iter()
        .find_map(|pool| pool.metadata.name);
    let pool = json!({"name": pool.ok_or("the run has no pool")?, "namespace": theirs.namespace});
    let hers = small_run("hers")?.with("/sandboxes", json!({"poolRef": pool}));
    hers.apply(&mallory, &own.namespace).await?;
    let waits = |run: &grpo_crds::GrpoRun| {
        let status = run.status.as_ref()?;
        let missing =
            |one: &&k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition| one.reason == "SandboxPoolMissing";
        status.conditions.iter().find(missing).map(|one| one.message.clone())
    };
    let says = own.until_run("hers", SOON, "its pool to be refused", waits).await?;
    own.say(&format!("her run waits: {says}"));
    attempts += 1;

    theirs.follow(RUN).await?;
    assert!(attempts >= 40, "only {attempts} attempts");
    theirs.say(&format!("0 of {attempts} attempts succeeded, and the run did"));
    own.clear().await?;
    theirs.clear().await
}
