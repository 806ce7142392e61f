//! The door: HTTP/1.1 over TCP, every call but health signed by the gateway.
//!
//! Whatever can be refused for its head is refused before its body is read; only then is there a share of the memory and a time for the body.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use grpo_sandbox_protocol::signature::{EPOCH_HEADER, LEASE_HEADER, SIGNATURE_HEADER, TIME_HEADER};
use grpo_sandbox_protocol::{
    Bind, ErrorBody, ErrorCode, ExecRequest, Fault, IDLE_CONNECTION, MAX_FILE_BYTES, MAX_JSON_BYTES, RenewRequest,
    SignatureError, Signed, Verifier,
};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::callers::Callers;
use crate::exec::{ExecError, Executor};
use crate::files::{self, FileError};
use crate::lease::{Binding, LeaseError};
use crate::room::{Room, Share};

/// Connections at one time; the gateway pools far fewer.
const MAX_CONNECTIONS: usize = 128;
/// A body has its share of the memory and has arrived after so long, as long as the gateway waits for a file.
const BODY_WITHIN: Duration = Duration::from_secs(60);

/// What a call needs.
pub struct Sandbox {
    pub verifier: Verifier,
    pub binding: Binding,
    pub executor: Executor,
    pub room: Room,
}

/// Answers calls until the runtime ends.
pub async fn serve(listener: TcpListener, sandbox: Arc<Sandbox>, callers: Callers) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let own = stream
                    .local_addr()
                    .map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |own| own.ip());
                if callers.include(peer, own) {
                    attend(stream, sandbox.clone(), permit);
                }
            }
            // Out of descriptors: the policy may have used them up. Others close; try again.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Serves one connection, which has its place until it ends.
fn attend(stream: TcpStream, sandbox: Arc<Sandbox>, place: OwnedSemaphorePermit) {
    let _ = stream.set_nodelay(true);
    tokio::spawn(async move {
        let service = service_fn(move |request| {
            let sandbox = sandbox.clone();
            async move { Ok::<_, std::convert::Infallible>(answer(&sandbox, request).await) }
        });
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(IDLE_CONNECTION);
        let _ = http.serve_connection(TokioIo::new(stream), service).await;
        drop(place);
    });
}

type Answer = Response<Full<Bytes>>;

async fn answer(sandbox: &Sandbox, request: Request<Incoming>) -> Answer {
    if request.uri().path() == "/healthz" {
        return plain(StatusCode::OK, Bytes::from_static(b"ok"));
    }
    obey(sandbox, request).await.unwrap_or_else(|error| {
        let status = StatusCode::from_u16(error.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        json(status, &error)
    })
}

async fn obey(sandbox: &Sandbox, request: Request<Incoming>) -> Result<Answer, ErrorBody> {
    let (head, body) = request.into_parts();
    let (claim, now) = (Claim::of(&head), now());
    claim.precheck(sandbox, now)?;
    let limit = match head.uri.path() {
        "/files" => MAX_FILE_BYTES,
        _ => MAX_JSON_BYTES,
    };
    let body = read(&sandbox.room, body, limit).await?;
    claim.verify(sandbox, &body, now)?;
    carry_out(sandbox, &head, &claim, body).await
}

/// What the head says about whom the request is from.
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

    /// Refuses what no body could make right.
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

/// The whole body, within its share of the memory and its time.
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
        ErrorBody::new(ErrorCode::Unavailable, Fault::Infrastructure, message)
    };
    tokio::time::timeout(BODY_WITHIN, whole).await.map_err(late)?
}

/// In one piece from the first byte on: joining pieces would take the room twice.
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

async fn carry_out(sandbox: &Sandbox, head: &Parts, claim: &Claim<'_>, body: Bytes) -> Result<Answer, ErrorBody> {
    let query = |name: &str| query(head.uri.query().unwrap_or_default(), name);
    match (&head.method, claim.path) {
        (&Method::POST, "/bind") => {
            let bind: Bind = parse(&body)?;
            let bound = sandbox.binding.bind(&bind.lease, bind.epoch, bind.ttl_seconds);
            bound.map_err(wrong_lease).map(|()| done())
        }
        (&Method::POST, "/renew") => {
            let renew: RenewRequest = parse(&body)?;
            let bound = sandbox.binding.bind(claim.lease, claim.epoch, renew.ttl_seconds);
            bound.map_err(wrong_lease).map(|()| done())
        }
        (&Method::POST, "/exec") => {
            let request: ExecRequest = parse(&body)?;
            // A command may run for hours; its body's room is for others.
            drop(body);
            let result = sandbox.executor.run(request).await.map_err(exec_error)?;
            Ok(json(StatusCode::OK, &*result))
        }
        (&Method::PUT, "/files") => {
            let path = query("path").unwrap_or_default();
            let put = files::put(&path, query("mode").as_deref(), body).await;
            put.map_err(file_error).map(|()| done())
        }
        (&Method::GET, "/files") => {
            let share = room_for_a_file(&sandbox.room).await?;
            let bytes = files::get(&query("path").unwrap_or_default())
                .await
                .map_err(file_error)?;
            Ok(plain(StatusCode::OK, share.hold(bytes)))
        }
        (method, path) => Err(bad_request(format!("{method} {path} is nothing that sandboxd does"))),
    }
}

async fn room_for_a_file(room: &Room) -> Result<Share, ErrorBody> {
    let share = tokio::time::timeout(BODY_WITHIN, room.take(MAX_FILE_BYTES)).await;
    share.map_err(|_| {
        let message = format!("other files were on their way for {BODY_WITHIN:?}; ask again");
        ErrorBody::new(ErrorCode::Unavailable, Fault::Infrastructure, message)
    })
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map(|since| since.as_millis() as i64).unwrap_or(0)
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ErrorBody> {
    serde_json::from_slice(body).map_err(|e| bad_request(format!("reading the body: {e}")))
}

/// The decoded value of a query parameter.
fn query(query: &str, name: &str) -> Option<String> {
    let value = query
        .split('&')
        .find_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name))?
        .1;
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let hex = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&hex).ok()?, 16).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

fn bad_request(message: String) -> ErrorBody {
    ErrorBody::new(ErrorCode::BadRequest, Fault::Client, message)
}

fn bad_signature(error: SignatureError) -> ErrorBody {
    ErrorBody::new(ErrorCode::BadSignature, Fault::Client, error.to_string())
}

fn too_large(limit: usize) -> ErrorBody {
    let message = format!("the body has more than {limit} bytes");
    ErrorBody::new(ErrorCode::TooLarge, Fault::Client, message)
}

fn wrong_lease(error: LeaseError) -> ErrorBody {
    ErrorBody::new(ErrorCode::WrongLease, Fault::Client, error.to_string())
}

fn exec_error(error: ExecError) -> ErrorBody {
    match error {
        ExecError::NoProgram => bad_request(error.to_string()),
        ExecError::TooMany | ExecError::Setup(_) => {
            ErrorBody::new(ErrorCode::Unavailable, Fault::Workload, error.to_string())
        }
    }
}

fn file_error(error: FileError) -> ErrorBody {
    let (code, fault) = match &error {
        FileError::BadPath(_) | FileError::BadMode(_) => (ErrorCode::BadRequest, Fault::Client),
        FileError::Missing(_) | FileError::NotAFile(_) => (ErrorCode::NoSuchFile, Fault::Workload),
        FileError::TooLarge { .. } => (ErrorCode::TooLarge, Fault::Workload),
        // A full disk or a folder turned into a file is the policy's doing.
        FileError::Io { .. } => (ErrorCode::NoSuchFile, Fault::Workload),
    };
    ErrorBody::new(code, fault, error.to_string())
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
