//! Orders of a driver that a later attempt has followed: they are refused, and change nothing.

use crate::support::{Agent, Source, bearing, engine, model_of, operator};
use grpo_contracts::access::Service;
use grpo_contracts::driver_epoch::{HEADER, NEWER_HEADER};
use grpo_engine_protocol::{AgentState, ErrorBody, ErrorCode};
use reqwest::Response;
use serde_json::{Value, json};

/// Sends an order of this driver, or of one without the header.
async fn order(agent: &Agent, what: &str, body: &Value, from: Option<&str>) -> Response {
    let call = agent.client.put(format!("{}/agent/v1/{what}", agent.url)).json(body);
    let call = from.into_iter().fold(call, |call, from| call.header(HEADER, from));
    call.send().await.unwrap()
}

async fn accepted(agent: &Agent, what: &str, body: &Value, from: Option<&str>) {
    let answer = order(agent, what, body, from).await;
    assert_eq!(answer.status(), 202, "{what} of {from:?}");
    assert!(answer.headers().get(NEWER_HEADER).is_none());
}

async fn refused(agent: &Agent, what: &str, body: &Value, from: &str, newer: &str) {
    let answer = order(agent, what, body, Some(from)).await;
    assert_eq!(answer.status(), 409, "{what} of {from}");
    assert_eq!(answer.headers()[NEWER_HEADER], newer);
    let error: ErrorBody = answer.json().await.unwrap();
    assert_eq!((error.code, error.status()), (ErrorCode::DriverSuperseded, 409));
    let words = [from.replace("run/", "attempt "), format!("attempt {newer}")];
    assert!(words.iter().all(|words| error.message.contains(words)), "{error}");
}

#[tokio::test]
async fn orders_of_an_earlier_attempt_change_nothing_and_those_of_the_same_or_a_later_one_do() {
    let base = model_of(1);
    let engine = engine::start(engine::options(base.path())).await;
    let source = Source::start().await;
    let agent = Agent::before(&engine.url).await;
    let weights = |version: &str, seed| serde_json::to_value(source.publish(version, seed).0).unwrap();
    let (first, stale, next) = (weights("a-v1", 2), weights("a-v2", 3), weights("a-v3", 4));
    let (asleep, awake) = (json!({"asleep": true}), json!({"asleep": false}));

    accepted(&agent, "weights", &first, Some("run/4")).await;
    let before = agent.wait_until_serving("a-v1").await;
    refused(&agent, "weights", &stale, "run/3", "4").await;
    refused(&agent, "prefetch", &stale, "run/3", "4").await;
    refused(&agent, "sleep", &asleep, "run/3", "4").await;
    accepted(&agent, "weights", &first, Some("run/4")).await;
    assert_eq!(agent.status().await, before);

    accepted(&agent, "prefetch", &next, Some("run/5")).await;
    // The agent has carried out an order since, so it would have carried out the refused ones too.
    let prefetched = agent.wait_for(|status| status.pulled.as_deref() == Some("a-v3")).await;
    assert_eq!(prefetched.serving.as_deref(), Some("a-v1"));
    assert!(!engine.state().await.asleep);
    assert!(source.fetched().iter().all(|(path, _)| !path.contains("a-v2")));

    // A driver of an earlier version sends no header.
    accepted(&agent, "sleep", &asleep, None).await;
    agent.wait_until_asleep().await;
    refused(&agent, "sleep", &awake, "run/4", "5").await;
    refused(&agent, "weights", &stale, "run/4", "5").await;
    assert_eq!(agent.status().await.state, AgentState::Asleep);
    assert!(engine.state().await.asleep);
    accepted(&agent, "weights", &next, Some("run/5")).await;
    accepted(&agent, "sleep", &awake, Some("run/5")).await;
    agent.wait_until_serving("a-v3").await;
}

#[tokio::test]
async fn an_attempt_that_asked_for_the_status_is_known_and_another_run_may_order() {
    let base = model_of(1);
    let engine = engine::start(engine::options(base.path())).await;
    let agent = Agent::before(&engine.url).await;
    agent.wait_until_serving("base").await;
    let asleep = json!({"asleep": true});
    for (asks, status) in [("run/4", 200), ("run/3", 200), ("no epoch", 200)] {
        let call = agent.client.get(format!("{}/agent/v1/status", agent.url));
        assert_eq!(call.header(HEADER, asks).send().await.unwrap().status(), status);
    }
    refused(&agent, "sleep", &asleep, "run/3", "4").await;

    let malformed = order(&agent, "sleep", &asleep, Some("no epoch")).await;
    assert_eq!(malformed.status(), 400);
    let error: ErrorBody = malformed.json().await.unwrap();
    assert_eq!(error.code, ErrorCode::InvalidRequest);
    assert!(error.message.contains(HEADER), "{error}");
    assert!(!engine.state().await.asleep);

    accepted(&agent, "sleep", &asleep, Some("other/1")).await;
    agent.wait_until_asleep().await;
}

#[tokio::test]
async fn an_account_that_may_only_read_the_report_does_not_close_an_agent_to_its_driver() {
    let base = model_of(1);
    let engine = engine::start(engine::options(base.path())).await;
    let agent = Agent::before(&engine.url).await;
    agent.wait_until_serving("base").await;
    let client = bearing(&agent.issuer.token(&operator(), Service::EngineAgent).unwrap());
    let asleep = json!({"asleep": true});
    let report = client.get(format!("{}/agent/v1/status", agent.url));
    assert_eq!(report.header(HEADER, "run/9").send().await.unwrap().status(), 200);
    let order = client.put(format!("{}/agent/v1/sleep", agent.url)).json(&asleep);
    assert_eq!(order.header(HEADER, "run/9").send().await.unwrap().status(), 403);
    accepted(&agent, "sleep", &asleep, Some("run/4")).await;
    agent.wait_until_asleep().await;
}
