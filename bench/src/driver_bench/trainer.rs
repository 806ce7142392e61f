//! The simulated trainer: it does every step at once, and keeps the times of its orders.

use super::DriverBenchError;
use super::engine::serve;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, put};
use axum::{Json, Router};
use grpo_records::paths;
use grpo_records::store::sha256_hex;
use grpo_records::trainer::{StepPhase, StepState, TrainerPhase, TrainerState};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::task::JoinHandle;

const LINEAGE: &str = "l1";

/// When each step was ordered: step 1 first.
type Orders = Arc<Mutex<Vec<Instant>>>;

/// Serves until it is dropped.
pub struct PlayedTrainer {
    pub address: SocketAddr,
    orders: Orders,
    serving: JoinHandle<()>,
}

impl PlayedTrainer {
    pub async fn start() -> Result<Self, DriverBenchError> {
        let orders = Orders::default();
        let router = Router::new()
            .route("/v1/state", get(state))
            .route("/v1/steps/{k}", put(order).get(step))
            .with_state(orders.clone());
        let (address, serving) = serve(router).await?;
        Ok(Self {
            address,
            orders,
            serving,
        })
    }

    /// When each step was ordered.
    pub fn orders(&self) -> Vec<Instant> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for PlayedTrainer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn done(orders: &Orders) -> u32 {
    orders.lock().unwrap_or_else(PoisonError::into_inner).len() as u32
}

async fn state(State(orders): State<Orders>) -> Json<TrainerState> {
    let step = done(&orders);
    Json(TrainerState {
        attempt: 1,
        world_size: 1,
        lineage: LINEAGE.into(),
        step,
        weights: paths::weights_version(LINEAGE, step),
        manifest_sha256: sha256_hex(b""),
        checkpoint_step: step,
        phase: TrainerPhase::Idle,
        error: None,
    })
}

async fn order(State(orders): State<Orders>, Path(k): Path<u32>) -> StatusCode {
    let mut orders = orders.lock().unwrap_or_else(PoisonError::into_inner);
    match (orders.len() as u32).cmp(&(k - 1)) {
        std::cmp::Ordering::Less => return StatusCode::CONFLICT,
        std::cmp::Ordering::Equal => orders.push(Instant::now()),
        // Ordered again: it is done.
        std::cmp::Ordering::Greater => {}
    }
    StatusCode::ACCEPTED
}

async fn step(State(orders): State<Orders>, Path(k): Path<u32>) -> Json<StepState> {
    let is_done = done(&orders) >= k;
    Json(StepState {
        step: k,
        state: if is_done { StepPhase::Done } else { StepPhase::Queued },
        weights: is_done.then(|| paths::weights_version(LINEAGE, k)),
        manifest_sha256: is_done.then(|| sha256_hex(b"")),
        metrics: None,
        error: None,
    })
}
