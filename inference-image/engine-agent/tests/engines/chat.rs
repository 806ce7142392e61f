//! Conversations in text, forwarded to every kind of engine.

use super::{before, body_of, drain, openai, request, sglang, vllm};
use crate::support::fake::Fake;
use crate::support::{Agent, DRAIN_KEY, MAX_REQUEST_BYTES, Source, driver, engine, model_of};
use grpo_contracts::access::Service;
use grpo_engine_agent::Kind;
use grpo_engine_protocol::{ChatRequest, ChatRole, ChatText, ErrorCode};
use serde_json::json;
use std::path::Path;

const PATH: &str = "/v1/chat/completions";

pub(super) fn conversation(seed: u64) -> ChatRequest {
    ChatRequest {
        model: "judge".to_owned(),
        messages: vec![ChatText {
            role: ChatRole::User,
            content: "How good was this turn?".to_owned(),
        }],
        max_tokens: Some(8),
        temperature: 0.7,
        top_p: 1.0,
        top_k: None,
        min_p: None,
        presence_penalty: None,
        frequency_penalty: None,
        repetition_penalty: None,
        seed: Some(seed),
    }
}

#[tokio::test]
async fn a_conversation_is_put_to_an_engine_under_the_name_that_it_serves() {
    for (kind, fake) in [
        (vllm(), Fake::vllm().await),
        (sglang(), Fake::sglang().await),
        (openai(), Fake::vllm().await),
    ] {
        let agent = before(kind, &fake).await;
        agent.wait_until_serving("base").await;
        fake.calls();
        let answer = agent.chat(&conversation(u64::MAX)).await.unwrap();
        assert_eq!(answer.choices[0].message.content.as_deref(), Some("0.5"));
        assert_eq!(answer.usage.unwrap().completion_tokens, 3);
        let asked = json!({
            "model": "policy", "messages": [{"role": "user", "content": "How good was this turn?"}], "max_tokens": 8,
            "temperature": 0.7, "top_p": 1.0, "seed": i64::MAX,
        });
        assert_eq!(body_of(&fake.calls(), PATH), &asked);
        let few = ChatRequest {
            top_k: Some(5),
            seed: None,
            ..conversation(0)
        };
        agent.chat(&few).await.unwrap();
        let calls = fake.calls();
        let asked = body_of(&calls, PATH);
        assert_eq!((&asked["top_k"], asked.get("seed")), (&json!(5), None));
    }
}

#[tokio::test]
async fn a_conversation_is_answered_from_the_adapter_that_serves() {
    let source = Source::start().await;
    for (kind, fake, named) in [
        (vllm(), Fake::vllm().await, "model"),
        (sglang(), Fake::sglang().await, "lora_path"),
    ] {
        let agent = before(kind, &fake).await;
        agent.order(&source.publish_adapter("a-v1")).await;
        agent.wait_until_serving("a-v1").await;
        fake.calls();
        agent.chat(&conversation(1)).await.unwrap();
        assert_eq!(body_of(&fake.calls(), PATH)[named], "a-v1");
    }
}

#[tokio::test]
async fn the_embedded_engine_and_an_agent_before_it_answer_and_refuse_alike() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/model");
    let without_text = model_of(1);
    for (model, refused) in [(&*demo, false), (without_text.path(), true)] {
        let engine = engine::start(engine::options(model)).await;
        let near = Agent::before(&engine.url).await;
        let token = near.issuer.token(&driver(), Service::EngineAgent).unwrap();
        let far = Agent::guarding(Kind::Agent, &near.url, Some(&token), 16).await;
        far.wait_until_serving("base").await;
        let (answer, through_two) = (near.chat(&conversation(3)).await, far.chat(&conversation(3)).await);
        assert_eq!(answer, through_two);
        match refused {
            true => assert_eq!(answer.unwrap_err().code, ErrorCode::TextPromptUnsupported),
            false => assert!(answer.unwrap().choices[0].message.content.is_some()),
        }
    }
}

#[tokio::test]
async fn an_answer_that_has_no_choice_is_not_passed_on() {
    for answer in [json!({"choices": []}), json!({"object": "error"}), json!("0.5")] {
        for kind in [vllm(), openai(), Kind::Embedded, Kind::Agent] {
            let fake = Fake::vllm().await;
            fake.say_in_chat(answer.clone());
            let agent = before(kind, &fake).await;
            let mut asked = conversation(1);
            asked.model = "policy".to_owned();
            let error = agent.chat(&asked).await.unwrap_err();
            assert_eq!(error.code, ErrorCode::EngineMisbehaved);
            assert!(error.message.contains(PATH), "{error}");
        }
    }
}

#[tokio::test]
async fn an_answer_that_the_engine_gave_up_is_not_passed_on() {
    let message = json!({"role": "assistant", "content": "0."});
    let cut = json!({"choices": [{"index": 0, "message": message, "finish_reason": "abort"}]});
    for kind in [vllm(), openai(), Kind::Embedded, Kind::Agent] {
        let fake = Fake::vllm().await;
        fake.say_in_chat(cut.clone());
        let agent = before(kind, &fake).await;
        let mut asked = conversation(1);
        asked.model = "policy".to_owned();
        let error = agent.chat(&asked).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::EngineUnavailable, "{error}");
    }
}

#[tokio::test]
async fn a_server_without_the_route_is_named() {
    let kind = Kind::Vllm {
        no_folders: None,
        cpu: false,
    };
    let base = model_of(1);
    let engine = engine::start(engine::options(base.path())).await;
    let nowhere = format!("{}/nowhere", engine.url);
    let error = Agent::guarding(kind, &nowhere, None, 16)
        .await
        .chat(&conversation(1))
        .await
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::EngineMisbehaved);
    assert!(error.message.contains(&nowhere), "{error}");
}

#[tokio::test]
async fn conversations_have_the_places_and_limits_of_completions() {
    let fake = Fake::vllm().await;
    let agent = Agent::guarding(vllm(), &fake.url, None, 1).await;
    agent.wait_until_serving("base").await;
    fake.hold();
    let running = {
        let agent = agent.clone();
        tokio::spawn(async move { agent.chat(&conversation(1)).await })
    };
    while fake.running() == 0 {
        tokio::task::yield_now().await;
    }
    let full = agent.chat(&conversation(2)).await.unwrap_err();
    assert_eq!(full.code, ErrorCode::QueueFull);
    let full = agent.complete(&request(), None).await.unwrap_err();
    assert_eq!(full.code, ErrorCode::QueueFull);
    let draining = {
        let agent = agent.clone();
        tokio::spawn(async move { drain(&agent, DRAIN_KEY).await })
    };
    while agent.get("/readyz").await.status() != 503 {
        tokio::task::yield_now().await;
    }
    let ends = agent.chat(&conversation(2)).await.unwrap_err();
    assert_eq!(ends.code, ErrorCode::EngineUnavailable);
    assert!(!draining.is_finished(), "drained while a conversation was answered");
    fake.let_go();
    assert!(running.await.unwrap().is_ok());
    assert_eq!(draining.await.unwrap(), 200);
    let metrics = agent.get("/metrics").await.text().await.unwrap();
    for line in [
        r#"completions_passed_total 1"#,
        r#"completions_refused_total{code="QueueFull"} 2"#,
        r#"completions_refused_total{code="EngineUnavailable"} 1"#,
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }
}

#[tokio::test]
async fn what_is_no_conversation_does_not_reach_the_engine() {
    let fake = Fake::vllm().await;
    let agent = before(vllm(), &fake).await;
    agent.wait_until_serving("base").await;
    fake.calls();
    let good = serde_json::to_value(conversation(1)).unwrap();
    let put = async |body: Vec<u8>| {
        let call = agent.client.post(format!("{}{PATH}", agent.url)).body(body);
        call.send().await.unwrap()
    };
    for (field, value) in [
        ("tools", json!([{"type": "function", "function": {"name": "bash"}}])),
        ("messages", json!([{"role": "tool", "content": "4"}])),
        ("max_tokens", json!("eight")),
        ("stream", json!(true)),
    ] {
        let mut wrong = good.clone();
        wrong[field] = value;
        let answer = put(wrong.to_string().into_bytes()).await;
        assert_eq!(answer.status(), 400, "{field}");
        let error: grpo_engine_protocol::ErrorBody = answer.json().await.unwrap();
        assert_eq!(error.code, ErrorCode::InvalidRequest);
    }
    assert_eq!(put(vec![b' '; MAX_REQUEST_BYTES + 1]).await.status(), 413);
    assert!(fake.paths().is_empty());
}
