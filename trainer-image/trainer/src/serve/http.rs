//! The HTTP servers of a trainer's pods. Every pod's server reports whether its rank has joined the rendezvous; rank
//! 0's also serves state, steps, metrics and grants of devices. It answers from memory and hands orders to the training
//! thread; it never computes.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::{Json, Router};
use grpo_auth::{AuthFlags, ServiceAccount};
use grpo_contracts::RunConfig;
use grpo_contracts::access::{Service, account};
use grpo_contracts::driver_epoch::{self, Fence};
use grpo_records::trainer::{StepMetrics, StepPhase, StepRequest, StepState, TrainerPhase};
use serde::Deserialize;

use super::board::Board;
use super::devices;
use super::recover::done_earlier;
use super::refusals::{self, refusal};
use crate::error::TrainError;

/// Longest wait of a caller for a step.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Longest path of a batch.
const MAX_PATH: usize = 512;
/// Largest body of an order.
const MAX_ORDER_BYTES: usize = 16 << 10;
/// Folder of batches in a run's store.
const BATCHES: &str = "batches";

#[derive(Clone)]
struct HttpState {
    board: Board,
    jobs: SyncSender<(u32, StepRequest)>,
    /// Refuses orders of a driver that a later attempt has followed: of steps, and of devices.
    fence: Arc<Fence>,
}

/// The channels on which the driver's orders reach the training thread.
pub struct Orders {
    /// One step at a time.
    pub steps: Receiver<(u32, StepRequest)>,
    /// Once, if the devices are shared with engines: the trainer may use them.
    pub devices: Receiver<()>,
}

/// Listens, and returns the channels on which orders arrive. Only the run's driver may call.
pub fn start(listen: SocketAddr, board: Board, auth: AuthFlags, run: &RunConfig) -> Result<Orders, TrainError> {
    let driver = ServiceAccount::new(&run.namespace, account::driver(&run.name));
    let guarded = auth.guard(Service::Trainer, [driver.into()]);
    let (guard, keys) = guarded.map_err(|e| TrainError::Start(format!("checking tokens: {e}")))?;
    let (jobs, steps) = sync_channel(1);
    let fence = Arc::new(Fence::default());
    let (grants, granted) = devices::routes(board.clone(), fence.clone());
    let http = HttpState {
        board: board.clone(),
        jobs,
        fence,
    };
    let router: Router = Router::new()
        .route("/metrics", get(metrics))
        .route("/v1/state", get(state))
        .route("/v1/steps/{step}", put(order).get(watch))
        .with_state(http)
        .merge(grants)
        .layer(DefaultBodyLimit::max(MAX_ORDER_BYTES));
    serve(listen, guard.before(router.merge(health(board))), keys)?;
    Ok(Orders {
        steps,
        devices: granted,
    })
}

/// Listens without taking orders: for the first rank of every other pod.
pub fn start_without_orders(listen: SocketAddr, board: Board) -> Result<(), TrainError> {
    serve(listen, health(board), std::future::pending())
}

fn health(board: Board) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(ready))
        .with_state(board)
}

async fn ready(State(board): State<Board>) -> Response {
    // A pod stays ready while it waits: the operator would end one that is not.
    match (board.has_arrived(), board.store_waits.now()) {
        (true, None) => "ok".into_response(),
        (true, Some(waits)) => waits.into_response(),
        (false, _) => (StatusCode::SERVICE_UNAVAILABLE, "has not joined the rendezvous yet").into_response(),
    }
}

/// Serves, and runs `beside`, on a separate thread.
fn serve(
    listen: SocketAddr,
    router: Router,
    beside: impl Future<Output = ()> + Send + 'static,
) -> Result<(), TrainError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|e| TrainError::Start(format!("starting the HTTP runtime: {e}")))?;
    let listener = runtime
        .block_on(async { tokio::net::TcpListener::from_std(grpo_contracts::listen::listen(listen)?) })
        .map_err(|e| TrainError::Start(format!("listening on {listen}: {e}")))?;
    runtime.spawn(beside);
    std::thread::spawn(move || runtime.block_on(grpo_auth::serve(listener, router, std::future::pending())));
    Ok(())
}

async fn state(State(http): State<HttpState>, headers: HeaderMap) -> Response {
    // First, so that no order of an earlier attempt follows what the driver reads here.
    let from = headers.get(driver_epoch::HEADER);
    http.fence.notice_header(from.map(HeaderValue::as_bytes));
    Json(http.board.state()).into_response()
}

async fn order(
    State(http): State<HttpState>,
    Path(step): Path<u32>,
    headers: HeaderMap,
    Json(request): Json<StepRequest>,
) -> Response {
    if let Err(message) = check(&request) {
        return refusal(StatusCode::BAD_REQUEST, "BadRequest", &message, "Client");
    }
    refusals::admit(&http.fence, &headers, || http.take(step, request))
}

impl HttpState {
    fn take(&self, step: u32, request: StepRequest) -> Response {
        let verdict = self.board.with(|shared| {
            match (shared.steps.get(&step), shared.requests.get(&step)) {
                // A refused batch may be ordered again, corrected.
                (Some(known), Some(asked)) if known.state != StepPhase::Failed && asked.is_same_step(&request) => {
                    return Ok(Some(known.clone()));
                }
                _ => {}
            }
            if shared.state.phase != TrainerPhase::Idle || step != shared.state.step + 1 {
                return Err(shared.state.clone());
            }
            shared.put(queued(step));
            shared.requests.insert(step, request.clone());
            shared.unread = None;
            shared.state.phase = TrainerPhase::Stepping;
            Ok(None)
        });
        match verdict {
            Ok(Some(known)) => (StatusCode::ACCEPTED, Json(known)).into_response(),
            Err(state) => (StatusCode::CONFLICT, Json(state)).into_response(),
            Ok(None) => match self.jobs.try_send((step, request)) {
                Ok(()) => (StatusCode::ACCEPTED, Json(queued(step))).into_response(),
                Err(_) => {
                    let message = "the training thread takes no orders; the attempt is about to end";
                    refusal(StatusCode::SERVICE_UNAVAILABLE, "Ending", message, "Infrastructure")
                }
            },
        }
    }
}

/// An order is broadcast to the other ranks in a message of fixed size, and names a file below the run's root.
fn check(request: &StepRequest) -> Result<(), String> {
    let path = std::path::Path::new(&request.batch);
    if request.batch.len() > MAX_PATH
        || !path
            .components()
            .all(|part| matches!(part, std::path::Component::Normal(_)))
        || !path.starts_with(BATCHES)
    {
        return Err(format!(
            "batch {:?} is not a path below {BATCHES} in the run's store, of at most {MAX_PATH} bytes",
            request.batch
        ));
    }
    if request.sha256.len() != 64 || !request.sha256.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(format!("sha256 {:?} is not 64 hex digits", request.sha256));
    }
    Ok(())
}

fn queued(step: u32) -> StepState {
    StepState {
        step,
        state: StepPhase::Queued,
        weights: None,
        manifest_sha256: None,
        metrics: None,
        error: None,
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wait {
    #[serde(default)]
    wait_seconds: u64,
}

async fn watch(State(http): State<HttpState>, Path(step): Path<u32>, Query(wait): Query<Wait>) -> Response {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(wait.wait_seconds).min(MAX_WAIT);
    loop {
        let changed = http.board.changed.clone();
        let notified = changed.notified();
        tokio::pin!(notified);
        // Registered before looking, so that a change between look and wait is not missed.
        notified.as_mut().enable();
        let known = {
            let shared = http.board.shared.lock().unwrap_or_else(|e| e.into_inner());
            // Until it is idle, the trainer may still find that a step before the restart came out otherwise.
            let starts = matches!(shared.state.phase, TrainerPhase::Waiting | TrainerPhase::Starting);
            let earlier = || (1..=shared.state.step).contains(&step).then(|| done_earlier(step));
            let known = shared.steps.get(&step).cloned().or_else(earlier);
            known.filter(|_| !starts)
        };
        match known {
            Some(known) if matches!(known.state, StepPhase::Done | StepPhase::Failed) => {
                return Json(known).into_response();
            }
            Some(known) if tokio::time::Instant::now() >= deadline => return Json(known).into_response(),
            None => {
                let (state, unread) = http.board.with(|shared| (shared.state.clone(), shared.unread.clone()));
                return match unread.filter(|(of, _)| *of == step) {
                    Some((_, error)) => refusal(
                        StatusCode::SERVICE_UNAVAILABLE,
                        "StoreUnavailable",
                        &error,
                        "Infrastructure",
                    ),
                    None => (StatusCode::NOT_FOUND, Json(state)).into_response(),
                };
            }
            Some(_) => {}
        }
        let _ = tokio::time::timeout_at(deadline, notified).await;
    }
}

async fn metrics(State(http): State<HttpState>) -> String {
    let (state, memory, last) = http.board.with(|shared| {
        (
            shared.state.clone(),
            shared.memory,
            shared.steps.values().rev().find_map(|step| step.metrics.clone()),
        )
    });
    let mut text = format!("# TYPE grpo_trainer_step gauge\ngrpo_trainer_step {}\n", state.step);
    let waits = u8::from(http.board.store_waits.now().is_some());
    let _ = writeln!(
        text,
        "# TYPE grpo_trainer_waits_for_store gauge\ngrpo_trainer_waits_for_store {waits}"
    );
    for (name, bytes) in ["estimated", "available"].into_iter().zip(memory) {
        if let Some(bytes) = bytes {
            let name = format!("grpo_trainer_memory_{name}_bytes");
            let _ = writeln!(text, "# TYPE {name} gauge\n{name} {bytes}");
        }
    }
    for (name, value) in last.iter().flat_map(StepMetrics::numbers) {
        let _ = writeln!(text, "# TYPE grpo_trainer_{name} gauge\ngrpo_trainer_{name} {value}");
    }
    text
}
