//! A driver beside a trainer of an earlier version: an upgrade replaces each with its next attempt.

use crate::world;
use axum::Json;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use grpo_driver::trainer::TrainerClient;
use grpo_records::{StepPhase, StepRequest, StepState, TrainerPhase, paths};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::watch;

#[tokio::test]
async fn a_trainer_of_an_earlier_version_takes_an_order_without_the_field_that_it_does_not_know() {
    let taken = Arc::new(AtomicU32::new(0));
    let (orders, done) = (taken.clone(), taken.clone());
    let state = move || {
        let step = done.load(Ordering::Relaxed);
        async move { Json(world::state_of(step, TrainerPhase::Idle)) }
    };
    let order = move |Json(body): Json<serde_json::Value>| {
        let known = body.get("iterations").is_none();
        orders.fetch_add(u32::from(known), Ordering::Relaxed);
        async move {
            match known {
                true => StatusCode::ACCEPTED,
                false => StatusCode::UNPROCESSABLE_ENTITY,
            }
        }
    };
    let step = || async {
        Json(StepState {
            step: 1,
            state: StepPhase::Done,
            weights: None,
            manifest_sha256: None,
            metrics: None,
            error: None,
        })
    };
    let router = Router::new()
        .route("/v1/state", get(state))
        .route("/v1/steps/{k}", get(step).put(order));
    let address = world::serve(router).await;
    let trainer = TrainerClient::new(format!("http://{address}"), Duration::from_secs(5)).unwrap();
    let request = StepRequest {
        batch: paths::batch(1),
        sha256: String::new(),
        checkpoint: None,
        iterations: Some(9),
    };
    let done = trainer.step(1, &request, &watch::channel(None).0).await.unwrap();
    assert_eq!(done.state, StepPhase::Done);
    assert_eq!(taken.load(Ordering::Relaxed), 1);
}
