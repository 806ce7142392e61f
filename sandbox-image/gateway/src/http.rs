//! The API for drivers: leases, work in a leased sandbox ([`work`]), demand.

mod ownership;
mod room;
mod work;

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use grpo_auth::Guard;
use grpo_sandbox_protocol::{
    Demand, ErrorBody, ErrorCode, FaultOrigin, LeaseRequest, MAX_JSON_BYTES, PoolState, RenewRequest,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::body::read;
use crate::core::{Core, lease, now};
use crate::index::{ActiveLease, MAX_DEMANDS};
use crate::metrics::Around;
use ownership::CallersRun;
use room::{RoomOf, SmallBody};

/// Longest allowed wait in the queue, seconds.
const MAX_WAIT: u64 = 600;
/// Lease ids and images are bounded, because they go into the ledger.
const MAX_NAME: usize = 512;
/// Added to the time limit of the work itself.
const MARGIN: Duration = Duration::from_secs(20);

type Shared = State<Arc<Core>>;

/// All routes, for callers with a token for the gateway.
pub fn guarded(core: Arc<Core>, guard: Guard) -> Router {
    let owned = middleware::from_fn_with_state(core.clone(), ownership::check);
    guard.open_at(crate::openapi::PATH).before(router(core).layer(owned))
}

/// All routes, without the token check.
pub fn router(core: Arc<Core>) -> Router {
    let own = own(core.clone())
        .merge(crate::openapi::router())
        .fallback(crate::refusals::nothing_there)
        .layer(middleware::from_fn(crate::refusals::explain));
    own.clone().merge(crate::compat::router(core, own))
}

/// The gateway's own API.
fn own(core: Arc<Core>) -> Router {
    Router::new()
        .route("/healthz", get(alive))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .route("/v1/leases", post(take))
        .route("/v1/leases/{id}", get(look).delete(release))
        .route("/v1/leases/{id}/renew", post(renew))
        .nest("/v1/leases/{id}", work::router())
        .route("/v1/demand", put(demand))
        .route("/v1/pool", get(pool))
        .route("/v1/pool/package-index", get(package_index))
        .route("/v1/pool/troubles", get(troubles))
        .layer(DefaultBodyLimit::max(MAX_JSON_BYTES))
        .layer(middleware::from_fn_with_state(core.clone(), count_refusals))
        .with_state(core)
}

/// Counts every refusal of every call. Only the gateway that owns the pool can say that a lease does not exist: a
/// replaced gateway that does not know it yet would make the holder give up a lease that another gateway granted.
async fn count_refusals(State(core): Shared, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let error = response.extensions().get::<ErrorBody>();
    if error.is_some_and(|error| error.code == ErrorCode::NoSuchLease)
        && let Err(error) = core.owns_pool().await
    {
        response = Refused(error).into_response();
    }
    if let Some(error) = response.extensions().get::<ErrorBody>() {
        core.metrics.refused(error);
    }
    response
}

/// The kubelet's liveness probe. It takes no lock of the pool, so it also reports a scheduler that holds a lock for
/// ever.
async fn alive(State(core): Shared) -> (StatusCode, String) {
    match core.progress.stalled() {
        None => (StatusCode::OK, "ok".to_owned()),
        Some(ago) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!(
                "the scheduler has begun no round for {} s; the gateway must be restarted",
                ago.as_secs()
            ),
        ),
    }
}

/// The readiness probe. It is not counted as a refusal, because it comes every second.
async fn ready(State(core): Shared) -> (StatusCode, &'static str) {
    match core.is_ready() {
        true => (StatusCode::OK, "ok"),
        false => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the pool's pods are not all known yet, or the ledger is not held",
        ),
    }
}

/// An error response.
struct Refused(ErrorBody);

impl From<ErrorBody> for Refused {
    fn from(body: ErrorBody) -> Self {
        Self(body)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(&self.0)).into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response.extensions_mut().insert(self.0);
        response
    }
}

fn bad(message: impl Into<String>) -> Refused {
    Refused(ErrorBody::new(ErrorCode::BadRequest, FaultOrigin::Client, message))
}

fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, Refused> {
    parse_and_mend(&mut body.clone())
}

/// In JSON `5.0` is as whole a number as `5`, and some clients write it so. The body is replaced by one without such
/// numbers.
fn parse_and_mend<T: DeserializeOwned>(body: &mut Bytes) -> Result<T, Refused> {
    let error = match serde_json::from_slice(body) {
        Ok(read) => return Ok(read),
        Err(error) => error,
    };
    let wrong = || bad(format!("reading the body: {error}"));
    let mut value: Value = serde_json::from_slice(body).map_err(|_| wrong())?;
    make_whole(&mut value);
    *body = value.to_string().into();
    serde_json::from_slice(body).map_err(|_| wrong())
}

fn make_whole(value: &mut Value) {
    match value {
        Value::Number(number) => {
            let whole = number.as_f64().filter(|n| number.is_f64() && n.fract() == 0.0);
            // Beyond this an `f64` is not exact.
            if let Some(whole) = whole.filter(|n| n.abs() <= 2f64.powi(53)) {
                *value = Value::from(whole as i64);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(make_whole),
        Value::Object(fields) => fields.values_mut().for_each(make_whole),
        _ => {}
    }
}

/// Whether a name fits into the header of a signed call: printable ASCII without a blank at either end.
fn is_name(text: &str) -> bool {
    (1..=MAX_NAME).contains(&text.len())
        && text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
        && text.trim() == text
}

async fn take(State(core): Shared, caller: CallersRun, SmallBody(body): SmallBody) -> Result<Response, Refused> {
    let mut request: LeaseRequest = parse(&body)?;
    let run = caller.acts_for(&request.run)?;
    for (field, text) in [("id", &request.id), ("run", &request.run), ("image", &request.image)] {
        if !is_name(text) {
            let message =
                format!("{field} must have 1 to {MAX_NAME} printable ASCII characters, and no blank at either end");
            return Err(bad(message));
        }
    }
    request.run = run;
    request.wait_seconds = request.wait_seconds.min(MAX_WAIT);
    if !core.template.spec.allow_unenforced {
        let wait = Duration::from_secs(request.wait_seconds);
        core.egress.shown_to_be_blocked(wait).await?;
    }
    Ok(Json(core.lease(request).await?).into_response())
}

/// The granted lease, or the error that says why it does not exist.
fn held(core: &Core, id: &str) -> Result<ActiveLease, Refused> {
    core.look(|index| match index.leases.get(id) {
        Some(held) if held.granted => Ok(held.clone()),
        _ => Err(Refused(match index.cause_of(id) {
            Some(cause) => ErrorBody::lost(id, cause),
            None => ErrorBody::new(
                ErrorCode::NoSuchLease,
                FaultOrigin::Client,
                format!("there is no lease {id}"),
            ),
        })),
    })
}

async fn look(State(core): Shared, Path(id): Path<String>) -> Result<Response, Refused> {
    Ok(Json(lease(&held(&core, &id)?)).into_response())
}

async fn release(State(core): Shared, Path(id): Path<String>) -> Result<StatusCode, Refused> {
    core.release(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn renew(State(core): Shared, Path(id): Path<String>, SmallBody(body): SmallBody) -> Result<Response, Refused> {
    let renew: RenewRequest = parse(&body)?;
    held(&core, &id)?;
    let ttl = i64::try_from(renew.ttl_seconds).unwrap_or(i64::MAX);
    let renewed = core.renew(&id, ttl.saturating_mul(1000)).await;
    let Some(renewed) = renewed else {
        let message = "the lease ended, or this gateway does, while it was renewed; ask again";
        return Err(ErrorBody::new(ErrorCode::Unavailable, FaultOrigin::Infrastructure, message).into());
    };
    let ttl = ((renewed.entry.expires_at - now()) / 1000).max(1).unsigned_abs();
    // sandboxd's own expiry is a minute later, so the gateway ends the lease while it is alive.
    let body = serde_json::to_vec(&RenewRequest { ttl_seconds: ttl + 60 }).unwrap_or_default();
    work::pass_on(&core, &renewed, Method::POST, "/renew", body.into(), MARGIN).await?;
    Ok(Json(lease(&held(&core, &id)?)).into_response())
}

async fn demand(
    State(core): Shared,
    caller: CallersRun,
    RoomOf(room): RoomOf,
    body: Body,
) -> Result<StatusCode, Refused> {
    let demand: Demand = parse(&read(&room, body, MAX_JSON_BYTES).await?)?;
    let run = caller.acts_for(&demand.run)?;
    if demand.run.is_empty() || demand.run.len() > MAX_NAME {
        return Err(bad(format!("run must have 1 to {MAX_NAME} bytes")));
    }
    if demand.images.len() > 4096 {
        return Err(bad("at most 4096 images"));
    }
    if !demand.images.iter().all(|wanted| is_name(&wanted.image)) {
        return Err(bad(format!(
            "an image must have 1 to {MAX_NAME} printable ASCII characters, and no blank at either end"
        )));
    }
    let images = demand.images.into_iter();
    let images: Vec<_> = images.map(|wanted| (wanted.image, wanted.count as usize)).collect();
    let is_remembered = core.with(|index| {
        let may_want = images.is_empty() || index.may_want(&run);
        if may_want {
            index.want(&run, images, now());
        }
        may_want
    });
    if !is_remembered {
        let message = format!(
            "{MAX_DEMANDS} runs have a warm demand already; send an empty one for runs that have ended, or ask again in ten minutes"
        );
        return Err(ErrorBody::new(ErrorCode::Unavailable, FaultOrigin::Infrastructure, message).into());
    }
    Ok(StatusCode::NO_CONTENT)
}

async fn pool(State(core): Shared) -> Response {
    Json(PoolState {
        warm_ahead: core.template.spec.warm.ahead,
        package_index: core.template.spec.package_index.as_ref().map(|index| index.url.clone()),
        ..core.look(|index| index.state())
    })
    .into_response()
}

/// Whether the package index of graders answers now.
async fn package_index(State(core): Shared) -> Response {
    Json(core.packages_now().await).into_response()
}

/// Images that are not tried now, and why.
async fn troubles(State(core): Shared) -> Response {
    Json(core.look(|index| index.troubles(now()))).into_response()
}

async fn metrics(State(core): Shared) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let around = Around {
        relays: core.relays.count(),
        starts: core.template.term,
        egress_blocked: core.egress.report().is_some_and(|report| report.is_blocked()),
        images: core.prefetcher.lock().unwrap_or_else(PoisonError::into_inner).counts(),
    };
    match core.look(|index| core.metrics.text(index, around, now())) {
        Ok(text) => ([(header::CONTENT_TYPE, kind)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
