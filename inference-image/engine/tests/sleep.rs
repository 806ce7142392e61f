//! An engine that sleeps holds no model and answers no request; awake again, it answers as before.

use crate::bits;
use crate::support::{Running, options, start, with, write_model};
use grpo_engine::inbox::Inbox;
use grpo_engine::metrics::Metrics;
use grpo_engine::model::Model;
use grpo_engine::scheduler::{Report, Scheduler, SchedulerLimits};
use grpo_engine_protocol::{
    CompletionRequest, CompletionResponse, EngineState, ErrorBody, ErrorCode, LoadResponse, ModelList,
};
use serde_json::json;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

type Call<T> = JoinHandle<Result<T, ErrorBody>>;

fn model_of(seed: u64) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), seed);
    dir
}

fn request(max_tokens: u32) -> CompletionRequest {
    CompletionRequest {
        ignore_eos: true,
        ..CompletionRequest::of_tokens("policy", vec![5, 6, 7], max_tokens, 3)
    }
}

/// An engine in which all rows of [`long`] and a few more run at the same time.
async fn wide(dir: &TempDir) -> Arc<Running> {
    Arc::new(start(with(options(dir.path()), 128, 1, 16 << 20)).await)
}

/// Many rows that take many passes.
fn long() -> CompletionRequest {
    CompletionRequest { n: 64, ..request(300) }
}

async fn answer<T: serde::de::DeserializeOwned>(call: reqwest::RequestBuilder) -> Result<T, ErrorBody> {
    let answer = call.send().await.unwrap();
    match answer.status().is_success() {
        true => Ok(answer.json().await.unwrap()),
        false => Err(answer.json().await.unwrap()),
    }
}

async fn tell(engine: &Running, order: &str) -> Result<EngineState, ErrorBody> {
    answer(engine.client.post(format!("{}/admin/{order}", engine.url))).await
}

async fn load(engine: &Running, dir: &Path, version: &str) -> Result<LoadResponse, ErrorBody> {
    let call = engine.client.post(format!("{}/admin/load", engine.url));
    answer(call.json(&json!({"dir": dir, "version": version}))).await
}

#[tokio::test]
async fn a_sleeping_engine_refuses_requests_and_still_reports_its_version() {
    let dir = model_of(1);
    let engine = start(options(dir.path())).await;
    let before = engine.state().await;
    assert!(!before.asleep);
    let asleep = tell(&engine, "sleep").await.unwrap();
    assert_eq!(asleep, EngineState { asleep: true, ..before });
    assert_eq!(engine.state().await, asleep);
    let refused = engine.complete(&request(3)).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::EngineUnavailable);
    assert!(refused.message.contains("asleep"), "{}", refused.message);
    let get = |path: &str| engine.client.get(format!("{}{path}", engine.url)).send();
    let models: ModelList = get("/v1/models").await.unwrap().json().await.unwrap();
    assert_eq!(models.data[0].weights_version.as_deref(), Some("base"));
    assert_eq!(get("/healthz").await.unwrap().status(), 200);
}

#[tokio::test]
async fn an_engine_that_woke_up_gives_the_same_answers_with_the_version_it_had() {
    let (base, next) = (model_of(1), model_of(2));
    let engine = start(options(base.path())).await;
    let mut answers = Vec::new();
    for version in ["base", "a-v1"] {
        if version == "a-v1" {
            load(&engine, next.path(), version).await.unwrap();
        }
        let before = engine.complete(&request(40)).await.unwrap();
        tell(&engine, "sleep").await.unwrap();
        let awake = tell(&engine, "wake").await.unwrap();
        assert_eq!((awake.version.as_str(), awake.asleep), (version, false));
        let after = engine.complete_from(&request(40), Some(version)).await.unwrap();
        assert_eq!(bits(&before), bits(&after));
        answers.push(bits(&after));
    }
    assert_ne!(answers[0], answers[1]);
}

#[tokio::test]
async fn sleeping_twice_and_waking_twice_is_sleeping_and_waking() {
    let dir = model_of(1);
    let engine = start(options(dir.path())).await;
    let awake = engine.state().await;
    assert_eq!(tell(&engine, "wake").await.unwrap(), awake);
    let asleep = tell(&engine, "sleep").await.unwrap();
    assert_eq!(tell(&engine, "sleep").await.unwrap(), asleep);
    assert_eq!(tell(&engine, "wake").await.unwrap(), awake);
    assert_eq!(tell(&engine, "wake").await.unwrap(), awake);
    assert!(engine.complete(&request(3)).await.is_ok());
}

#[tokio::test]
async fn a_new_version_wakes_a_sleeping_engine_up_and_a_wrong_one_does_not() {
    let (base, next) = (model_of(1), model_of(2));
    let engine = start(options(base.path())).await;
    tell(&engine, "sleep").await.unwrap();
    let asleep = engine.state().await;
    let refused = load(&engine, &next.path().join("nothing"), "a-v1").await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::LoadFailed);
    assert_eq!(engine.state().await, asleep);
    load(&engine, next.path(), "a-v1").await.unwrap();
    let state = engine.state().await;
    assert_eq!((state.version.as_str(), state.asleep), ("a-v1", false));
    assert_eq!(engine.complete(&request(3)).await.unwrap().weights_version, "a-v1");
}

#[tokio::test]
async fn a_version_whose_files_changed_or_are_gone_does_not_wake_up_and_another_one_does() {
    let (base, next) = (model_of(1), model_of(2));
    let dir = model_of(3);
    let engine = start(options(base.path())).await;
    load(&engine, dir.path(), "a-v1").await.unwrap();
    tell(&engine, "sleep").await.unwrap();
    let asleep = engine.state().await;
    write_model(dir.path(), 4);
    let changed = tell(&engine, "wake").await.unwrap_err();
    assert_eq!(changed.code, ErrorCode::LoadFailed);
    assert!(changed.message.contains(&asleep.sha256), "{}", changed.message);
    drop(dir);
    let gone = tell(&engine, "wake").await.unwrap_err();
    assert!(
        gone.message.contains("a-v1") && gone.message.contains("/admin/load"),
        "{}",
        gone.message
    );
    assert_eq!(engine.state().await, asleep);
    load(&engine, next.path(), "a-v2").await.unwrap();
    assert_eq!(engine.complete(&request(3)).await.unwrap().weights_version, "a-v2");
}

/// A long request in progress, and an order to sleep that waits for it: from now on requests are refused.
async fn falling_asleep(engine: &Arc<Running>) -> (Call<CompletionResponse>, Call<EngineState>) {
    let running = {
        let engine = engine.clone();
        tokio::spawn(async move { engine.complete(&long()).await })
    };
    while engine.state().await.running == 0 {
        tokio::task::yield_now().await;
    }
    let sleeping = {
        let engine = engine.clone();
        tokio::spawn(async move { tell(&engine, "sleep").await })
    };
    while engine.complete(&request(1)).await.is_ok() {}
    (running, sleeping)
}

#[tokio::test(flavor = "multi_thread")]
async fn running_rows_come_to_their_end_before_the_engine_sleeps() {
    let dir = model_of(1);
    let engine = wide(&dir).await;
    let (running, sleeping) = falling_asleep(&engine).await;
    let state = sleeping.await.unwrap().unwrap();
    assert!(state.asleep);
    assert_eq!((state.running, state.waiting), (0, 0));
    let answer = running.await.unwrap().unwrap();
    assert_eq!(answer.choices.len(), 64);
    assert!(answer.choices.iter().all(|row| row.token_ids.len() == 300));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_hangs_up_leaves_an_engine_that_falls_asleep_and_wakes_up() {
    let dir = model_of(1);
    let engine = wide(&dir).await;
    let (running, sleeping) = falling_asleep(&engine).await;
    sleeping.abort();
    assert!(running.await.unwrap().is_ok());
    while !engine.state().await.asleep {
        tokio::task::yield_now().await;
    }
    assert!(!tell(&engine, "wake").await.unwrap().asleep);
    assert!(engine.complete(&request(3)).await.is_ok());
}

/// The loop alone, with a reference to its model that does not keep the model.
#[tokio::test]
async fn a_sleeping_loop_holds_no_model() {
    let dir = model_of(1);
    let model = Arc::new(Model::load(dir.path(), "base", None).unwrap());
    let seen = Arc::downgrade(&model);
    let inbox = Arc::new(Inbox::new(4));
    let report = Arc::new(Mutex::new(Report::default()));
    let limits = SchedulerLimits {
        max_rows: 4,
        threads: 1,
        prefix_bytes: 1 << 20,
        kv_bytes: 1 << 30,
    };
    let scheduler = Scheduler::new(
        inbox.clone(),
        report.clone(),
        Arc::new(Metrics::default()),
        model,
        limits,
    );
    let engine_loop = std::thread::spawn(move || scheduler.run());
    assert!(seen.upgrade().is_some());
    let (done, asleep) = oneshot::channel();
    inbox.sleep(done);
    asleep.await.unwrap();
    assert!(seen.upgrade().is_none(), "the model is still in memory");
    let report = report.lock().unwrap().clone();
    assert_eq!((report.version.as_str(), report.asleep), ("base", true));
    inbox.close();
    engine_loop.join().unwrap();
}
