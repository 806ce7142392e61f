//! Clients of an InferencePool outside of runs, on a real cluster: an account that the pool lists samples with a token
//! and does nothing else, and other accounts do not sample.
//!
//! A run may be such a client too, if it takes the pool for a server that speaks only text ([`text`]).
//!
//! Needs a cluster with images: `make test-e2e`; with other projects' clients and runs: `make test-clients`.

mod text;

use crate::support::gateway::{bearer, forwarded};
use crate::support::{Result, SOON, Scene, repository};
use grpo_contracts::access::Service as Called;
use grpo_crds::InferencePool;
use grpo_engine_protocol::{SleepOrder, WeightsOrder};
use grpo_testing::cluster::token::service_token;
use grpo_testing::cluster::{cache, wait};
use k8s_openapi::api::core::v1::{Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, Patch, PatchParams};
use reqwest::{Client, Method};
use serde_json::{Value, json};
use std::process::Command;

const POOL: &str = "served";
/// The account that the pool lists, and one that it does not.
const CLIENT: &str = "notebook";
const STRANGER: &str = "stranger";
const CHAT: &str = "/v1/chat/completions";
/// The port of an engine's agent.
const AGENT: u16 = 8000;

/// Makes accounts and a pool with the demo's model. Returns the pod of a replica, as soon as one is behind the clients'
/// service.
async fn serving_replica(scene: &Scene) -> Result<String> {
    for name in [CLIENT, STRANGER] {
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
        scene.make::<ServiceAccount>(account).await?;
    }
    let model = json!({"image": {"reference": "grpo.dev/demo/model:1"}});
    let spec = json!({"model": model, "engine": {"embedded": {}}, "clients": [{"serviceAccount": CLIENT}]});
    scene
        .make::<InferencePool>(json!({"metadata": {"name": POOL}, "spec": spec}))
        .await?;
    let slices: Api<EndpointSlice> = Api::namespaced(scene.client.clone(), &scene.namespace);
    let of_the_service = format!("kubernetes.io/service-name={POOL}-clients");
    let ready = |there: &wait::Objects<EndpointSlice>| {
        let mut endpoints = there.values().flat_map(|slice| slice.endpoints.iter().flatten());
        let serves = endpoints.find(|endpoint| {
            let conditions = endpoint.conditions.as_ref();
            conditions.and_then(|conditions| conditions.ready) == Some(true)
        })?;
        serves.target_ref.as_ref()?.name.clone()
    };
    let what = "a replica that serves behind the service of clients";
    let pod = wait::until(slices, wait::labelled(&of_the_service), SOON, what, ready).await?;
    scene.say(&format!("{pod} is behind the service"));
    Ok(pod)
}

/// The same with a forwarded port to the replica.
async fn served(scene: &Scene) -> Result<String> {
    let pod = serving_replica(scene).await?;
    forwarded(scene, pod, AGENT).await
}

/// The output of `kubectl create token ACCOUNT --audience engine-agent.grpo.dev`.
async fn token(scene: &Scene, account: &str) -> Result<String> {
    Ok(service_token(&scene.client, &scene.namespace, account, Called::EngineAgent).await?)
}

fn caller(token: &str) -> Result<Client> {
    Ok(Client::builder()
        .no_proxy()
        .timeout(SOON)
        .default_headers(bearer(token)?)
        .build()?)
}

async fn call(client: &Client, method: Method, url: &str, body: &Value) -> Result<(u16, Value)> {
    let answer = client.request(method, url).json(body).send().await?;
    let status = answer.status().as_u16();
    let text = answer.text().await?;
    Ok((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
}

#[tokio::test]
#[ignore = "needs a cluster: make test-e2e"]
async fn a_listed_account_samples_and_orders_nothing_and_others_are_refused() -> Result<()> {
    let scene = Scene::new("clients").await?;
    let url = served(&scene).await?;
    let client = caller(&token(&scene, CLIENT).await?)?;
    let asked = json!({
        "model": "policy", "messages": [{"role": "user", "content": "calc.py subtracts: what is wrong?"}],
        "max_completion_tokens": 16, "temperature": 0.7, "stream": false,
    });

    let (status, models) = call(&client, Method::GET, &format!("{url}/v1/models"), &Value::Null).await?;
    assert_eq!((status, &models["object"]), (200, &json!("list")), "{models}");
    let (status, answer) = call(&client, Method::POST, &format!("{url}{CHAT}"), &asked).await?;
    assert_eq!(status, 200, "{answer}");
    let tokens = answer["usage"]["completion_tokens"].as_u64();
    assert!(tokens.is_some_and(|tokens| (1..=16).contains(&tokens)), "{answer}");
    assert!(answer["choices"][0]["message"]["content"].is_string(), "{answer}");
    let ids = json!({"prompt": [1, 2, 3], "max_tokens": 4});
    let (status, answer) = call(&client, Method::POST, &format!("{url}/v1/completions"), &ids).await?;
    assert_eq!((status, &answer["weights_version"]), (200, &json!("base")), "{answer}");
    let mut streamed = asked.clone();
    streamed["stream"] = json!(true);
    let (status, refused) = call(&client, Method::POST, &format!("{url}{CHAT}"), &streamed).await?;
    assert_eq!(status, 400);
    assert!(
        refused["message"].to_string().contains("set stream to false"),
        "{refused}"
    );

    let weights = json!(WeightsOrder {
        version: "stolen-v1".to_owned(),
        source: "http://127.0.0.1:9/weights".to_owned(),
        manifest_sha256: "0".repeat(64),
        relay: None,
    });
    for (method, path, body) in [
        (Method::PUT, "weights", &weights),
        (Method::PUT, "prefetch", &weights),
        (Method::PUT, "sleep", &json!(SleepOrder { asleep: true })),
        (Method::GET, "status", &Value::Null),
    ] {
        let (status, refused) = call(&client, method, &format!("{url}/agent/v1/{path}"), body).await?;
        assert_eq!(
            (status, &refused["code"]),
            (403, &json!("Forbidden")),
            "{path}: {refused}"
        );
    }
    let (status, answer) = call(&client, Method::POST, &format!("{url}{CHAT}"), &asked).await?;
    assert_eq!(status, 200, "the replica serves as before: {answer}");

    let stranger = caller(&token(&scene, STRANGER).await?)?;
    let (status, refused) = call(&stranger, Method::POST, &format!("{url}{CHAT}"), &asked).await?;
    assert_eq!(status, 403, "{refused}");
    assert!(refused["message"].to_string().contains(STRANGER), "{refused}");
    let anonymous = Client::builder().no_proxy().timeout(SOON).build()?;
    let (status, refused) = call(&anonymous, Method::POST, &format!("{url}{CHAT}"), &asked).await?;
    assert_eq!(status, 401, "{refused}");

    let pools: Api<InferencePool> = Api::namespaced(scene.client.clone(), &scene.namespace);
    let shown = pools.get(POOL).await?.status.and_then(|status| status.clients_url);
    let wanted = format!("http://{POOL}-clients.{}.svc:{AGENT}", scene.namespace);
    assert_eq!(shown, Some(wanted));
    let none = Patch::Merge(json!({"spec": {"clients": null}}));
    pools.patch(POOL, &PatchParams::default(), &none).await?;
    let services: Api<Service> = Api::namespaced(scene.client.clone(), &scene.namespace);
    let gone = |there: &wait::Objects<Service>| there.is_empty().then_some(());
    let service = format!("{POOL}-clients");
    wait::until(
        services,
        wait::named(&service),
        SOON,
        "the clients' service to be gone",
        gone,
    )
    .await?;
    scene.clear().await
}

#[tokio::test]
#[ignore = "needs a cluster and mini-swe-agent: make test-clients"]
async fn openais_library_and_mini_swe_agent_sample_from_a_pool() -> Result<()> {
    let scene = Scene::new("clients-openai").await?;
    let url = served(&scene).await?;
    let mut program = Command::new(cache().join("clients/mini-swe-agent/bin/python"));
    program
        .arg(repository().join("e2e/clients/pool_client.py"))
        .arg(url)
        .env("API_KEY", token(&scene, CLIENT).await?);
    // The port is forwarded by tasks of this thread.
    let ran = tokio::task::spawn_blocking(move || program.output()).await??;
    print!("{}", String::from_utf8_lossy(&ran.stdout));
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    scene.clear().await
}
