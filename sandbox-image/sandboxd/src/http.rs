//! The server: HTTP/1.1 over TCP. The gateway signs every call except health; [`calls`] carries the calls out.
//!
//! The server refuses a call before it reads the body if the head is reason enough. Only an accepted call gets a share
//! of the memory and a deadline for its body.

mod calls;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use grpo_sandbox_protocol::signature::{EPOCH_HEADER, LEASE_HEADER, SIGNATURE_HEADER, TIME_HEADER};
use grpo_sandbox_protocol::{
    ErrorBody, ErrorCode, FaultOrigin, IDLE_CONNECTION, MAX_FILE_BYTES, MAX_JSON_BYTES, Room, SignatureError, Signed,
    Verifier,
};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::net::{TcpListener, TcpStream};

use crate::callers::Callers;
use crate::exec::Executor;
use crate::lease::{Binding, LeaseError};
use crate::places::{Place, Places};
use crate::relay::Relays;
use crate::session::Sessions;

/// Buffer of a connection, and so the longest head.
const BUFFER: usize = 64 << 10;
/// Longest body of a call without content, only with names.
const SMALL_BODY: usize = 4 << 10;
/// Deadline for a body's share of the memory and its arrival. It equals the gateway's limit for a file.
const BODY_WITHIN: Duration = Duration::from_secs(60);

/// The state that calls need.
pub struct Sandbox {
    pub verifier: Verifier,
    pub binding: Binding,
    pub executor: Executor,
    pub sessions: Sessions,
    pub relays: Relays,
    pub room: Room,
}

/// Answers calls until the runtime ends.
pub async fn serve(listener: TcpListener, sandbox: Arc<Sandbox>, callers: Callers) {
    let places = Places::default();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let own = stream
                    .local_addr()
                    .map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |own| own.ip());
                if callers.include(peer, own)
                    && let Some(place) = places.take(peer.ip())
                {
                    attend(stream, sandbox.clone(), Arc::new(place));
                }
            }
            // Out of descriptors: the policy may have used them up. Other connections close; try again.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Serves one connection, which has its place until it ends or another connection takes it.
fn attend(stream: TcpStream, sandbox: Arc<Sandbox>, place: Arc<Place>) {
    let _ = stream.set_nodelay(true);
    tokio::spawn(async move {
        let of_connection = place.clone();
        let service = service_fn(move |request| {
            let (sandbox, place) = (sandbox.clone(), of_connection.clone());
            async move { Ok::<_, std::convert::Infallible>(answer(&sandbox, &place, request).await) }
        });
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(IDLE_CONNECTION)
            .max_buf_size(BUFFER);
        tokio::select! {
            _ = http.serve_connection(TokioIo::new(stream), service).with_upgrades() => {}
            () = place.taken_away() => {}
        }
    });
}

type Answer = Response<Full<Bytes>>;

async fn answer(sandbox: &Sandbox, place: &Arc<Place>, request: Request<Incoming>) -> Answer {
    if request.uri().path() == "/healthz" && sandbox.binding.is_ending() {
        return plain(StatusCode::SERVICE_UNAVAILABLE, Bytes::from_static(b"ending"));
    }
    if request.uri().path() == "/healthz" {
        return plain(StatusCode::OK, Bytes::from_static(b"ok"));
    }
    obey(sandbox, place, request).await.unwrap_or_else(|error| {
        let status = StatusCode::from_u16(error.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        json(status, &error)
    })
}

async fn obey(sandbox: &Sandbox, place: &Arc<Place>, request: Request<Incoming>) -> Result<Answer, ErrorBody> {
    let (mut head, body) = request.into_parts();
    let upgrade = head.extensions.remove::<OnUpgrade>();
    let (claim, now) = (Claim::of(&head), now());
    claim.precheck(sandbox, now)?;
    let limit = match head.uri.path() {
        "/files" | "/tree" => MAX_FILE_BYTES,
        "/exec" | "/exec/start" | "/sessions" | "/sessions/input" => MAX_JSON_BYTES,
        _ => SMALL_BODY,
    };
    let body = read(&sandbox.room, body, limit).await?;
    claim.verify(sandbox, &body, now)?;
    place.prove();
    if claim.path == "/relay" {
        return calls::relay(sandbox, &head, upgrade, place).await;
    }
    calls::carry_out(sandbox, &head, &claim, body).await
}

/// The caller's claims in the request head.
struct Claim<'a> {
    method: &'a str,
    path: &'a str,
    /// Path with query.
    target: &'a str,
    lease: &'a str,
    epoch: u64,
    unix_millis: i64,
    signature: &'a str,
}

impl<'a> Claim<'a> {
    fn of(head: &'a Parts) -> Self {
        let header = |name: &str| {
            let value = head.headers.get(name).and_then(|value| value.to_str().ok());
            value.unwrap_or_default()
        };
        Self {
            method: head.method.as_str(),
            path: head.uri.path(),
            target: head.uri.path_and_query().map_or("", |target| target.as_str()),
            lease: header(LEASE_HEADER),
            epoch: header(EPOCH_HEADER).parse().unwrap_or(0),
            unix_millis: header(TIME_HEADER).parse().unwrap_or(0),
            signature: header(SIGNATURE_HEADER),
        }
    }

    /// Refuses requests that no body could make valid.
    fn precheck(&self, sandbox: &Sandbox, now: i64) -> Result<(), ErrorBody> {
        Verifier::precheck(self.unix_millis, self.signature, now).map_err(bad_signature)?;
        let known = match self.path {
            "/bind" => sandbox.binding.admits(self.lease, self.epoch),
            _ => sandbox.binding.check(self.lease, self.epoch),
        };
        known.map_err(wrong_lease)
    }

    fn verify(&self, sandbox: &Sandbox, body: &[u8], now: i64) -> Result<(), ErrorBody> {
        let signed = Signed {
            method: self.method,
            target: self.target,
            lease: self.lease,
            epoch: self.epoch,
            unix_millis: self.unix_millis,
            body,
        };
        let verified = sandbox.verifier.verify(&signed, self.signature, now);
        verified.map_err(bad_signature)
    }
}

/// Reads the whole body, within its share of the memory and its deadline.
async fn read(room: &Room, body: Incoming, limit: usize) -> Result<Bytes, ErrorBody> {
    let declared = body.size_hint().exact();
    if declared.is_some_and(|bytes| bytes > limit as u64) {
        return Err(too_large(limit));
    }
    let declared = declared.map(|bytes| bytes as usize);
    let whole = async {
        let share = room.take(declared.unwrap_or(limit)).await;
        let bytes = gather(body, limit, declared.unwrap_or(0)).await?;
        Ok(share.hold(bytes))
    };
    let late = |_| {
        let message = format!("the body did not arrive within {BODY_WITHIN:?}; ask again");
        ErrorBody::new(ErrorCode::Unavailable, FaultOrigin::Infrastructure, message)
    };
    tokio::time::timeout(BODY_WITHIN, whole).await.map_err(late)?
}

/// In one buffer from the first byte on: joining pieces would take twice the memory.
async fn gather(body: Incoming, limit: usize, expected: usize) -> Result<Vec<u8>, ErrorBody> {
    let mut body = Limited::new(body, limit);
    let mut bytes = Vec::with_capacity(expected);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| match error.is::<LengthLimitError>() {
            true => too_large(limit),
            false => bad_request(format!("reading the body: {error}")),
        })?;
        if let Some(data) = frame.data_ref() {
            bytes.extend_from_slice(data);
        }
    }
    Ok(bytes)
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map(|since| since.as_millis() as i64).unwrap_or(0)
}

fn bad_request(message: String) -> ErrorBody {
    ErrorBody::new(ErrorCode::BadRequest, FaultOrigin::Client, message)
}

/// Only gateways call: another key, different clocks or another lease's sandbox are not the workload's fault.
fn bad_signature(error: SignatureError) -> ErrorBody {
    ErrorBody::new(ErrorCode::BadSignature, FaultOrigin::Infrastructure, error.to_string())
}

fn too_large(limit: usize) -> ErrorBody {
    let message = format!("the body has more than {limit} bytes");
    ErrorBody::new(ErrorCode::TooLarge, FaultOrigin::Client, message)
}

fn wrong_lease(error: LeaseError) -> ErrorBody {
    ErrorBody::new(ErrorCode::WrongLease, FaultOrigin::Infrastructure, error.to_string())
}

fn json<T: Serialize>(status: StatusCode, body: &T) -> Answer {
    let bytes = serde_json::to_vec(body).unwrap_or_default();
    let mut answer = plain(status, bytes.into());
    let kind = hyper::header::HeaderValue::from_static("application/json");
    answer.headers_mut().insert(hyper::header::CONTENT_TYPE, kind);
    answer
}

fn done() -> Answer {
    plain(StatusCode::NO_CONTENT, Bytes::new())
}

fn plain(status: StatusCode, bytes: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(bytes));
    *answer.status_mut() = status;
    answer
}

#[cfg(test)]
mod tests;
