//! The agent between a real engine and a source of weights, over real sockets.

use crate::support::{Agent, Source, at_own_port, engine, model_of};
use axum::routing::get;
use axum::{Json, Router};
use grpo_engine_protocol::{AgentState, CompletionRequest, EngineState, ErrorBody, ErrorCode, FinishReason};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;

const SAMPLE: u32 = 8;

fn request(seed: u64) -> CompletionRequest {
    CompletionRequest {
        ignore_eos: true,
        ..CompletionRequest::of_tokens("policy", vec![5, 6, 7], SAMPLE, seed)
    }
}

#[tokio::test]
async fn an_order_is_pulled_loaded_and_verified() {
    let base = model_of(1);
    let engine = engine::start(engine::options(base.path())).await;
    let source = Source::start().await;
    let agent = Agent::before(&engine.url).await;
    let status = agent.wait_for(|status| status.state == AgentState::Idle).await;
    assert_eq!((status.serving.as_deref(), status.changed), (Some("base"), None));

    let (order, tensors) = source.publish("a-v1", 2);
    agent.order(&order).await;
    let status = agent.wait_until_serving("a-v1").await;
    assert_eq!(
        (status.loaded_sha256, status.changed),
        (Some(tensors.clone()), Some(true))
    );
    assert_eq!(engine.state().await.sha256, tensors);
    let answer = agent.complete(&request(1), Some("a-v1")).await.unwrap();
    assert_eq!(answer.weights_version, "a-v1");

    // Again, and nothing is fetched again.
    let fetched = source.fetched().len();
    agent.order(&order).await;
    agent.wait_until_serving("a-v1").await;
    assert_eq!(source.fetched().len(), fetched);
}

#[tokio::test]
async fn weights_that_come_next_are_brought_to_disk_while_the_old_ones_serve() {
    let base = model_of(1);
    let engine = engine::start(engine::options(base.path())).await;
    let source = Source::start().await;
    let agent = Agent::before(&engine.url).await;
    let (order, _) = source.publish("a-v1", 2);
    agent.prefetch(&order).await;
    let status = agent.wait_for(|status| status.pulled.as_deref() == Some("a-v1")).await;
    assert_eq!((status.serving.as_deref(), status.wanted), (Some("base"), None));
    assert!(agent.complete(&request(1), Some("base")).await.is_ok());

    let fetched = source.fetched().len();
    agent.order(&order).await;
    agent.wait_until_serving("a-v1").await;
    assert_eq!(source.fetched().len(), fetched, "the switch pulls nothing");
}

/// The pause is longer than any test, so a second attempt within it would be seen.
#[tokio::test]
async fn a_prefetch_that_failed_waits_before_it_is_tried_again_and_the_next_one_does_not_wait_for_it() {
    let looks = Arc::new(AtomicU64::new(0));
    let counted = looks.clone();
    let state = EngineState {
        version: "base".to_owned(),
        sha256: "0".repeat(64),
        draining: Vec::new(),
        asleep: false,
        running: 0,
        waiting: 0,
        max_rows: 1,
        max_context: 1,
    };
    let look = move || {
        counted.fetch_add(1, Ordering::SeqCst);
        let answer = Json(state.clone());
        async move { answer }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let engine = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new().route("/admin/state", get(look));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let source = Source::start().await;
    let (lost, _) = source.publish("a-v1", 2);
    source.remove("a-v1/model.safetensors");
    let agent = Agent::pausing(&engine, Duration::from_secs(3600)).await;
    agent.prefetch(&lost).await;
    let failed = |message: &str| message.contains("prefetching a-v1");
    let status = agent
        .wait_for(|status| status.message.as_deref().is_some_and(failed))
        .await;
    assert_eq!(
        (status.state, status.serving.as_deref()),
        (AgentState::Idle, Some("base"))
    );
    let tried = source.fetched();
    let seen = looks.load(Ordering::SeqCst);
    while looks.load(Ordering::SeqCst) < seen + 10 {
        tokio::task::yield_now().await;
    }
    assert_eq!(source.fetched(), tried);
    agent.prefetch(&source.publish("a-v2", 3).0).await;
    agent.wait_for(|status| status.pulled.as_deref() == Some("a-v2")).await;
}

#[tokio::test]
async fn the_same_tensors_under_a_new_version_serve_and_are_reported_as_unchanged() {
    let base = model_of(1);
    let engine = engine::start(engine::options(base.path())).await;
    let source = Source::start().await;
    let agent = Agent::before(&engine.url).await;
    agent.order(&source.publish("a-v0", 1).0).await;
    assert_eq!(agent.wait_until_serving("a-v0").await.changed, Some(false));
}

#[tokio::test]
async fn a_request_for_weights_that_do_not_serve_is_a_409_with_both_versions() {
    let base = model_of(1);
    let engine = engine::start(engine::options(base.path())).await;
    let agent = Agent::before(&engine.url).await;
    agent.wait_for(|status| status.serving.is_some()).await;
    let error = agent.complete(&request(1), Some("a-v7")).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::WrongWeights);
    assert_eq!(
        (error.serving.as_deref(), error.wanted.as_deref()),
        (Some("base"), Some("a-v7"))
    );
    assert!(agent.complete(&request(1), Some("base")).await.is_ok());
    assert!(agent.complete(&request(1), None).await.is_ok());
}

#[tokio::test]
async fn a_manifest_other_than_the_ordered_one_leaves_the_old_version_serving_and_is_named() {
    let base = model_of(1);
    let engine = engine::start(engine::options(base.path())).await;
    let source = Source::start().await;
    let agent = Agent::before(&engine.url).await;
    let (mut order, _) = source.publish("a-v1", 2);
    order.manifest_sha256 = "0".repeat(64);
    agent.order(&order).await;
    let status = agent.wait_for(|status| status.state == AgentState::Failed).await;
    let message = status.message.unwrap();
    assert!(
        message.contains(&format!("{}/manifest.json", order.source)),
        "{message}"
    );
    assert_eq!(status.serving.as_deref(), Some("base"));
    assert!(agent.complete(&request(1), Some("base")).await.is_ok());
}

#[tokio::test]
async fn tensors_other_than_the_manifests_leave_the_old_version_serving_and_say_so() {
    let base = model_of(1);
    let engine = engine::start(engine::options(base.path())).await;
    let source = Source::start().await;
    let agent = Agent::before(&engine.url).await;
    let order = source.publish_with("a-v1", 2, |manifest| manifest.tensors_sha256 = "1".repeat(64));
    agent.order(&order).await;
    let status = agent.wait_for(|status| status.state == AgentState::Failed).await;
    assert_eq!(status.serving.as_deref(), Some("base"));
    assert!(status.message.unwrap().contains(&"1".repeat(64)));
    assert_eq!(engine.state().await.version, "base");
}

/// The engine keeps those of the model that it booted with.
#[tokio::test]
async fn chat_templates_of_a_version_are_not_pulled() {
    let base = model_of(1);
    let engine = engine::start(engine::options(base.path())).await;
    let source = Source::start().await;
    let agent = Agent::before(&engine.url).await;
    let order = source.publish_with("a-v1", 2, |manifest| {
        let mut template = manifest.files[0].clone();
        template.name = "tool_use.jinja".to_owned();
        manifest.chat_templates.push(template);
    });
    agent.order(&order).await;
    agent.wait_until_serving("a-v1").await;
    let fetched = source.fetched();
    assert!(!fetched.is_empty() && fetched.iter().all(|(path, _)| !path.ends_with(".jinja")));
}

#[tokio::test]
async fn a_file_other_than_the_manifest_says_is_thrown_away_and_fetched_again() {
    let base = model_of(1);
    let engine = engine::start(engine::options(base.path())).await;
    let source = Source::start().await;
    let agent = Agent::before(&engine.url).await;
    let (order, _) = source.publish("a-v1", 2);
    source.corrupt("a-v1/model.safetensors");
    agent.order(&order).await;
    let status = agent.wait_for(|status| status.state == AgentState::Failed).await;
    assert!(status.message.unwrap().contains("model.safetensors"));
    assert_eq!(status.serving.as_deref(), Some("base"));
    source.corrupt("a-v1/model.safetensors");
    agent.wait_until_serving("a-v1").await;
}

#[tokio::test]
async fn a_transfer_that_breaks_off_goes_on_where_it_ended() {
    let base = model_of(1);
    let engine = engine::start(engine::options(base.path())).await;
    let source = Source::start().await;
    let agent = Agent::before(&engine.url).await;
    let (order, _) = source.publish("a-v1", 2);
    source.break_after("a-v1/model.safetensors", 10_000);
    agent.order(&order).await;
    agent.wait_until_serving("a-v1").await;
    let ranges: Vec<_> = source
        .fetched()
        .into_iter()
        .filter(|(path, _)| path.ends_with("safetensors"))
        .collect();
    assert_eq!(ranges.len(), 2, "{ranges:?}");
    assert_eq!(ranges[0].1, None);
    let from: usize = ranges[1]
        .1
        .as_deref()
        .unwrap()
        .strip_prefix("bytes=")
        .unwrap()
        .trim_end_matches('-')
        .parse()
        .unwrap();
    assert!((1..=10_000).contains(&from), "went on at {from}");
}

#[tokio::test]
async fn an_engine_that_restarts_gets_the_ordered_version_again_by_itself() {
    let base = model_of(1);
    let first = engine::start_on(at_own_port().await, engine::options(base.path()));
    let address = first.url.strip_prefix("http://").unwrap().to_owned();
    let source = Source::start().await;
    let agent = Agent::before(&first.url).await;
    agent.order(&source.publish("a-v1", 2).0).await;
    agent.wait_until_serving("a-v1").await;

    first.kill().await;
    let status = agent.wait_for(|status| status.state == AgentState::Booting).await;
    assert_eq!((status.serving, status.wanted.as_deref()), (None, Some("a-v1")));
    assert!(status.message.unwrap().contains(&address));
    assert_eq!(agent.get("/readyz").await.status(), 503);
    assert_eq!(
        agent.complete(&request(1), None).await.unwrap_err().code,
        ErrorCode::EngineUnavailable
    );

    let fetched = source.fetched().len();
    let listener = tokio::net::TcpListener::bind(&address).await.unwrap();
    let _second = engine::start_on(listener, engine::options(base.path()));
    agent.wait_until_serving("a-v1").await;
    assert_eq!(source.fetched().len(), fetched, "what lies on disk was fetched again");
    assert_eq!(agent.get("/readyz").await.status(), 200);
}

#[tokio::test]
async fn an_order_before_the_engine_is_up_is_fulfilled_when_it_is() {
    let base = model_of(1);
    let listener = at_own_port().await;
    let address = listener.local_addr().unwrap();
    drop(listener);
    let source = Source::start().await;
    let agent = Agent::before(&format!("http://{address}")).await;
    agent.order(&source.publish("a-v1", 2).0).await;
    agent
        .wait_for(|status| status.state == AgentState::Booting && status.wanted.is_some())
        .await;
    assert_eq!(agent.get("/healthz").await.status(), 200);
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let _engine = engine::start_on(listener, engine::options(base.path()));
    agent.wait_until_serving("a-v1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_versions_in_a_row_under_traffic_drop_nothing_and_two_stay_on_disk() {
    let base = model_of(1);
    let engine = engine::start(engine::options(base.path())).await;
    let source = Source::start().await;
    let agent = Arc::new(Agent::before(&engine.url).await);
    agent.wait_for(|status| status.serving.is_some()).await;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let callers: Vec<_> = (0..8)
        .map(|caller| {
            let (agent, stopped) = (agent.clone(), stopped.clone());
            tokio::spawn(async move {
                let mut seen = std::collections::BTreeSet::new();
                for call in 0.. {
                    if *stopped.borrow() {
                        break;
                    }
                    let answer = agent.complete(&request(caller * 10_000 + call), None).await.unwrap();
                    assert_eq!(answer.choices[0].token_ids.len(), SAMPLE as usize);
                    assert_eq!(answer.choices[0].finish_reason, FinishReason::Length);
                    seen.insert(answer.weights_version);
                }
                seen
            })
        })
        .collect();
    for (version, seed) in [("a-v1", 2), ("a-v2", 3), ("a-v3", 4)] {
        agent.order(&source.publish(version, seed).0).await;
        agent.wait_until_serving(version).await;
        let answer = agent.complete(&request(seed), Some(version)).await.unwrap();
        assert_eq!(answer.weights_version, version);
    }
    stop.send(true).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for caller in callers {
        seen.extend(caller.await.unwrap());
    }
    assert!(seen.len() > 1, "the traffic saw only {seen:?}");
    assert_eq!(agent.versions_on_disk(), ["a-v2", "a-v3"]);
}

/// A disk that has room for two versions never needs room for three.
#[tokio::test]
async fn the_oldest_version_leaves_the_disk_before_the_next_one_is_pulled() {
    let base = model_of(1);
    let engine = engine::start(engine::options(base.path())).await;
    let source = Source::start().await;
    let agent = Agent::before(&engine.url).await;
    for (version, seed) in [("a-v1", 2), ("a-v2", 3)] {
        agent.order(&source.publish(version, seed).0).await;
        agent.wait_until_serving(version).await;
    }
    assert_eq!(agent.versions_on_disk(), ["a-v1", "a-v2"]);
    let (order, _) = source.publish("a-v3", 4);
    source.corrupt("a-v3/model.safetensors");
    agent.order(&order).await;
    let status = agent.wait_for(|status| status.state == AgentState::Failed).await;
    assert_eq!(status.serving.as_deref(), Some("a-v2"));
    let left = agent.versions_on_disk();
    assert!(
        left.contains(&"a-v2".to_owned()) && !left.contains(&"a-v1".to_owned()),
        "{left:?}"
    );
}

#[tokio::test]
async fn a_newer_order_overtakes_one_that_cannot_be_fulfilled() {
    let base = model_of(1);
    let engine = engine::start(engine::options(base.path())).await;
    let source = Source::start().await;
    let agent = Agent::before(&engine.url).await;
    let (mut lost, _) = source.publish("a-v1", 2);
    lost.source = "http://127.0.0.1:1/weights/a-v1".to_owned();
    agent.order(&lost).await;
    let status = agent.wait_for(|status| status.state == AgentState::Failed).await;
    assert!(
        status
            .message
            .unwrap()
            .contains("http://127.0.0.1:1/weights/a-v1/manifest.json")
    );
    agent.order(&source.publish("a-v2", 3).0).await;
    agent.wait_until_serving("a-v2").await;
}

#[tokio::test]
async fn what_is_too_large_too_much_or_no_order_is_refused() {
    let base = model_of(1);
    let engine = engine::start(engine::options(base.path())).await;
    let agent = Agent::before(&engine.url).await;
    let url = format!("{}/v1/completions", agent.url);
    let answer = agent
        .client
        .post(&url)
        .body(vec![b' '; crate::support::MAX_REQUEST_BYTES + 1])
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 413);
    assert_eq!(answer.json::<ErrorBody>().await.unwrap().code, ErrorCode::BodyTooLarge);

    let (mut order, _) = Source::start().await.publish("a-v1", 2);
    order.version = "../../etc".to_owned();
    let answer = agent
        .client
        .put(format!("{}/agent/v1/weights", agent.url))
        .json(&order)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 400);
}

#[tokio::test]
async fn more_requests_than_there_are_places_for_are_refused_at_once() {
    let base = model_of(1);
    let engine = engine::start(engine::options(base.path())).await;
    let agent = Arc::new(Agent::with_places(&engine.url, 1).await);
    let long = CompletionRequest {
        n: 512,
        max_tokens: 500,
        ..request(1)
    };
    let first = {
        let (agent, long) = (agent.clone(), long.clone());
        tokio::spawn(async move { agent.complete(&long, None).await })
    };
    while engine.state().await.running == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(
        agent.complete(&request(2), None).await.unwrap_err().code,
        ErrorCode::QueueFull
    );
    first.abort();
    while engine.state().await.running > 0 {
        tokio::task::yield_now().await;
    }
    agent.complete(&request(2), None).await.unwrap();
}

#[tokio::test]
async fn models_and_metrics_pass_through_the_door() {
    let base = model_of(1);
    let engine = engine::start(engine::options(base.path())).await;
    let agent = Agent::before(&engine.url).await;
    agent.wait_for(|status| status.serving.is_some()).await;
    let models: grpo_engine_protocol::ModelList = agent.get("/v1/models").await.json().await.unwrap();
    assert_eq!(models.data[0].weights_version.as_deref(), Some("base"));
    agent.complete(&request(1), None).await.unwrap();
    let metrics = agent.get("/metrics").await.text().await.unwrap();
    assert!(metrics.contains("grpo_agent_completions_passed_total 1"), "{metrics}");
    assert!(metrics.contains("grpo_agent_serves 1"), "{metrics}");
}
