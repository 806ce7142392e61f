//! `reward.http` in whole runs: a service on a real socket decides the final reward, and its faults are no rewards.

use crate::world::{World, serve};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::post;
use grpo_driver::config::Settings;
use grpo_driver::retry::Budget;
use grpo_driver::reward::RewardServiceSettings;
use grpo_records::{Outcome, RewardAnswer, VoidReason, paths};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Says = dyn Fn(&Value, usize) -> (StatusCode, Value) + Send + Sync;

/// Answers with a function of the request and its number.
struct Service {
    says: Box<Says>,
    asked: Mutex<Vec<(Value, Option<String>)>>,
    /// One permit for each further answer.
    answers: tokio::sync::Semaphore,
    /// While true, questions about patches that solve the task wait, unless another episode's was graded.
    holds_own: tokio::sync::watch::Sender<bool>,
}

async fn answer(State(service): State<Arc<Service>>, headers: HeaderMap, Json(question): Json<Value>) -> Response {
    let token = headers.get("authorization").and_then(|value| value.to_str().ok());
    let number = {
        let mut asked = service.asked.lock().unwrap();
        asked.push((question.clone(), token.map(str::to_owned)));
        asked.len()
    };
    if question["outcome"] == "Resolved" && question["grade"]["reusedFrom"].is_null() {
        service.holds_own.subscribe().wait_for(|holds| !holds).await.unwrap();
    }
    service.answers.acquire().await.unwrap().forget();
    let (status, said) = (service.says)(&question, number);
    (status, Json(said)).into_response()
}

async fn service(
    world: &World,
    says: impl Fn(&Value, usize) -> (StatusCode, Value) + Send + Sync + 'static,
) -> (Arc<Service>, Settings) {
    let service = Arc::new(Service {
        says: Box::new(says),
        asked: Mutex::default(),
        answers: tokio::sync::Semaphore::new(1000),
        holds_own: tokio::sync::watch::Sender::new(false),
    });
    let address = serve(Router::new().route("/reward", post(answer)).with_state(service.clone())).await;
    let token = world.mount.path().join("reward-token");
    std::fs::write(&token, "secret\n").unwrap();
    let mut settings = world.settings();
    settings.iterations = 1;
    settings.evaluate.clear();
    settings.reward.rule.asks = true;
    settings.reward.service = Some(RewardServiceSettings {
        url: format!("http://{address}/reward"),
        token: Some(token),
        concurrency: 2,
        budget: Budget {
            request: Duration::from_secs(5),
            total: Duration::from_secs(2),
        },
    });
    (service, settings)
}

#[tokio::test]
async fn a_service_is_told_the_episode_and_its_answer_is_the_reward() {
    let world = World::new(1).await;
    let by_length = |question: &Value, _| {
        let reward = question["reward"].as_f64().unwrap() + 0.01 * question["patch"].as_str().unwrap().len() as f64;
        (StatusCode::OK, json!({"reward": reward, "note": "by its length"}))
    };
    let (service, settings) = service(&world, by_length).await;
    world.go(settings, 1).await.unwrap();
    world.verified().await;
    let asked = service.asked.lock().unwrap().clone();
    assert_eq!(asked.len(), 8);
    let ids: BTreeSet<&str> = asked
        .iter()
        .map(|(question, _)| question["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids.len(), 8, "each episode once");
    for (question, token) in &asked {
        assert_eq!(token.as_deref(), Some("Bearer secret"));
        let text = question.to_string();
        assert!(
            !text.contains("FAIL_TO_PASS") && question["task"]["problem_statement"] == "Fix task-0.",
            "{text}"
        );
        let roles: Vec<&str> = (question["messages"].as_array().unwrap().iter())
            .map(|message| message["role"].as_str().unwrap())
            .collect();
        assert_eq!(roles[..4], ["system", "user", "assistant", "user"], "{roles:?}");
        assert_eq!(question["iteration"], 1);
    }
    for meta in world.metas().await {
        let file = paths::reward(&meta.key.dir(meta.attempt));
        let answer: RewardAnswer = world.store().read(&file).await.unwrap();
        assert_eq!(
            answer.by_rule,
            if meta.outcome == Outcome::Resolved { 1.0 } else { 0.0 }
        );
        assert!((answer.reward - answer.by_rule - 0.01 * meta.patch_bytes as f32).abs() < 1e-6);
        assert_eq!(
            (meta.reward, answer.note.as_deref()),
            (Some(answer.reward), Some("by its length"))
        );
    }

    // An answer that differs from the record is found.
    let meta = &world.metas().await[0];
    let file = world.dir().join(paths::reward(&meta.key.dir(1)));
    let mut answer: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    answer["reward"] = 9.into();
    std::fs::write(&file, answer.to_string()).unwrap();
    let (_, checks) = world.recomputed().await;
    let found = checks
        .iter()
        .find(|check| check.name == "rewards follow from verdicts and scores");
    assert_eq!(found.unwrap().disagreements.len(), 1);
}

#[tokio::test]
async fn what_is_no_reward_is_asked_again_until_it_is_one() {
    let world = World::new(1).await;
    let at_last = |_: &Value, number: usize| match number {
        1 => (StatusCode::SERVICE_UNAVAILABLE, json!("later")),
        2 => (StatusCode::OK, json!({"score": 1})),
        3 => (StatusCode::BAD_REQUEST, json!("plain HTTP to an HTTPS port")),
        4 => (StatusCode::TOO_MANY_REQUESTS, json!({})),
        5 => (StatusCode::OK, json!({"reward": 1e9})),
        _ => (StatusCode::OK, json!({"reward": number as f64 / 8.0})),
    };
    let (service, mut settings) = service(&world, at_last).await;
    settings.reward.service.as_mut().unwrap().budget.total = Duration::from_secs(30);
    world.go(settings, 1).await.unwrap();
    world.verified().await;
    assert_eq!(service.asked.lock().unwrap().len(), 8 + 4);
    let most = world
        .metas()
        .await
        .iter()
        .filter_map(|meta| meta.reward)
        .fold(0.0, f32::max);
    assert_eq!(most, 1000.0, "beyond the bounds");
    let state = world.state().await;
    assert!(state.voids.is_empty(), "{:?}", state.voids);
}

#[tokio::test]
async fn a_question_that_is_refused_is_worth_what_no_solution_is() {
    let world = World::new(1).await;
    let refuses = |question: &Value, _| match question["outcome"].as_str() {
        Some("Resolved") => (StatusCode::UNPROCESSABLE_ENTITY, json!("too odd")),
        _ => (StatusCode::OK, json!({"reward": 0.5})),
    };
    let (_, settings) = service(&world, refuses).await;
    world.go(settings, 1).await.unwrap();
    world.verified().await;
    for meta in world.metas().await {
        let wanted = if meta.outcome == Outcome::Resolved { 0.0 } else { 0.5 };
        assert_eq!(meta.reward, Some(wanted));
    }
}

#[tokio::test]
async fn a_service_that_is_away_makes_voids_and_no_rewards() {
    let world = World::new(1).await;
    let away = |_: &Value, _| (StatusCode::BAD_GATEWAY, json!("nothing here"));
    let (_, mut settings) = service(&world, away).await;
    settings.patience.void_retries = 0;
    let ended = world.go(settings, 1).await.unwrap_err().to_string();
    assert!(ended.contains("RewardUnavailable") && ended.contains("502"), "{ended}");
    for meta in world.metas().await {
        assert_eq!(meta.outcome, Outcome::void(VoidReason::RewardUnavailable));
        assert_eq!(meta.reward, None);
    }
}

#[tokio::test]
async fn a_driver_that_comes_back_does_not_ask_again_for_what_was_answered() {
    let world = World::new(1).await;
    let (service, settings) = service(&world, |_, number| (StatusCode::OK, json!({"reward": number as f64}))).await;
    service.answers.forget_permits(usize::MAX);
    service.answers.add_permits(3);
    let run = world.start(settings.clone(), 1).await.unwrap();
    let answered = || async {
        let files = world.store().files_below(paths::ROLLOUTS).await.unwrap();
        let folders = files.iter().filter_map(|file| file.strip_suffix("/reward.json"));
        folders.map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let cut = tokio::time::timeout(Duration::from_secs(300), async {
        tokio::select! {
            done = run.go() => panic!("{done:?}"),
            () = async {
                while answered().await.len() < 3 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            } => {}
        }
    });
    cut.await.unwrap();
    drop(run);
    let known = answered().await;
    service.answers.add_permits(1000);
    world.go(settings, 2).await.unwrap();
    world.verified().await;
    let asked = service.asked.lock().unwrap();
    for episode in known {
        let times = asked
            .iter()
            .filter(|(question, _)| question["episode"] == episode.as_str())
            .count();
        assert_eq!(times, 1, "{episode}");
    }
}

/// The episodes whose verdicts others took over.
async fn sources(world: &World) -> BTreeSet<String> {
    let metas = world.metas().await;
    let sources = metas.iter().filter_map(|meta| meta.grade.as_ref()?.reused_from.clone());
    sources.collect()
}

/// The record of the episode that was graded is written after the crash, those of others that took its verdict over
/// were written before.
#[tokio::test]
async fn a_verdict_that_was_taken_over_before_a_crash_is_that_of_its_source_after_it() {
    let world = World::new(1).await;
    let (service, mut settings) = service(&world, |_, _| (StatusCode::OK, json!({"reward": 0.5}))).await;
    settings.concurrency = Some(16);
    let asks = settings.reward.service.as_mut().unwrap();
    asks.concurrency = 16;
    (asks.budget.request, asks.budget.total) = (Duration::from_secs(300), Duration::from_secs(300));
    service.holds_own.send_replace(true);
    let run = world.start(settings.clone(), 1).await.unwrap();
    let cut = tokio::time::timeout(Duration::from_secs(300), async {
        tokio::select! {
            done = run.go() => panic!("{done:?}"),
            () = async {
                while sources(&world).await.is_empty() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            } => {}
        }
    });
    cut.await.unwrap();
    drop(run);
    let sources = sources(&world).await;
    let written = world.metas().await.into_iter().map(|meta| meta.key.dir(meta.attempt));
    assert!(sources.is_disjoint(&written.collect()), "{sources:?}");
    service.holds_own.send_replace(false);
    world.go(settings, 2).await.unwrap();
    world.verified().await;
    // The episodes' records have the verdicts now.
    let files = world.store().files_below(paths::ROLLOUTS).await.unwrap();
    assert!(!files.iter().any(|file| file.ends_with("/verdict.json")), "{files:?}");
}

/// The attempt that was graded became a void, because the service did not answer in time. Others took its verdict over.
#[tokio::test]
async fn a_verdict_stands_for_those_who_took_it_over_although_its_own_episode_became_a_void() {
    let world = World::new(1).await;
    let (service, mut settings) = service(&world, |_, _| (StatusCode::OK, json!({"reward": 0.5}))).await;
    settings.concurrency = Some(16);
    let asks = settings.reward.service.as_mut().unwrap();
    asks.concurrency = 16;
    asks.budget.request = Duration::from_secs(1);
    service.holds_own.send_replace(true);
    world.go(settings, 1).await.unwrap();
    world.verified().await;
    let metas = world.metas().await;
    let voids = metas.iter().filter(|meta| !meta.outcome.is_verdict());
    let voids: BTreeSet<String> = voids.map(|meta| meta.key.dir(meta.attempt)).collect();
    let sources = sources(&world).await;
    assert!(!voids.is_empty() && sources == voids, "{sources:?} of {voids:?}");
}
