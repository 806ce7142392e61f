//! The agent with a simulated SGLang server.

use super::chat::conversation;
use super::{before, body_of, held_row, request, sglang};
use crate::support::Source;
use crate::support::fake::Fake;
use grpo_engine_protocol::completion::Prompt;
use grpo_engine_protocol::{AgentState, CompletionRequest, ErrorCode, ErrorOrigin};
use serde_json::json;

#[tokio::test]
async fn sglang_is_asked_for_rows_with_seeds_of_their_own() {
    let fake = Fake::sglang().await;
    let agent = before(sglang(), &fake).await;
    agent.wait_until_serving("base").await;
    let many = CompletionRequest {
        prompt: Prompt::Batch(vec![vec![1], vec![2, 3]]),
        n: 2,
        seed: Some(10),
        ..request()
    };
    let answer = agent.complete(&many, Some("base")).await.unwrap();
    assert_eq!(
        answer.choices.iter().map(|row| row.index).collect::<Vec<_>>(),
        [0, 1, 2, 3]
    );
    let row = &answer.choices[3];
    assert_eq!((&row.token_ids[..], row.stop_reason), (&[100, 101, 102][..], Some(102)));
    assert_eq!(row.logprobs.as_ref().unwrap().token_logprobs, [-0.5, -1.5, -2.5]);
    let calls = fake.calls();
    let asked = body_of(&calls, "/generate");
    assert_eq!(asked["input_ids"], json!([[1], [1], [2, 3], [2, 3]]));
    let seeds: Vec<_> = asked["sampling_params"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["sampling_seed"].clone())
        .collect();
    assert_eq!(seeds, [10, 11, 12, 13]);
}

#[tokio::test]
async fn sglang_takes_full_weights_from_a_folder_and_adapters_by_name() {
    let fake = Fake::sglang().await;
    let source = Source::start().await;
    let agent = before(sglang(), &fake).await;
    agent.wait_until_serving("base").await;
    agent.order(&source.publish("a-v1", 2).0).await;
    agent.wait_until_serving("a-v1").await;
    let calls = fake.calls();
    let update = body_of(&calls, "/update_weights_from_disk");
    assert_eq!(
        (&update["weight_version"], &update["flush_cache"]),
        (&json!("unverified"), &json!(true))
    );
    assert_eq!(
        agent.complete(&request(), Some("a-v1")).await.unwrap().weights_version,
        "a-v1"
    );
    agent.order(&source.publish_adapter("a-v2")).await;
    agent.wait_until_serving("a-v2").await;
    assert!(
        !fake.paths().contains(&"/unload_lora_adapter".to_owned()),
        "the model's new name was taken for an adapter's"
    );
    assert_eq!(
        agent.complete(&request(), Some("a-v2")).await.unwrap().weights_version,
        "a-v2"
    );
    assert_eq!(body_of(&fake.calls(), "/generate")["lora_path"], json!(["a-v2"]));
}

#[tokio::test]
async fn weights_of_an_update_that_failed_are_of_no_version_and_the_failure_is_told_in_the_words_of_sglang() {
    let fake = Fake::sglang().await;
    let source = Source::start().await;
    let agent = before(sglang(), &fake).await;
    agent.order(&source.publish_adapter("a-v1")).await;
    agent.wait_until_serving("a-v1").await;
    fake.lie();
    agent.order(&source.publish("a-v2", 2).0).await;
    let status = agent.wait_for(|status| status.state == AgentState::Failed).await;
    assert_eq!(status.serving.as_deref(), Some("unverified"));
    assert!(status.message.unwrap().contains("Failed to update weights"));
    for version in ["base", "a-v1"] {
        let error = agent.complete(&request(), Some(version)).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::WrongWeights, "{version}: {error}");
    }
    let answer = agent.complete(&request(), None).await.unwrap();
    assert_eq!(answer.weights_version, "unverified");
    fake.lie_no_more();
    agent.wait_until_serving("a-v2").await;
}

/// The labels that the engine was given by orders and updates of weights.
fn labels(fake: &Fake) -> Vec<String> {
    let given = |(_, body): (String, serde_json::Value)| {
        let label = body["new_version"].as_str().or(body["weight_version"].as_str());
        label.map(str::to_owned)
    };
    fake.calls().into_iter().filter_map(given).collect()
}

#[tokio::test]
async fn weights_whose_old_label_cannot_be_marked_are_not_replaced() {
    let fake = Fake::sglang().await;
    let source = Source::start().await;
    let agent = before(sglang(), &fake).await;
    agent.wait_until_serving("base").await;
    fake.refuse_labels(true);
    agent.order(&source.publish("a-v1", 2).0).await;
    let status = agent.wait_for(|status| status.state == AgentState::Failed).await;
    assert_eq!(status.serving.as_deref(), Some("base"));
    assert!(!fake.paths().contains(&"/update_weights_from_disk".to_owned()));
    fake.refuse_labels(false);
    agent.wait_until_serving("a-v1").await;
}

/// The agent that ordered the update is gone, and SGLang took no new label.
#[tokio::test]
async fn weights_that_an_earlier_agent_was_replacing_are_of_no_version_until_the_next_load() {
    let fake = Fake::sglang().await;
    fake.restart("replacing:base");
    let source = Source::start().await;
    let agent = before(sglang(), &fake).await;
    agent.wait_until_serving("unverified").await;
    let answer = agent.complete(&request(), None).await.unwrap();
    assert_eq!(answer.weights_version, "unverified");
    fake.calls();
    agent.order(&source.publish("a-v1", 2).0).await;
    agent.wait_until_serving("a-v1").await;
    assert_eq!(labels(&fake), ["unverified", "unverified", "a-v1"]);
}

#[tokio::test]
async fn rows_that_end_before_sglang_replaces_its_weights_are_of_the_old_ones() {
    let fake = Fake::sglang().await;
    fake.end_rows_before_a_pause();
    let source = Source::start().await;
    let agent = before(sglang(), &fake).await;
    agent.wait_until_serving("base").await;
    let running = held_row(&fake, &agent).await;
    agent.order(&source.publish("a-v1", 2).0).await;
    while !fake.paths().contains(&"/update_weights_from_disk".to_owned()) {
        tokio::task::yield_now().await;
    }
    fake.let_go();
    assert_eq!(running.await.unwrap().unwrap().weights_version, "base");
    agent.wait_until_serving("a-v1").await;
}

#[tokio::test]
async fn an_adapter_that_sglang_lost_is_no_fault_of_the_request() {
    let fake = Fake::sglang().await;
    let source = Source::start().await;
    let agent = before(sglang(), &fake).await;
    agent.order(&source.publish_adapter("a-v1")).await;
    agent.wait_until_serving("a-v1").await;
    fake.lose_adapters();
    for error in [
        agent.complete(&request(), Some("a-v1")).await.unwrap_err(),
        agent.chat(&conversation(1)).await.unwrap_err(),
    ] {
        assert_eq!(
            (error.code, error.fault, error.wanted.as_deref()),
            (ErrorCode::WrongWeights, ErrorOrigin::Infrastructure, Some("a-v1"))
        );
    }
}

#[tokio::test]
async fn sampled_tokens_are_counted_also_without_logprobs() {
    let fake = Fake::sglang().await;
    let agent = before(sglang(), &fake).await;
    agent.wait_until_serving("base").await;
    let without = CompletionRequest {
        logprobs: None,
        ..request()
    };
    let answer = agent.complete(&without, Some("base")).await.unwrap();
    assert_eq!(
        (answer.choices[0].logprobs.as_ref(), answer.usage.completion_tokens),
        (None, 3)
    );
}
