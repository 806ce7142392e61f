//! Simulated vLLM and SGLang servers that give their memory back and take it up again, as ordered.

use super::{before, held_row, openai, request, sglang, vllm, with_canary};
use crate::support::fake::Fake;
use crate::support::{Agent, Source, driver};
use grpo_contracts::access::Service;
use grpo_engine_agent::Kind;
use grpo_engine_protocol::{AgentState, ErrorCode, WeightsOrder};
use serde_json::{Value, json};

const WHOLE: [&str; 2] = ["kv_cache", "weights"];

/// An engine of each kind, awake, and its agent.
async fn awake() -> [(Kind, Fake, Agent); 2] {
    let (one, two) = (Fake::vllm().await, Fake::sglang().await);
    let agents = [before(vllm(), &one).await, before(sglang(), &two).await];
    for agent in &agents {
        agent.wait_until_serving("base").await;
    }
    let [first, second] = agents;
    [(vllm(), one, first), (sglang(), two, second)]
}

fn tags(tags: &[&str]) -> Value {
    json!({"tags": tags})
}

#[tokio::test]
async fn vllm_takes_up_its_weights_then_loads_a_version_and_then_takes_up_its_cache() {
    let fake = Fake::vllm().await;
    let source = Source::start().await;
    let agent = before(vllm(), &fake).await;
    agent.wait_until_serving("base").await;
    fake.calls();
    agent.sleep(true).await;
    agent.wait_until_asleep().await;
    let calls = fake.calls();
    assert_eq!(calls[0].1["new_version"], "asleep:default");
    assert_eq!((calls[1].0.as_str(), calls.len()), ("/sleep?level=1", 2));
    agent.order(&source.publish_with("a-v1", 2, with_canary)).await;
    agent.sleep(false).await;
    agent.wait_until_serving("a-v1").await;
    let calls = fake.calls();
    let paths: Vec<_> = calls.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "/update_weight_version",
            "/wake_up?tags=weights",
            "/pause?mode=wait",
            "/update_weight_version",
            "/collective_rpc",
            "/reset_prefix_cache",
            "/resume",
            "/wake_up?tags=kv_cache",
            "/update_weight_version",
            "/v1/completions",
            "/v1/completions",
            "/update_weight_version"
        ]
    );
    let labels = calls.iter().filter(|(path, _)| path == "/update_weight_version");
    let labels: Vec<_> = labels.map(|(_, body)| body["new_version"].as_str().unwrap()).collect();
    assert_eq!(labels, ["waking:default", "waking:unverified", "unverified", "a-v1"]);
    // The same version: it is in the memory of the host.
    agent.sleep(true).await;
    agent.wait_until_asleep().await;
    agent.sleep(false).await;
    agent.wait_until_serving("a-v1").await;
    assert_eq!(
        fake.paths(),
        [
            "/update_weight_version",
            "/sleep?level=1",
            "/update_weight_version",
            "/wake_up?tags=weights",
            "/wake_up?tags=kv_cache",
            "/update_weight_version"
        ]
    );
    assert!(agent.complete(&request(), Some("a-v1")).await.is_ok());
    assert!(fake.crashes().is_empty(), "{:?}", fake.crashes());
}

#[tokio::test]
async fn sglang_resumes_its_weights_then_loads_a_version_and_then_resumes_its_cache() {
    let fake = Fake::sglang().await;
    let source = Source::start().await;
    let agent = before(sglang(), &fake).await;
    agent.wait_until_serving("base").await;
    fake.calls();
    agent.sleep(true).await;
    agent.wait_until_asleep().await;
    let calls = fake.calls();
    assert_eq!(calls[0].0, "/flush_cache");
    assert_eq!(calls[1], ("/release_memory_occupation".to_owned(), tags(&WHOLE)));
    assert_eq!(calls[2].1["new_version"], "asleep:base");
    assert_eq!(calls[2].1["abort_all_requests"], false);
    agent.order(&source.publish_with("a-v1", 2, with_canary)).await;
    agent.sleep(false).await;
    agent.wait_until_serving("a-v1").await;
    let calls = fake.calls();
    let paths: Vec<_> = calls.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "/update_weight_version",
            "/resume_memory_occupation",
            "/update_weight_version",
            "/update_weights_from_disk",
            "/resume_memory_occupation",
            "/update_weight_version",
            "/generate",
            "/update_weight_version"
        ]
    );
    assert_eq!((&calls[1].1, &calls[4].1), (&tags(&["weights"]), &tags(&["kv_cache"])));
    let labels = [0, 2, 5, 7].map(|at: usize| calls[at].1["new_version"].as_str().unwrap());
    assert_eq!(labels, ["waking:base", "waking:replacing:base", "unverified", "a-v1"]);
    assert_eq!(calls[3].1["weight_version"], "waking:unverified");
    // The same version: it is in the memory of the host.
    agent.sleep(true).await;
    agent.wait_until_asleep().await;
    fake.calls();
    agent.sleep(false).await;
    agent.wait_until_serving("a-v1").await;
    let calls = fake.calls();
    assert_eq!((&calls[1].1, &calls[2].1), (&tags(&["weights"]), &tags(&["kv_cache"])));
    let labels = [0, 3].map(|at: usize| calls[at].1["new_version"].as_str().unwrap());
    assert_eq!(labels, ["waking:a-v1", "a-v1"]);
    assert_eq!(calls.len(), 4, "{calls:?}");
    assert!(agent.complete(&request(), Some("a-v1")).await.is_ok());
    assert!(fake.crashes().is_empty(), "{:?}", fake.crashes());
}

#[tokio::test]
async fn an_adapter_is_loaded_when_the_weights_have_their_memory() {
    for (_, fake, agent) in awake().await {
        let source = Source::start().await;
        agent.order(&source.publish_adapter("a-v1")).await;
        agent.wait_until_serving("a-v1").await;
        agent.sleep(true).await;
        agent.wait_until_asleep().await;
        agent.order(&source.publish_adapter_with("a-v2", with_canary)).await;
        agent.sleep(false).await;
        agent.wait_until_serving("a-v2").await;
        assert!(agent.complete(&request(), Some("a-v2")).await.is_ok());
        assert_eq!((fake.released().len(), fake.crashes().len()), (0, 0));
    }
}

#[tokio::test]
async fn requests_at_the_engine_end_before_it_sleeps_and_new_ones_are_refused_meanwhile() {
    for (_, fake, agent) in awake().await {
        let running = held_row(&fake, &agent).await;
        agent.sleep(true).await;
        let waits = |message: &str| message.contains("still requests at the engine: 1;");
        let status = agent
            .wait_for(|status| status.message.as_deref().is_some_and(waits))
            .await;
        assert_eq!((status.state, status.serving), (AgentState::Failed, None));
        for version in [None, Some("base")] {
            let refused = agent.complete(&request(), version).await.unwrap_err();
            assert_eq!(refused.code, ErrorCode::EngineUnavailable);
        }
        assert!(fake.released().is_empty(), "it sleeps while a request runs");
        fake.let_go();
        assert!(running.await.unwrap().is_ok());
        agent.wait_until_asleep().await;
        assert_eq!(fake.released(), WHOLE);
        assert!(fake.crashes().is_empty(), "{:?}", fake.crashes());
    }
}

#[tokio::test]
async fn a_refused_order_to_sleep_or_to_wake_up_is_told_and_tried_again() {
    for (_, fake, agent) in awake().await {
        fake.refuse(Some("e"));
        agent.sleep(true).await;
        let status = agent.wait_for(|status| status.state == AgentState::Failed).await;
        let message = status.message.unwrap();
        assert!(
            message.contains("to put the engine to sleep failed") && message.contains("out of memory"),
            "{message}"
        );
        assert!(fake.released().is_empty());
        fake.refuse(None);
        agent.wait_until_asleep().await;

        fake.refuse(Some("kv_cache"));
        agent.sleep(false).await;
        let status = agent.wait_for(|status| status.state == AgentState::Failed).await;
        assert!(status.message.unwrap().contains("to wake the engine up failed"));
        assert_eq!(status.serving, None);
        fake.refuse(None);
        agent.wait_until_serving("base").await;
        assert!(fake.released().is_empty());
        assert!(fake.crashes().is_empty(), "{:?}", fake.crashes());
    }
}

/// Orders an engine to sleep that holds its weights and refuses to release them. It counts as asleep once it has
/// released all of its memory, and wakes up as ordered.
async fn assert_asleep_only_without_all_memory(fake: &Fake, agent: &Agent) {
    agent.sleep(true).await;
    let again = |message: &str| message.contains("to put the engine to sleep failed");
    let status = agent
        .wait_for(|status| status.message.as_deref().is_some_and(again))
        .await;
    assert_eq!(status.state, AgentState::Failed, "it holds its weights");
    fake.refuse(None);
    agent.wait_until_asleep().await;
    assert_eq!(fake.released(), WHOLE);
    agent.sleep(false).await;
    agent.wait_until_serving("base").await;
}

#[tokio::test]
async fn an_engine_that_is_to_sleep_again_before_it_is_awake_gives_all_of_its_memory_back() {
    for (_, fake, agent) in awake().await {
        agent.sleep(true).await;
        agent.wait_until_asleep().await;
        fake.refuse(Some("kv_cache"));
        agent.sleep(false).await;
        agent.wait_for(|status| status.state == AgentState::Failed).await;
        assert_eq!(fake.released(), ["kv_cache"]);
        assert_asleep_only_without_all_memory(&fake, &agent).await;
        assert!(fake.crashes().is_empty(), "{:?}", fake.crashes());
    }
}

#[tokio::test]
async fn a_vllm_that_says_that_it_sleeps_and_is_awake_is_not_taken_for_asleep() {
    let fake = Fake::vllm().await;
    let agent = before(vllm(), &fake).await;
    agent.wait_until_serving("base").await;
    fake.stay_awake(true);
    agent.sleep(true).await;
    let status = agent.wait_for(|status| status.state == AgentState::Failed).await;
    assert!(
        status
            .message
            .unwrap()
            .contains("it is awake after it was told to sleep")
    );
    fake.stay_awake(false);
    agent.wait_until_asleep().await;
}

#[tokio::test]
async fn an_engine_that_restarts_while_it_is_to_sleep_is_put_to_sleep_again() {
    for (_, fake, agent) in awake().await {
        agent.sleep(true).await;
        agent.wait_until_asleep().await;
        fake.restart("default");
        while fake.released() != WHOLE {
            tokio::task::yield_now().await;
        }
        agent.wait_until_asleep().await;
        agent.sleep(false).await;
        agent.wait_until_serving("base").await;
        assert!(fake.crashes().is_empty(), "{:?}", fake.crashes());
    }
}

#[tokio::test]
async fn an_agent_that_restarts_leaves_a_sleeping_engine_asleep_until_it_is_ordered() {
    for (kind, fake, first) in awake().await {
        first.sleep(true).await;
        first.wait_until_asleep().await;
        first.stop().await;
        fake.calls();
        let agent = before(kind, &fake).await;
        let status = agent.wait_until_asleep().await;
        assert!(status.message.unwrap().contains("before this agent started"));
        agent.sleep(true).await;
        agent.wait_for(|status| status.message.is_none()).await;
        let paths = fake.paths();
        assert!(
            paths.iter().all(|path| path.starts_with("/sleep")),
            "a repeated order to sleep wakes nothing: {paths:?}"
        );
        agent.sleep(false).await;
        agent.wait_until_serving("base").await;
        assert!(agent.complete(&request(), Some("base")).await.is_ok());
        assert!(fake.crashes().is_empty(), "{:?}", fake.crashes());
    }
}

/// Ends the agent of an engine that has taken up the memory of its weights, perhaps with a new version, and not that of
/// its cache.
async fn end_between_the_steps(fake: &Fake, agent: &Agent, order: Option<&WeightsOrder>) {
    agent.sleep(true).await;
    agent.wait_until_asleep().await;
    fake.refuse(Some("kv_cache"));
    if let Some(order) = order {
        agent.order(order).await;
    }
    agent.sleep(false).await;
    agent.wait_for(|status| status.state == AgentState::Failed).await;
    assert_eq!(fake.released(), ["kv_cache"]);
    agent.stop().await;
}

/// The agent that comes next orders both steps again. SGLang ends by the first one, and starts again.
fn assert_ended_at_most_once(kind: &Kind, fake: &Fake) {
    match kind {
        Kind::Sglang { .. } => assert_eq!(fake.crashes(), ["/resume_memory_occupation of weights twice"]),
        _ => assert!(fake.crashes().is_empty(), "{:?}", fake.crashes()),
    }
}

#[tokio::test]
async fn an_agent_that_restarts_between_the_steps_wakes_the_engine_up() {
    for (kind, fake, first) in awake().await {
        end_between_the_steps(&fake, &first, None).await;
        fake.refuse(None);
        let agent = before(kind.clone(), &fake).await;
        agent.wait_until_serving("base").await;
        assert!(fake.released().is_empty());
        assert!(agent.complete(&request(), Some("base")).await.is_ok());
        assert_ended_at_most_once(&kind, &fake);
    }
}

#[tokio::test]
async fn an_agent_that_restarts_between_the_steps_does_not_take_the_engine_for_asleep() {
    for (kind, fake, first) in awake().await {
        end_between_the_steps(&fake, &first, None).await;
        // The engine refuses all orders about memory until the new agent has its own.
        fake.refuse(Some("e"));
        let agent = before(kind.clone(), &fake).await;
        assert_asleep_only_without_all_memory(&fake, &agent).await;
        assert_ended_at_most_once(&kind, &fake);
    }
}

#[tokio::test]
async fn an_agent_that_restarts_after_a_load_between_the_steps_loads_the_version_again() {
    for (kind, fake, first) in awake().await {
        let source = Source::start().await;
        let order = source.publish_with("a-v1", 2, with_canary);
        end_between_the_steps(&fake, &first, Some(&order)).await;
        fake.refuse(None);
        let agent = before(kind.clone(), &fake).await;
        agent.sleep(false).await;
        agent.order(&order).await;
        agent.wait_until_serving("a-v1").await;
        assert!(agent.complete(&request(), Some("a-v1")).await.is_ok());
        assert_ended_at_most_once(&kind, &fake);
    }
}

#[tokio::test]
async fn rows_of_a_vllm_whose_agent_ended_after_the_last_step_name_their_version() {
    let fake = Fake::vllm().await;
    fake.restart("waking:a-v1");
    let agent = before(vllm(), &fake).await;
    agent.wait_until_serving("a-v1").await;
    let answer = agent.complete(&request(), Some("a-v1")).await.unwrap();
    assert_eq!(answer.weights_version, "a-v1");
}

#[tokio::test]
async fn a_vllm_that_an_agent_left_paused_is_resumed_by_the_next_one() {
    let fake = Fake::vllm().await;
    let pause = reqwest::Client::new().post(format!("{}/pause?mode=wait", fake.url));
    pause.send().await.unwrap();
    fake.calls();
    let agent = before(vllm(), &fake).await;
    agent.wait_until_serving("base").await;
    assert_eq!(fake.paths(), ["/resume"]);
    assert!(agent.complete(&request(), Some("base")).await.is_ok());
}

#[tokio::test]
async fn a_newer_order_ends_no_pause_of_a_load() {
    let fake = Fake::vllm().await;
    fake.end_rows_before_a_pause();
    let source = Source::start().await;
    let agent = before(vllm(), &fake).await;
    agent.wait_until_serving("base").await;
    let running = held_row(&fake, &agent).await;
    fake.calls();
    agent.order(&source.publish("a-v1", 2).0).await;
    let mut seen = Vec::new();
    while seen.is_empty() {
        seen.extend(fake.paths());
        tokio::task::yield_now().await;
    }
    agent.order(&source.publish("a-v2", 3).0).await;
    while !agent.file("a-v2", "model.safetensors").exists() {
        tokio::task::yield_now().await;
    }
    assert!(
        agent.file("a-v1", "model.safetensors").exists(),
        "the load still reads it"
    );
    fake.let_go();
    running.await.unwrap().unwrap();
    agent.wait_until_serving("a-v2").await;
    seen.extend(fake.paths());
    let load = [
        "/pause?mode=wait",
        "/update_weight_version",
        "/collective_rpc",
        "/reset_prefix_cache",
        "/resume",
    ];
    assert_eq!(seen[..5], load, "{seen:?}");
}

#[tokio::test]
async fn engines_of_others_and_those_on_cpus_are_not_put_to_sleep() {
    let fake = Fake::vllm().await;
    let far = before(vllm(), &fake).await;
    let token = far.issuer.token(&driver(), Service::EngineAgent).unwrap();
    let on_a_cpu = Kind::Vllm {
        no_folders: None,
        cpu: true,
    };
    let agents = [
        before(openai(), &fake).await,
        Agent::guarding(Kind::Agent, &far.url, Some(&token), 16).await,
        before(on_a_cpu, &fake).await,
    ];
    for agent in agents {
        agent.wait_until_serving("base").await;
        let (status, refusal) = agent.try_sleep(true).await;
        let refusal = refusal.unwrap();
        assert_eq!((status, refusal.code), (400, ErrorCode::InvalidRequest));
        assert!(
            refusal.message.contains("this engine cannot sleep"),
            "{}",
            refusal.message
        );
        assert!(agent.complete(&request(), Some("base")).await.is_ok());
    }
    assert!(fake.released().is_empty());
}
