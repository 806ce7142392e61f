//! The agent of a real engine that shares its memory with a trainer: the engine sleeps and wakes up as ordered.

use crate::support::{Agent, Source, at_own_port, engine, model_of};
use grpo_engine_protocol::{AgentState, CompletionRequest, ErrorBody, ErrorCode};
use serde_json::json;
use std::time::Duration;
use tokio::net::TcpListener;

fn request() -> CompletionRequest {
    CompletionRequest {
        ignore_eos: true,
        ..CompletionRequest::of_tokens("policy", vec![5, 6, 7], 8, 1)
    }
}

#[tokio::test]
async fn an_engine_sleeps_and_refuses_requests_until_it_is_woken_up_with_its_version() {
    let base = model_of(1);
    let engine = engine::start(engine::options(base.path())).await;
    let source = Source::start().await;
    let agent = Agent::before(&engine.url).await;
    agent.order(&source.publish("a-v1", 2).0).await;
    let before = agent.wait_until_serving("a-v1").await;
    let answer = agent.complete(&request(), Some("a-v1")).await.unwrap();

    agent.sleep(true).await;
    let status = agent.wait_until_asleep().await;
    assert_eq!((status.wanted.as_deref(), status.message), (Some("a-v1"), None));
    assert!(engine.state().await.asleep);
    for version in [None, Some("a-v1"), Some("a-v9")] {
        let refused = agent.complete(&request(), version).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::EngineUnavailable);
        assert!(refused.message.contains("asleep"), "{}", refused.message);
    }
    for path in ["/readyz", "/engine/healthz", "/v1/models"] {
        assert_eq!(agent.get(path).await.status(), 200, "{path}");
    }
    let metrics = agent.get("/metrics").await.text().await.unwrap();
    assert!(metrics.contains("grpo_agent_behind 0"), "{metrics}");

    agent.sleep(false).await;
    assert_eq!(agent.wait_until_serving("a-v1").await, before);
    assert!(!engine.state().await.asleep);
    let again = agent.complete(&request(), Some("a-v1")).await.unwrap();
    assert_eq!(again.choices, answer.choices);
}

#[tokio::test]
async fn weights_for_a_sleeping_engine_are_pulled_and_loaded_when_it_is_to_wake_up() {
    let base = model_of(1);
    let engine = engine::start(engine::options(base.path())).await;
    let source = Source::start().await;
    let agent = Agent::before(&engine.url).await;
    agent.wait_until_serving("base").await;
    agent.sleep(true).await;
    agent.wait_until_asleep().await;
    agent.prefetch(&source.publish("a-v2", 3).0).await;
    agent.order(&source.publish("a-v1", 2).0).await;
    let status = agent.wait_for(|status| status.wanted.is_some()).await;
    assert_eq!(status.state, AgentState::Asleep);
    // The engine cannot wake up with the version of before.
    drop(base);
    for _ in 0..100 {
        assert_eq!(agent.status().await.state, AgentState::Asleep);
    }
    assert!(source.fetched().is_empty(), "{:?}", source.fetched());
    assert!(engine.state().await.asleep);

    agent.sleep(false).await;
    let woken = agent.wait_for(|status| matches!(status.state, AgentState::Idle | AgentState::Failed));
    let status = woken.await;
    assert_eq!((status.serving.as_deref(), status.message), (Some("a-v1"), None));
    agent.wait_for(|status| status.pulled.as_deref() == Some("a-v2")).await;
    assert!(agent.complete(&request(), Some("a-v1")).await.is_ok());
}

#[tokio::test]
async fn a_version_that_is_gone_from_the_disk_is_pulled_again_when_the_engine_wakes_up() {
    let base = model_of(1);
    let engine = engine::start(engine::options(base.path())).await;
    let source = Source::start().await;
    // It gets over the failure by itself, and shows it until then.
    let agent = Agent::pausing(&engine.url, Duration::from_secs(2)).await;
    agent.order(&source.publish("a-v1", 2).0).await;
    agent.wait_until_serving("a-v1").await;
    agent.sleep(true).await;
    agent.wait_until_asleep().await;
    let file = agent.file("a-v1", "model.safetensors");
    std::fs::remove_dir_all(file.parent().unwrap()).unwrap();
    let fetched = source.fetched().len();
    agent.sleep(false).await;
    let status = agent.wait_for(|status| status.state == AgentState::Failed).await;
    assert!(status.message.unwrap().contains("cannot wake up with a-v1"));
    assert_eq!(status.serving, None);
    agent.wait_until_serving("a-v1").await;
    assert!(source.fetched().len() > fetched);
    assert!(agent.complete(&request(), Some("a-v1")).await.is_ok());
}

#[tokio::test]
async fn an_engine_that_restarts_while_it_is_to_sleep_is_put_to_sleep_again() {
    let base = model_of(1);
    let first = engine::start_on(at_own_port().await, engine::options(base.path()));
    let address = first.url.strip_prefix("http://").unwrap().to_owned();
    let agent = Agent::before(&first.url).await;
    agent.wait_until_serving("base").await;
    agent.sleep(true).await;
    agent.wait_until_asleep().await;
    first.kill().await;
    agent.wait_for(|status| status.state == AgentState::Booting).await;
    assert_eq!(agent.get("/readyz").await.status(), 503);
    let listener = TcpListener::bind(&address).await.unwrap();
    let second = engine::start_on(listener, engine::options(base.path()));
    agent.wait_until_asleep().await;
    assert!(second.state().await.asleep);
    agent.sleep(false).await;
    agent.wait_until_serving("base").await;
}

#[tokio::test]
async fn an_agent_that_restarts_leaves_a_sleeping_engine_asleep_until_it_is_to_wake_up() {
    let base = model_of(1);
    let engine = engine::start(engine::options(base.path())).await;
    let source = Source::start().await;
    let before = Agent::before(&engine.url).await;
    before.sleep(true).await;
    before.wait_until_asleep().await;
    before.stop().await;

    let agent = Agent::before(&engine.url).await;
    let status = agent.wait_until_asleep().await;
    assert!(status.message.unwrap().contains("before this agent started"));
    agent.order(&source.publish("a-v1", 2).0).await;
    agent.wait_for(|status| status.wanted.is_some()).await;
    for _ in 0..100 {
        assert_eq!(agent.status().await.state, AgentState::Asleep);
    }
    assert!(engine.state().await.asleep);
    let refused = agent.complete(&request(), None).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::EngineUnavailable);
    assert_eq!(agent.get("/readyz").await.status(), 200);
    agent.sleep(true).await;
    let status = agent.wait_for(|status| status.message.is_none()).await;
    assert_eq!(status.state, AgentState::Asleep);
    agent.sleep(false).await;
    agent.wait_until_serving("a-v1").await;
}

#[tokio::test]
async fn an_order_that_is_no_order_to_sleep_is_refused() {
    let base = model_of(1);
    let engine = engine::start(engine::options(base.path())).await;
    let agent = Agent::before(&engine.url).await;
    agent.wait_until_serving("base").await;
    for body in [json!({}), json!({"asleep": true, "level": 2}), json!({"asleep": "yes"})] {
        let call = agent.client.put(format!("{}/agent/v1/sleep", agent.url)).json(&body);
        let answer = call.send().await.unwrap();
        assert_eq!(answer.status(), 400, "{body}");
        let error: ErrorBody = answer.json().await.unwrap();
        assert_eq!(error.code, ErrorCode::InvalidRequest);
    }
    assert!(!engine.state().await.asleep);
}
