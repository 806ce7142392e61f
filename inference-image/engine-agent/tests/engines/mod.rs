//! The agent with simulated vLLM and SGLang servers, over real sockets.

mod chat;
mod sglang;
mod sleep;
mod text;
mod vllm;

use crate::support::fake::{Fake, PROMPT_LOGPROB, experts};
use crate::support::{Agent, DRAIN_KEY, Source, driver, engine, model_of};
use grpo_contracts::access::Service;
use grpo_engine_agent::Kind;
use grpo_engine_agent::engine::openai::Probe;
use grpo_engine_agent::http::DRAIN_KEY_HEADER;
use grpo_engine_protocol::completion::Prompt;
use grpo_engine_protocol::{AgentState, CompletionRequest, CompletionResponse, ErrorBody, ErrorCode};
use grpo_records::weights::{Canary, WeightsManifest};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::task::JoinHandle;

fn request() -> CompletionRequest {
    CompletionRequest::of_tokens("policy", vec![5, 6, 7], 3, u64::MAX)
}

fn vllm() -> Kind {
    Kind::Vllm {
        no_folders: None,
        cpu: false,
    }
}

fn sglang() -> Kind {
    Kind::Sglang { no_folders: None }
}

fn openai() -> Kind {
    openai_of(false)
}

fn openai_of(text_only: bool) -> Kind {
    Kind::OpenAi {
        model: None,
        text_only,
        probe: Probe {
            tokens: vec![1, 2, 3],
            period: Duration::from_millis(50),
            timeout: Duration::from_secs(5),
        },
    }
}

/// Adds the logprobs that a fake engine computes with the weights it was given.
fn with_canary(manifest: &mut WeightsManifest) {
    manifest.canary = Some(Canary {
        tokens: vec![5, 70, 900],
        logprobs: vec![PROMPT_LOGPROB; 2],
    });
}

async fn before(kind: Kind, fake: &Fake) -> Agent {
    Agent::guarding(kind, &fake.url, None, 16).await
}

/// A row of the base model that stays in flight until the engine is released.
async fn held_row(fake: &Fake, agent: &Agent) -> JoinHandle<Result<CompletionResponse, ErrorBody>> {
    fake.hold();
    let agent = agent.clone();
    let running = tokio::spawn(async move { agent.complete(&request(), Some("base")).await });
    while fake.running() == 0 {
        tokio::task::yield_now().await;
    }
    running
}

fn body_of<'a>(calls: &'a [(String, Value)], path: &str) -> &'a Value {
    let found = calls.iter().find(|(called, _)| called == path);
    &found.unwrap_or_else(|| panic!("{path} is not among {calls:?}")).1
}

#[tokio::test]
async fn an_adapter_that_an_earlier_agent_loaded_may_be_another_runs_and_is_loaded_again() {
    let engines = [
        (vllm(), Fake::vllm().await, "/reset_prefix_cache"),
        (sglang(), Fake::sglang().await, "/flush_cache"),
    ];
    for (kind, fake, drop_cache) in engines {
        let source = Source::start().await;
        let order = source.publish_adapter("a-v1");
        let first = before(kind.clone(), &fake).await;
        first.order(&order).await;
        first.wait_until_serving("a-v1").await;
        first.stop().await;
        fake.calls();
        let agent = before(kind, &fake).await;
        agent.order(&order).await;
        agent.wait_until_serving("a-v1").await;
        let paths = fake.paths();
        assert!(paths[0].starts_with(drop_cache), "{paths:?}");
        assert_eq!(paths[1..], ["/unload_lora_adapter", "/load_lora_adapter"]);
        assert!(agent.complete(&request(), Some("a-v1")).await.is_ok());
    }
}

#[tokio::test]
async fn a_row_sampled_from_two_versions_is_of_none() {
    let spans = json!([{"version": "a-v1", "start": 0, "end": 1}, {"version": "a-v2", "start": 1, "end": 3}]);
    for (kind, fake) in [(vllm(), Fake::vllm().await), (sglang(), Fake::sglang().await)] {
        let agent = before(kind, &fake).await;
        agent.wait_until_serving("base").await;
        fake.say_spans(spans.clone());
        let error = agent.complete(&request(), Some("base")).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::WrongWeights);
    }
}

#[tokio::test]
async fn a_row_that_the_engine_gave_up_is_a_refusal() {
    for (kind, fake) in [(vllm(), Fake::vllm().await), (sglang(), Fake::sglang().await)] {
        let agent = before(kind, &fake).await;
        agent.wait_until_serving("base").await;
        fake.give_up_rows();
        let error = agent.complete(&request(), Some("base")).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::EngineUnavailable, "{error}");
        assert!(error.message.contains("gave the request up"), "{error}");
    }
}

#[tokio::test]
async fn full_weights_serve_once_the_engines_logprobs_are_those_of_the_trainer() {
    for (kind, fake) in [(vllm(), Fake::vllm().await), (sglang(), Fake::sglang().await)] {
        let source = Source::start().await;
        let agent = before(kind, &fake).await;
        fake.compute_with_other_weights(true);
        agent.order(&source.publish_with("a-v1", 2, with_canary)).await;
        let status = agent.wait_for(|status| status.state == AgentState::Failed).await;
        assert_eq!(status.serving.as_deref(), Some("unverified"));
        assert!(status.message.unwrap().contains("differ from the trainer's by 7.00"));
        fake.compute_with_other_weights(false);
        agent.wait_until_serving("a-v1").await;
    }
}

#[tokio::test]
async fn an_adapter_serves_once_the_engines_logprobs_are_those_of_the_trainer() {
    for (kind, fake) in [(vllm(), Fake::vllm().await), (sglang(), Fake::sglang().await)] {
        let source = Source::start().await;
        let agent = before(kind, &fake).await;
        agent.order(&source.publish_adapter("a-v1")).await;
        agent.wait_until_serving("a-v1").await;
        fake.compute_with_other_weights(true);
        agent.order(&source.publish_adapter_with("a-v2", with_canary)).await;
        let status = agent.wait_for(|status| status.state == AgentState::Failed).await;
        let message = status.message.unwrap();
        assert!(message.contains("differ from the trainer's by 7.00"), "{message}");
        // The one before has not been touched.
        assert_eq!(status.serving.as_deref(), Some("a-v1"));
        let answer = agent.complete(&request(), Some("a-v1")).await.unwrap();
        assert_eq!(answer.weights_version, "a-v1");
        fake.compute_with_other_weights(false);
        agent.wait_until_serving("a-v2").await;
        let calls = fake.calls();
        let loads = calls
            .iter()
            .filter(|(path, body)| path.ends_with("/load_lora_adapter") && body["lora_name"] == "a-v2");
        assert!(loads.count() > 1, "it was not loaded again: {calls:?}");
    }
}

#[tokio::test]
async fn experts_are_of_every_computed_token_from_where_they_are_asked_for_whoever_reports_them() {
    let two = CompletionRequest {
        prompt: Prompt::Batch(vec![vec![1, 2], vec![3, 4, 5]]),
        routed_experts_from: Some(1),
        ..request()
    };
    for (kind, fake) in [(vllm(), Fake::vllm().await), (sglang(), Fake::sglang().await)] {
        let agent = before(kind, &fake).await;
        agent.wait_until_serving("base").await;
        let error = agent.complete(&two, Some("base")).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::ExpertsNotReported);
        fake.report_experts();
        let answer = agent.complete(&two, Some("base")).await.unwrap();
        for (row, computed) in answer.choices.iter().zip([4, 5]) {
            let said = row.routed_experts.as_ref().unwrap();
            assert_eq!((said.from, said.tokens, said.per_token), (1, computed - 1, 4));
            let wanted: Vec<u16> = experts(1..computed).into_iter().map(u16::from).collect();
            assert_eq!(said.numbers().unwrap(), wanted);
        }
        let answer = agent.complete(&request(), Some("base")).await.unwrap();
        assert_eq!(
            answer.choices[0].routed_experts, None,
            "the request did not ask for them"
        );
    }
}

#[tokio::test]
async fn orders_for_another_agent_are_passed_on_to_it() {
    let base = model_of(1);
    let engine = engine::start(engine::options(base.path())).await;
    let far = Agent::before(&engine.url).await;
    let token = far.issuer.token(&driver(), Service::EngineAgent).unwrap();
    let near = Agent::guarding(Kind::Agent, &far.url, Some(&token), 16).await;
    near.wait_until_serving("base").await;
    let source = Source::start().await;
    let (order, tensors) = source.publish("a-v1", 2);
    near.order(&order).await;
    assert_eq!(near.wait_until_serving("a-v1").await.loaded_sha256, Some(tensors));
    assert_eq!(far.status().await.serving.as_deref(), Some("a-v1"));
    let near_request = CompletionRequest {
        ignore_eos: true,
        ..CompletionRequest::of_tokens("policy", vec![5, 6, 7], 4, 1)
    };
    assert_eq!(
        near.complete(&near_request, Some("a-v1"))
            .await
            .unwrap()
            .weights_version,
        "a-v1"
    );
    assert!(near.versions_on_disk().is_empty(), "the far agent pulls");
}

/// The far agent's own metrics have the names of the near one's: with both, Prometheus would mix two agents.
#[tokio::test]
async fn the_metrics_behind_another_agent_are_those_of_its_engine() {
    let fake = Fake::sglang().await;
    let far = before(sglang(), &fake).await;
    let token = far.issuer.token(&driver(), Service::EngineAgent).unwrap();
    let near = Agent::guarding(Kind::Agent, &far.url, Some(&token), 16).await;
    assert_eq!(
        near.get("/engine/metrics").await.text().await.unwrap(),
        "engine_metric 1\n"
    );
}

#[tokio::test]
async fn an_external_server_serves_when_it_has_passed_the_probe_and_says_what_it_lacks() {
    let fake = Fake::vllm().await;
    fake.keep_token_ids(true);
    let agent = Agent::guarding(openai(), &fake.url, Some("secret\n"), 16).await;
    let unfit = |said: &str| said.contains("not fit for training") && said.contains("return_token_ids");
    agent
        .wait_for(|status| status.message.as_deref().is_some_and(unfit))
        .await;
    assert_eq!(agent.get("/readyz").await.status(), 503);
    fake.keep_token_ids(false);
    agent.wait_until_serving("base").await;
    assert_eq!(agent.get("/readyz").await.status(), 200);
    assert_eq!(
        agent.complete(&request(), Some("base")).await.unwrap().weights_version,
        "base"
    );
    assert!(fake.keys().iter().all(|key| key == "Bearer secret") && !fake.keys().is_empty());
    let with_experts = CompletionRequest {
        routed_experts_from: Some(0),
        ..request()
    };
    let refused = agent.complete(&with_experts, Some("base")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::ExpertsNotReported);
    agent.order(&Source::start().await.publish("a-v1", 2).0).await;
    let status = agent.wait_for(|status| status.state == AgentState::Failed).await;
    assert!(status.message.unwrap().contains("Frozen"));
}

/// Waits until this many requests are at the engine.
async fn at_the_server(fake: &Fake, rows: u32) {
    while fake.running() < rows {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn requests_do_not_wait_for_the_probe_of_an_external_server() {
    let fake = Fake::vllm().await;
    let patient = Kind::OpenAi {
        model: None,
        text_only: false,
        probe: Probe {
            tokens: vec![1, 2, 3],
            period: Duration::from_millis(50),
            timeout: Duration::from_secs(600),
        },
    };
    let agent = before(patient, &fake).await;
    agent.wait_until_serving("base").await;
    fake.hold();
    // The next probe.
    at_the_server(&fake, 1).await;
    let asked = {
        let agent = agent.clone();
        tokio::spawn(async move { agent.complete(&request(), Some("base")).await })
    };
    let reached = tokio::time::timeout(Duration::from_secs(30), at_the_server(&fake, 2)).await;
    assert!(reached.is_ok(), "the request waits for the probe");
    fake.let_go();
    assert_eq!(asked.await.unwrap().unwrap().weights_version, "base");
}

async fn drain(agent: &Agent, key: &str) -> u16 {
    let call = agent.client.get(format!("{}/agent/v1/drain", agent.url));
    call.header(DRAIN_KEY_HEADER, key)
        .send()
        .await
        .unwrap()
        .status()
        .as_u16()
}

#[tokio::test]
async fn only_the_kubelet_drains_a_replica() {
    let agent = before(vllm(), &Fake::vllm().await).await;
    agent.wait_until_serving("base").await;
    assert_eq!(agent.get("/agent/v1/drain").await.status(), 403);
    assert_eq!(drain(&agent, "").await, 403);
    assert_eq!(drain(&agent, "key of other tests").await, 403);
    assert_eq!(agent.get("/readyz").await.status(), 200);
}

#[tokio::test]
async fn draining_waits_for_what_runs_and_lets_nobody_in() {
    let fake = Fake::vllm().await;
    let agent = before(vllm(), &fake).await;
    agent.wait_until_serving("base").await;
    let running = held_row(&fake, &agent).await;
    let drain = {
        let agent = agent.clone();
        tokio::spawn(async move { drain(&agent, DRAIN_KEY).await })
    };
    while agent.get("/readyz").await.status() != 503 {
        tokio::task::yield_now().await;
    }
    assert_eq!(
        agent.complete(&request(), None).await.unwrap_err().code,
        ErrorCode::EngineUnavailable
    );
    assert!(!drain.is_finished(), "drained while a request ran");
    fake.let_go();
    assert!(running.await.unwrap().is_ok());
    assert_eq!(drain.await.unwrap(), 200);
}

#[tokio::test]
async fn the_kubelet_asks_the_agent_whether_the_engine_answers() {
    let fake = Fake::sglang().await;
    let agent = before(sglang(), &fake).await;
    assert_eq!(agent.get("/engine/healthz").await.status(), 200);
    assert_eq!(
        agent.get("/engine/metrics").await.text().await.unwrap(),
        "engine_metric 1\n"
    );
    let no_engine = Agent::guarding(sglang(), "http://127.0.0.1:1", None, 16).await;
    assert_eq!(no_engine.get("/engine/healthz").await.status(), 503);
}
