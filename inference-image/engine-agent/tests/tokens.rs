//! The agent takes orders and samples only for callers with a token for it.

use std::time::{Duration, SystemTime};

use grpo_auth::{LocalIssuer, ServiceAccount};
use grpo_contracts::access::Service;
use reqwest::{Client, Method};
use serde_json::{Value, json};

use crate::support::{Agent, Source, bearing, driver, engine, model_of};

async fn status(client: &Client, agent: &Agent, method: Method, path: &str, body: &Value) -> u16 {
    let call = client.request(method, format!("{}{path}", agent.url)).json(body);
    call.send().await.unwrap().status().as_u16()
}

#[tokio::test]
async fn orders_samples_and_state_are_for_callers_with_a_valid_token() {
    let base = model_of(1);
    let engine = engine::start(engine::options(base.path())).await;
    let agent = Agent::before(&engine.url).await;
    agent.wait_until_serving("base").await;
    let order = serde_json::to_value(Source::start().await.publish("a-v1", 2).0).unwrap();
    let until =
        |account: &ServiceAccount, audience: &str, end| agent.issuer.token_until(account, audience, end).unwrap();
    let audience = Service::EngineAgent.audience();
    let (past, later) = (
        SystemTime::now() - Duration::from_secs(60),
        SystemTime::now() + Duration::from_secs(60),
    );
    let forged = LocalIssuer::new()
        .unwrap()
        .token(&driver(), Service::EngineAgent)
        .unwrap();
    let cases = [
        (String::new(), 401),
        (forged, 401),
        (until(&driver(), "gateway.grpo.dev", later), 401),
        (until(&driver(), audience, past), 401),
        (
            until(&ServiceAccount::new("team", "other-driver"), audience, later),
            403,
        ),
    ];
    let calls = [
        (Method::PUT, "/agent/v1/weights", order),
        (Method::PUT, "/agent/v1/sleep", json!({"asleep": true})),
        (Method::GET, "/agent/v1/status", Value::Null),
        (Method::POST, "/v1/completions", json!({"prompt": [1]})),
        (Method::POST, "/v1/chat/completions", json!({"messages": []})),
        (Method::GET, "/v1/models", Value::Null),
    ];
    for (token, wanted) in cases {
        let client = bearing(&token);
        for (method, path, body) in &calls {
            let found = status(&client, &agent, method.clone(), path, body).await;
            assert_eq!(found, wanted, "{path} with {token:?}");
        }
    }
    let unchanged = agent.status().await;
    assert_eq!((unchanged.wanted, unchanged.serving.as_deref()), (None, Some("base")));
    let anonymous = Client::builder().no_proxy().build().unwrap();
    for path in ["/healthz", "/readyz", "/engine/healthz", "/metrics"] {
        assert_eq!(
            status(&anonymous, &agent, Method::GET, path, &Value::Null).await,
            200,
            "{path}"
        );
    }
}
