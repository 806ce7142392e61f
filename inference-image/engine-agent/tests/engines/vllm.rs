//! The agent with a simulated vLLM server.

use super::{before, body_of, held_row, request, vllm, with_canary};
use crate::support::Source;
use crate::support::fake::Fake;
use grpo_engine_agent::Kind;
use grpo_engine_agent::pull::sha256;
use grpo_engine_protocol::completion::Prompt;
use grpo_engine_protocol::{AgentState, CompletionRequest, ErrorCode, FinishReason};
use serde_json::json;

#[tokio::test]
async fn vllm_is_asked_in_its_own_words_and_answers_in_ours() {
    let fake = Fake::vllm().await;
    let agent = before(vllm(), &fake).await;
    agent.wait_until_serving("base").await;
    let answer = agent.complete(&request(), Some("base")).await.unwrap();
    assert_eq!((answer.weights_version.as_str(), answer.choices.len()), ("base", 1));
    let row = &answer.choices[0];
    assert_eq!(row.token_ids, [100, 101, 102]);
    assert_eq!(row.logprobs.as_ref().unwrap().token_logprobs, [-0.5, -1.5, -2.5]);
    assert_eq!(
        (row.finish_reason, row.weights_version.as_str()),
        (FinishReason::Length, "base")
    );
    let calls = fake.calls();
    let asked = body_of(&calls, "/v1/completions");
    assert_eq!(
        (&asked["model"], &asked["prompt"]),
        (&json!("policy"), &json!([5, 6, 7]))
    );
    assert_eq!((&asked["top_k"], &asked["seed"]), (&json!(-1), &json!(i64::MAX)));
    assert_eq!(asked["return_weight_versions"], true);
    let text = CompletionRequest {
        prompt: Prompt::Text("hello".into()),
        ..request()
    };
    let refused = agent.complete(&text, None).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::TextPromptUnsupported);
}

#[tokio::test]
async fn adapters_of_vllm_are_swapped_by_name_and_path_and_the_one_before_stays() {
    let fake = Fake::vllm().await;
    let source = Source::start().await;
    let agent = before(vllm(), &fake).await;
    agent.wait_until_serving("base").await;
    for version in ["a-v1", "a-v2", "a-v3"] {
        agent.order(&source.publish_adapter(version)).await;
        let status = agent.wait_until_serving(version).await;
        assert_eq!(status.changed, Some(true));
        let answer = agent.complete(&request(), Some(version)).await.unwrap();
        assert_eq!(answer.weights_version, version);
        assert_eq!(body_of(&fake.calls(), "/v1/completions")["model"], version);
    }
    assert_eq!(fake.adapters(), ["a-v2", "a-v3"]);
    assert!(
        agent.complete(&request(), Some("a-v2")).await.is_err(),
        "it does not serve any more"
    );
}

#[tokio::test]
async fn on_a_cpu_rows_of_the_base_model_end_before_the_first_adapter_and_those_of_adapters_do_not() {
    let fake = Fake::vllm().await;
    let source = Source::start().await;
    let on_a_cpu = Kind::Vllm {
        no_folders: None,
        cpu: true,
    };
    let agent = before(on_a_cpu, &fake).await;
    agent.wait_until_serving("base").await;
    fake.calls();
    agent.order(&source.publish_adapter_with("a-v1", with_canary)).await;
    agent.wait_until_serving("a-v1").await;
    let paths = ["/pause?mode=wait", "/load_lora_adapter", "/resume", "/v1/completions"];
    assert_eq!(fake.paths(), paths);
    agent.order(&source.publish_adapter_with("a-v2", with_canary)).await;
    agent.wait_until_serving("a-v2").await;
    assert_eq!(fake.paths(), ["/load_lora_adapter", "/v1/completions"]);
}

#[tokio::test]
async fn an_engine_that_restarted_has_no_adapter_and_gets_it_again() {
    let fake = Fake::vllm().await;
    let source = Source::start().await;
    let agent = before(vllm(), &fake).await;
    agent.order(&source.publish_adapter("a-v1")).await;
    agent.wait_until_serving("a-v1").await;
    fake.calls();
    fake.restart("default");
    while fake.adapters().is_empty() {
        tokio::task::yield_now().await;
    }
    agent.wait_until_serving("a-v1").await;
    assert_eq!(fake.paths(), ["/load_lora_adapter"]);
}

#[tokio::test]
async fn full_weights_of_vllm_are_replaced_while_it_is_paused() {
    let fake = Fake::vllm().await;
    let source = Source::start().await;
    let agent = before(vllm(), &fake).await;
    agent.wait_until_serving("base").await;
    agent.order(&source.publish("a-v1", 2).0).await;
    agent.wait_until_serving("a-v1").await;
    let calls = fake.calls();
    let paths: Vec<_> = calls.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "/pause?mode=wait",
            "/update_weight_version",
            "/collective_rpc",
            "/reset_prefix_cache",
            "/resume",
            "/v1/completions",
            "/update_weight_version"
        ]
    );
    let reload = body_of(&calls, "/collective_rpc");
    assert_eq!(reload["method"], "reload_weights");
    assert!(
        reload["kwargs"]["weights_path"].as_str().unwrap().ends_with("/a-v1"),
        "{reload}"
    );
    assert_eq!(
        agent.complete(&request(), Some("a-v1")).await.unwrap().weights_version,
        "a-v1"
    );
}

#[tokio::test]
async fn rows_that_do_not_say_their_version_are_of_the_one_between_two_replacements() {
    let fake = Fake::vllm().await;
    fake.say_no_spans();
    let source = Source::start().await;
    let agent = before(vllm(), &fake).await;
    agent.wait_until_serving("base").await;
    let answer = agent.complete(&request(), Some("base")).await.unwrap();
    assert_eq!(answer.choices[0].weights_version, "base");
    let running = held_row(&fake, &agent).await;
    agent.order(&source.publish("a-v1", 2).0).await;
    while !fake.paths().iter().any(|path| path == "/resume") {
        tokio::task::yield_now().await;
    }
    fake.let_go();
    let error = running.await.unwrap().unwrap_err();
    assert_eq!(
        error.code,
        ErrorCode::WrongWeights,
        "weights were replaced under it: {error}"
    );
    agent.wait_until_serving("a-v1").await;
    let answer = agent.complete(&request(), Some("a-v1")).await.unwrap();
    assert_eq!(answer.choices[0].weights_version, "a-v1");
}

#[tokio::test]
async fn rows_that_end_before_weights_are_replaced_are_of_the_old_ones() {
    let fake = Fake::vllm().await;
    fake.say_no_spans();
    fake.end_rows_before_a_pause();
    let source = Source::start().await;
    let agent = before(vllm(), &fake).await;
    agent.wait_until_serving("base").await;
    let running = held_row(&fake, &agent).await;
    agent.order(&source.publish("a-v1", 2).0).await;
    agent.wait_for(|status| status.state == AgentState::Loading).await;
    fake.let_go();
    let answer = running.await.unwrap().unwrap();
    assert_eq!(answer.choices[0].weights_version, "base");
    agent.wait_until_serving("a-v1").await;
}

#[tokio::test]
async fn a_prefix_cache_that_was_not_dropped_is_a_failure_and_the_engine_goes_on() {
    let fake = Fake::vllm().await;
    let source = Source::start().await;
    let agent = before(vllm(), &fake).await;
    fake.hold_blocks();
    agent.order(&source.publish("a-v1", 2).0).await;
    let status = agent.wait_for(|status| status.state == AgentState::Failed).await;
    assert!(status.message.unwrap().contains("blocks of the prefix cache"));
    assert!(fake.paths().contains(&"/resume".to_owned()), "it stays paused");
    let error = agent.complete(&request(), Some("base")).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::WrongWeights, "new weights sample: {error}");
}

#[tokio::test]
async fn weights_of_a_load_that_failed_in_the_middle_are_of_no_version() {
    let fake = Fake::vllm().await;
    let source = Source::start().await;
    let agent = before(vllm(), &fake).await;
    agent.order(&source.publish_adapter("a-v1")).await;
    agent.wait_until_serving("a-v1").await;
    fake.refuse(Some("/collective_rpc"));
    agent.order(&source.publish("a-v2", 2).0).await;
    let status = agent.wait_for(|status| status.state == AgentState::Failed).await;
    assert_eq!(status.serving.as_deref(), Some("unverified"));
    assert!(status.message.unwrap().contains("out of memory"));
    // Nor is the adapter on them.
    for version in ["base", "a-v1"] {
        let error = agent.complete(&request(), Some(version)).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::WrongWeights, "{version}: {error}");
    }
    let answer = agent.complete(&request(), None).await.unwrap();
    assert_eq!(answer.weights_version, "unverified");
    fake.refuse(None);
    agent.wait_until_serving("a-v2").await;
}

#[tokio::test]
async fn an_engine_that_holds_new_weights_and_samples_from_the_old_is_noticed() {
    let fake = Fake::vllm().await;
    let source = Source::start().await;
    let agent = before(vllm(), &fake).await;
    agent.order(&source.publish("a-v1", 2).0).await;
    agent.wait_until_serving("a-v1").await;
    fake.sample_from_old();
    agent.order(&source.publish("a-v2", 3).0).await;
    let status = agent.wait_for(|status| status.state == AgentState::Failed).await;
    assert!(status.message.unwrap().contains("samples from the weights from before"));
}

#[tokio::test]
async fn a_version_serves_without_a_comparison_if_the_engine_gives_no_logprobs() {
    let fake = Fake::vllm().await;
    let source = Source::start().await;
    let agent = before(vllm(), &fake).await;
    fake.say_no_prompt_logprobs();
    agent.order(&source.publish_with("a-v1", 2, with_canary)).await;
    agent.wait_until_serving("a-v1").await;
    assert!(
        fake.calls()
            .iter()
            .any(|(_, asked)| asked["prompt_logprobs"].is_number())
    );
    fake.give_up_rows();
    agent.order(&source.publish_adapter_with("a-v2", with_canary)).await;
    agent.wait_until_serving("a-v2").await;
    let calls = fake.calls();
    let asked = body_of(&calls, "/v1/completions");
    assert_eq!((&asked["model"], &asked["prompt"]), (&json!("a-v2"), &json!([5, 70])));
    assert!(
        asked["logit_bias"]["900"].is_number() && asked["cache_salt"].is_string(),
        "{asked}"
    );
    assert!(asked["prompt_logprobs"].is_null(), "{asked}");
}

#[tokio::test]
async fn vllm_on_a_cpu_is_not_given_full_weights_of_a_model_with_tied_layers_and_says_why() {
    let fake = Fake::vllm().await;
    let source = Source::start().await;
    let kind = Kind::Vllm {
        no_folders: None,
        cpu: true,
    };
    let agent = before(kind, &fake).await;
    agent.order(&source.publish("a-v1", 2).0).await;
    let status = agent.wait_for(|status| status.state == AgentState::Failed).await;
    assert_eq!(status.serving.as_deref(), Some("base"));
    assert!(status.message.unwrap().contains("tie_word_embeddings"));
    assert!(fake.paths().is_empty());
    agent.order(&source.publish_adapter("a-v2")).await;
    agent.wait_until_serving("a-v2").await;
    let config = br#"{"tie_word_embeddings": false}"#.to_vec();
    let untied = vec![("config.json", config), ("model.safetensors", b"tensors".to_vec())];
    agent
        .order(&source.publish_files("a-v3", untied, &sha256(b"tensors"), |_| {}))
        .await;
    agent.wait_until_serving("a-v3").await;
    assert!(fake.paths().contains(&"/collective_rpc".to_owned()));
}

#[tokio::test]
async fn the_files_of_an_adapter_stay_as_long_as_a_row_is_sampled_from_it() {
    let fake = Fake::vllm().await;
    let source = Source::start().await;
    let agent = before(vllm(), &fake).await;
    agent.order(&source.publish_adapter("a-v1")).await;
    agent.wait_until_serving("a-v1").await;
    fake.hold();
    let running = {
        let agent = agent.clone();
        tokio::spawn(async move { agent.complete(&request(), Some("a-v1")).await })
    };
    while fake.running() == 0 {
        tokio::task::yield_now().await;
    }
    for version in ["a-v2", "a-v3"] {
        agent.order(&source.publish_adapter(version)).await;
        agent.wait_until_serving(version).await;
    }
    assert_eq!(
        fake.adapters(),
        ["a-v2", "a-v3"],
        "no request may ask for a-v1 any more"
    );
    assert_eq!(agent.versions_on_disk(), ["a-v1", "a-v2", "a-v3"]);
    fake.let_go();
    assert_eq!(running.await.unwrap().unwrap().weights_version, "a-v1");
    agent.order(&source.publish_adapter("a-v4")).await;
    agent.wait_until_serving("a-v4").await;
    assert_eq!(agent.versions_on_disk(), ["a-v3", "a-v4"]);
}

#[tokio::test]
async fn vllm_is_asked_for_as_few_experts_as_can_be_where_nobody_wants_them() {
    let fake = Fake::vllm().await;
    let agent = before(vllm(), &fake).await;
    agent.wait_until_serving("base").await;
    fake.calls();
    agent.complete(&request(), Some("base")).await.unwrap();
    let calls = fake.calls();
    assert_eq!(body_of(&calls, "/v1/completions")["routed_experts_prompt_start"], 3);
}

#[tokio::test]
async fn weights_that_did_not_change_although_the_engine_says_so_are_noticed() {
    let fake = Fake::vllm().await;
    let source = Source::start().await;
    let agent = before(vllm(), &fake).await;
    agent.wait_until_serving("base").await;
    agent.order(&source.publish("a-v1", 2).0).await;
    agent.wait_until_serving("a-v1").await;
    fake.calls();
    fake.lie();
    agent.order(&source.publish("a-v2", 3).0).await;
    let status = agent.wait_for(|status| status.state == AgentState::Failed).await;
    assert!(status.message.unwrap().contains("holds the weights from before"));
    assert!(fake.paths().contains(&"/resume".to_owned()), "it stays paused");
}
