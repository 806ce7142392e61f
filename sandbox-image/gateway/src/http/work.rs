//! A holder's work in its sandbox: each call is signed and forwarded to sandboxd, and sandboxd's response is streamed
//! back.
//!
//! A lease is in use during a call. Bodies get a share of the gateway's memory before they are read ([`Room`]);
//! responses are not buffered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Path, RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use grpo_sandbox_protocol::{
    ErrorBody, ExecRequest, KillRequest, MAX_FILE_BYTES, MAX_ID_BYTES, MAX_JSON_BYTES, MAX_POLL, RelayRequest, Room,
    SessionInput,
};
use serde_json::{Map, Value};

use super::ownership::CallersRun;
use super::room::{RoomOf, SmallBody};
use super::{MARGIN, Refused, Shared, bad, held, is_name, parse, parse_and_mend};
use crate::body::{ARRIVES_WITHIN, read};
use crate::core::{Core, now};
use crate::index::ActiveLease;
use crate::package_index::environment;
use crate::relay::service;
use crate::sandbox::Holder;

/// Maximum time limit of a command, seconds.
const MAX_EXEC: u64 = 24 * 3600;
/// Pause between two checks whether the sandbox of a call is lost.
const LOOK: Duration = Duration::from_secs(1);
/// Deadline for the arrival of a file at sandboxd.
const FILE_WITHIN: Duration = ARRIVES_WITHIN;

/// The routes below `/v1/leases/{id}`.
pub fn router() -> Router<Arc<Core>> {
    let file = DefaultBodyLimit::max(MAX_FILE_BYTES);
    Router::new()
        .route("/exec", post(exec).get(look))
        .route("/exec/start", post(start))
        .route("/exec/output", get(output))
        .route("/exec/kill", post(kill))
        .route("/sessions", post(begin_session))
        .route("/sessions/input", post(session_input))
        .route("/sessions/close", post(close_session))
        .route("/files", put(files).get(files).layer(file))
        .route("/tree", put(tree).get(tree).layer(file))
        .route("/relay", put(relay))
}

async fn exec(
    State(core): Shared,
    Path(id): Path<String>,
    RoomOf(room): RoomOf,
    body: Body,
) -> Result<Response, Refused> {
    let mut body = read(&room, body, MAX_JSON_BYTES).await?;
    let request = command(&mut body)?;
    let held = held(&core, &id)?;
    let body = with_packages(&core, &held, body);
    let timeout = Duration::from_secs(request.timeout_seconds);
    let began = Instant::now();
    let answer = work(&core, &held, Method::POST, "/exec", body, timeout + MARGIN).await;
    let is_done = answer.as_ref().is_ok_and(|answer| answer.status().is_success());
    core.metrics.executed(is_done, began.elapsed());
    answer
}

async fn start(
    State(core): Shared,
    Path(id): Path<String>,
    RoomOf(room): RoomOf,
    body: Body,
) -> Result<Response, Refused> {
    let mut body = read(&room, body, MAX_JSON_BYTES).await?;
    command(&mut body)?;
    let held = held(&core, &id)?;
    let body = with_packages(&core, &held, body);
    work(&core, &held, Method::POST, "/exec/start", body, MARGIN).await
}

async fn look(State(core): Shared, Path(id): Path<String>, query: RawQuery) -> Result<Response, Refused> {
    poll(&core, &id, &target("/exec", query)).await
}

async fn output(State(core): Shared, Path(id): Path<String>, query: RawQuery) -> Result<Response, Refused> {
    poll(&core, &id, &target("/exec/output", query)).await
}

async fn poll(core: &Core, id: &str, target: &str) -> Result<Response, Refused> {
    let wait = MAX_POLL + MARGIN;
    work(core, &held(core, id)?, Method::GET, target, Bytes::new(), wait).await
}

async fn kill(
    State(core): Shared,
    Path(id): Path<String>,
    SmallBody(mut body): SmallBody,
) -> Result<Response, Refused> {
    parse_and_mend::<KillRequest>(&mut body)?;
    work(&core, &held(&core, &id)?, Method::POST, "/exec/kill", body, MARGIN).await
}

async fn begin_session(
    State(core): Shared,
    Path(id): Path<String>,
    RoomOf(room): RoomOf,
    body: Body,
) -> Result<Response, Refused> {
    let body = read(&room, body, MAX_JSON_BYTES).await?;
    // The environment may have to be set up first.
    let timeout = FILE_WITHIN + MARGIN;
    let held = held(&core, &id)?;
    let body = with_packages(&core, &held, body);
    work(&core, &held, Method::POST, "/sessions", body, timeout).await
}

async fn session_input(
    State(core): Shared,
    Path(id): Path<String>,
    RoomOf(room): RoomOf,
    body: Body,
) -> Result<Response, Refused> {
    let mut body = read(&room, body, MAX_JSON_BYTES).await?;
    let input: SessionInput = parse_and_mend(&mut body)?;
    let timeout = Duration::from_millis(input.timeout_millis).min(Duration::from_secs(MAX_EXEC));
    let held = held(&core, &id)?;
    work(&core, &held, Method::POST, "/sessions/input", body, timeout + MARGIN).await
}

async fn close_session(
    State(core): Shared,
    Path(id): Path<String>,
    SmallBody(body): SmallBody,
) -> Result<Response, Refused> {
    work(&core, &held(&core, &id)?, Method::POST, "/sessions/close", body, MARGIN).await
}

async fn files(
    State(core): Shared,
    Path(id): Path<String>,
    RoomOf(room): RoomOf,
    method: Method,
    query: RawQuery,
    body: Body,
) -> Result<Response, Refused> {
    let body = Sent { body, room };
    move_bytes(&core, &id, method, target("/files", query), body).await
}

async fn tree(
    State(core): Shared,
    Path(id): Path<String>,
    RoomOf(room): RoomOf,
    method: Method,
    query: RawQuery,
    body: Body,
) -> Result<Response, Refused> {
    let body = Sent { body, room };
    move_bytes(&core, &id, method, target("/tree", query), body).await
}

/// An unread body, and the room that it will take.
struct Sent {
    body: Body,
    room: Room,
}

async fn move_bytes(core: &Core, id: &str, method: Method, target: String, sent: Sent) -> Result<Response, Refused> {
    // Checked before the body is read: if the lease has ended, the caller need not wait for that.
    held(core, id)?;
    let body = read(&sent.room, sent.body, MAX_FILE_BYTES).await?;
    let is_read = method == Method::GET;
    let mut answer = work(core, &held(core, id)?, method, &target, body, FILE_WITHIN).await?;
    if is_read && answer.status().is_success() {
        let kind = HeaderValue::from_static("application/octet-stream");
        answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    }
    Ok(answer)
}

async fn relay(
    State(core): Shared,
    Path(id): Path<String>,
    caller: CallersRun,
    SmallBody(body): SmallBody,
) -> Result<StatusCode, Refused> {
    let request: RelayRequest = parse(&body)?;
    let to = service(&request.to).map_err(bad)?;
    caller.may_relay_to(&to)?;
    let held = held(&core, &id)?;
    core.look(|index| index.used(&id, now()));
    core.relay(&held, request.port, to).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Parses and checks a command.
fn command(body: &mut Bytes) -> Result<ExecRequest, Refused> {
    let request: ExecRequest = parse_and_mend(body)?;
    if !is_name(&request.id) || request.id.len() > MAX_ID_BYTES {
        let message =
            format!("id must have 1 to {MAX_ID_BYTES} printable ASCII characters, and no blank at either end");
        return Err(bad(message));
    }
    if request.timeout_seconds == 0 || request.timeout_seconds > MAX_EXEC {
        return Err(bad(format!("timeoutSeconds must be 1 to {MAX_EXEC}")));
    }
    Ok(request)
}

/// Adds the package index to the environment of a request that starts a program, if the sandbox reaches an index.
/// Values that the caller sets stay.
fn with_packages(core: &Core, held: &ActiveLease, body: Bytes) -> Bytes {
    let Some(index) = core.packages_of(held) else {
        return body;
    };
    let Ok(mut request) = serde_json::from_slice::<Map<String, Value>>(&body) else {
        return body;
    };
    let variables = request.entry("env").or_insert_with(|| Value::Object(Map::new()));
    if let Some(variables) = variables.as_object_mut() {
        for (name, value) in environment(index) {
            variables.entry(name).or_insert_with(|| value.into());
        }
    }
    Value::Object(request).to_string().into()
}

fn target(path: &str, RawQuery(query): RawQuery) -> String {
    match query {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    }
}

/// Calls sandboxd for a holder. The lease is in use until sandboxd has answered.
async fn work(
    core: &Core,
    held: &ActiveLease,
    method: Method,
    target: &str,
    body: Bytes,
    timeout: Duration,
) -> Result<Response, Refused> {
    let _running = Running::begin(core, held);
    tokio::select! {
        biased;
        answer = pass_on(core, held, method, target, body, timeout) => answer,
        lost = lost(core, held) => Err(Refused(lost)),
    }
}

/// Waits until the sandbox is known to be lost. A node without power closes no connection, and the caller would wait
/// for the rest of a command's time, which counts as the policy's own.
async fn lost(core: &Core, held: &ActiveLease) -> ErrorBody {
    let entry = &held.entry;
    loop {
        let cause = core.look(|index| {
            let now = index.leases.get(&entry.lease);
            let is_there = now.is_some_and(|now| now.entry.epoch == entry.epoch);
            index.cause_of(&entry.lease).filter(|_| !is_there)
        });
        if let Some(cause) = cause {
            return ErrorBody::lost(&entry.lease, cause);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// A call in progress. Its lease is in use until this is dropped, however the call ends.
struct Running<'a> {
    core: &'a Core,
    lease: &'a str,
    epoch: u64,
}

impl<'a> Running<'a> {
    fn begin(core: &'a Core, held: &'a ActiveLease) -> Self {
        let (lease, epoch) = (held.entry.lease.as_str(), held.entry.epoch);
        core.look(|index| index.command_begins(lease, now()));
        Self { core, lease, epoch }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.core
            .look(|index| index.command_ends(self.lease, self.epoch, now()));
    }
}

/// sandboxd's response, or an error with the origin of the fault.
pub async fn pass_on(
    core: &Core,
    held: &ActiveLease,
    method: Method,
    target: &str,
    body: Bytes,
    timeout: Duration,
) -> Result<Response, Refused> {
    match core
        .sandboxes
        .pass(Holder::of(held), method, target, body, timeout)
        .await
    {
        Ok((head, body)) => {
            if matches!(head.status, StatusCode::UNAUTHORIZED | StatusCode::CONFLICT) {
                let (lease, sandbox) = (&held.entry.lease, &held.entry.sandbox);
                tracing::warn!(
                    lease,
                    sandbox,
                    status = head.status.as_u16(),
                    "the sandbox does not obey this gateway; the answer says why: another key, clocks that differ, or another lease"
                );
            }
            Ok((head.status, kind(&head.headers), body).into_response())
        }
        Err(error) => Err(Refused(core.why_unreachable(&held.entry.lease, &error))),
    }
}

/// Keeps only the headers Content-Type and Content-Length of sandboxd's response.
fn kind(from: &HeaderMap) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for name in [header::CONTENT_TYPE, header::CONTENT_LENGTH] {
        if let Some(value) = from.get(&name) {
            headers.insert(name, value.clone());
        }
    }
    headers
}
