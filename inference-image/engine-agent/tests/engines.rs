//! The agent before engines that are not ours, over real sockets: servers that speak as vLLM and SGLang do.

#![allow(clippy::unwrap_used)]

mod support;

use grpo_engine_agent::Kind;
use grpo_engine_agent::engine::openai::Probe;
use grpo_engine_agent::pull::sha256;
use grpo_engine_protocol::completion::Prompt;
use grpo_engine_protocol::{AgentState, CompletionRequest, CompletionResponse, ErrorBody, ErrorCode, FinishReason};
use serde_json::{Value, json};
use std::time::Duration;
use support::fake::{Fake, experts};
use support::{Agent, Source, engine, model_of};
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
    Kind::OpenAi {
        model: None,
        probe: Probe {
            tokens: vec![1, 2, 3],
            period: Duration::from_millis(50),
            timeout: Duration::from_secs(5),
        },
    }
}

async fn before(kind: Kind, fake: &Fake) -> Agent {
    Agent::guarding(kind, &fake.url, None, 16).await
}

/// A row of the base model that is on its way until the engine is let go.
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
    agent.order(&source.publish_adapter("a-v1")).await;
    agent.wait_until_serving("a-v1").await;
    assert_eq!(fake.paths(), ["/pause?mode=wait", "/load_lora_adapter", "/resume"]);
    agent.order(&source.publish_adapter("a-v2")).await;
    agent.wait_until_serving("a-v2").await;
    assert_eq!(fake.paths(), ["/load_lora_adapter"]);
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
            "/collective_rpc",
            "/reset_prefix_cache",
            "/update_weight_version",
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
    assert_eq!(fake.adapters(), ["a-v2", "a-v3"], "nobody may ask for it any more");
    assert_eq!(agent.versions_on_disk(), ["a-v1", "a-v2", "a-v3"]);
    fake.let_go();
    assert_eq!(running.await.unwrap().unwrap().weights_version, "a-v1");
    agent.order(&source.publish_adapter("a-v4")).await;
    agent.wait_until_serving("a-v4").await;
    assert_eq!(agent.versions_on_disk(), ["a-v3", "a-v4"]);
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
        assert_eq!(answer.choices[0].routed_experts, None, "nobody asked for them");
    }
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
        (&json!("a-v1"), &json!(true))
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
async fn what_sglang_refuses_to_load_leaves_the_old_version_serving_and_is_told_in_its_words() {
    let fake = Fake::sglang().await;
    let source = Source::start().await;
    let agent = before(sglang(), &fake).await;
    fake.lie();
    agent.order(&source.publish("a-v1", 2).0).await;
    let status = agent.wait_for(|status| status.state == AgentState::Failed).await;
    assert_eq!(status.serving.as_deref(), Some("base"));
    assert!(status.message.unwrap().contains("Failed to update weights"));
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

#[tokio::test]
async fn orders_for_another_agent_are_passed_on_to_it() {
    let base = model_of(1);
    let engine = engine::start(engine::options(base.path())).await;
    let far = Agent::before(&engine.url).await;
    let near = Agent::guarding(Kind::Agent, &far.url, None, 16).await;
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

#[tokio::test]
async fn draining_waits_for_what_runs_and_lets_nobody_in() {
    let fake = Fake::vllm().await;
    let agent = before(vllm(), &fake).await;
    agent.wait_until_serving("base").await;
    let running = held_row(&fake, &agent).await;
    let drain = {
        let agent = agent.clone();
        tokio::spawn(async move { agent.get("/agent/v1/drain").await.status() })
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
    let nobody = Agent::guarding(sglang(), "http://127.0.0.1:1", None, 16).await;
    assert_eq!(nobody.get("/engine/healthz").await.status(), 503);
}
