//! The effect of each call, after the gateway's signature was checked.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use grpo_sandbox_protocol::{
    Activity, Bind, CloseRequest, ErrorBody, ErrorCode, ExecRequest, FaultOrigin, KillRequest, MAX_FILE_BYTES,
    MAX_POLL, ProbeRequest, RELAY_PROTOCOL, RenewRequest, Room, SessionInput, SessionRequest, Share,
};
use hyper::header::{self, HeaderValue};
use hyper::http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;

use super::{Answer, BODY_WITHIN, Claim, Sandbox, bad_request, done, json, plain, wrong_lease};
use crate::exec::ExecError;
use crate::files::{self, FileError, Links};
use crate::places::Place;
use crate::probe;
use crate::relay::{self, RelayError};

/// Default size of an output part.
const PART: usize = 1 << 20;

pub async fn carry_out(sandbox: &Sandbox, head: &Parts, claim: &Claim<'_>, body: Bytes) -> Result<Answer, ErrorBody> {
    let query = |name: &str| query(head.uri.query().unwrap_or_default(), name);
    let ok = StatusCode::OK;
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
        (&Method::POST, "/reset") => {
            let ended = sandbox.binding.end(claim.lease, claim.epoch);
            ended.map_err(wrong_lease).map(|()| done())
        }
        (&Method::POST, "/exec") => {
            let request: ExecRequest = parse(&body)?;
            // A command may run for hours; the body's room is freed for other calls.
            drop(body);
            let result = sandbox.executor.run(request).await;
            result.map(|result| json(ok, &result)).map_err(exec_error)
        }
        (&Method::POST, "/exec/start") => {
            let request: ExecRequest = parse(&body)?;
            let state = sandbox.executor.start(request);
            state.map(|state| json(ok, &state)).map_err(exec_error)
        }
        (&Method::GET, "/exec") => {
            let wait = seconds(query("waitSeconds"))?;
            let state = sandbox.executor.state(&query("id").unwrap_or_default(), wait).await;
            state.map(|state| json(ok, &state)).map_err(exec_error)
        }
        (&Method::GET, "/exec/output") => {
            let (id, wait) = (query("id").unwrap_or_default(), seconds(query("waitSeconds"))?);
            let (from, count) = (number(query("from"), 0)?, number(query("limit"), PART as u64)?);
            let count = usize::try_from(count).unwrap_or(PART);
            let part = sandbox.executor.output(&id, from, count, wait).await;
            part.map(|part| json(ok, &part)).map_err(exec_error)
        }
        (&Method::POST, "/exec/kill") => {
            let request: KillRequest = parse(&body)?;
            let state = sandbox.executor.kill(&request).await;
            state.map(|state| json(ok, &state)).map_err(exec_error)
        }
        (&Method::POST, "/sessions") => {
            let request: SessionRequest = parse(&body)?;
            let begun = sandbox.sessions.begin(request).await;
            begun.map(|()| done()).map_err(exec_error)
        }
        (&Method::POST, "/sessions/input") => {
            let input: SessionInput = parse(&body)?;
            drop(body);
            let reply = sandbox.sessions.input(input).await;
            reply.map(|reply| json(ok, &reply)).map_err(exec_error)
        }
        (&Method::POST, "/sessions/close") => {
            let request: CloseRequest = parse(&body)?;
            sandbox.sessions.close(&request).await;
            Ok(done())
        }
        (&Method::GET, "/activity") => {
            let running = sandbox.executor.running() + sandbox.sessions.busy();
            Ok(json(ok, &Activity { running }))
        }
        (&Method::POST, "/probe") => {
            let request: ProbeRequest = parse(&body)?;
            Ok(json(ok, &probe::probe(&request).await))
        }
        (&Method::PUT, "/files") => {
            let path = query("path").unwrap_or_default();
            let put = files::put(&path, query("mode").as_deref(), links(query("links"))?, body).await;
            put.map_err(file_error).map(|()| done())
        }
        (&Method::GET, "/files") => {
            let share = room_for_a_file(&sandbox.room).await?;
            let got = files::get(&query("path").unwrap_or_default(), links(query("links"))?).await;
            got.map(|bytes| plain(ok, share.hold(bytes))).map_err(file_error)
        }
        (&Method::PUT, "/tree") => {
            let path = query("path").unwrap_or_default();
            let put = files::put_tree(&path, links(query("links"))?, body).await;
            put.map_err(file_error).map(|()| done())
        }
        (&Method::GET, "/tree") => {
            let share = room_for_a_file(&sandbox.room).await?;
            let got = files::get_tree(&query("path").unwrap_or_default(), links(query("links"))?).await;
            got.map(|bytes| plain(ok, share.hold(bytes))).map_err(file_error)
        }
        (method, path) => Err(bad_request(format!("{method} {path} is nothing that sandboxd does"))),
    }
}

/// Answers with the next connection to the port. From then on this connection carries the bytes of that one.
pub async fn relay(
    sandbox: &Sandbox,
    head: &Parts,
    upgrade: Option<OnUpgrade>,
    place: &Arc<Place>,
) -> Result<Answer, ErrorBody> {
    let query = |name: &str| query(head.uri.query().unwrap_or_default(), name);
    let (Some(upgrade), true) = (upgrade, head.method == Method::POST) else {
        return Err(bad_request(format!(
            "/relay is a POST that upgrades to {RELAY_PROTOCOL}"
        )));
    };
    let port = number(query("port"), 0)?;
    let port = u16::try_from(port).map_err(|_| bad_request(format!("{port} is no port")))?;
    let wait = seconds(query("waitSeconds"))?;
    let Some(inside) = sandbox.relays.next(port, wait).await.map_err(relay_error)? else {
        return Ok(done());
    };
    // The connection stays open after its last response, so it keeps its place among the allowed connections.
    let place = place.clone();
    tokio::spawn(async move {
        if let Ok(gateway) = upgrade.await {
            relay::join(inside, TokioIo::new(gateway)).await;
        }
        drop(place);
    });
    let mut answer = plain(StatusCode::SWITCHING_PROTOCOLS, Bytes::new());
    let headers = answer.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static(RELAY_PROTOCOL));
    Ok(answer)
}

async fn room_for_a_file(room: &Room) -> Result<Share, ErrorBody> {
    let share = tokio::time::timeout(BODY_WITHIN, room.take(MAX_FILE_BYTES)).await;
    share.map_err(|_| {
        let message = format!("other files were on their way for {BODY_WITHIN:?}; ask again");
        ErrorBody::new(ErrorCode::Unavailable, FaultOrigin::Infrastructure, message)
    })
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ErrorBody> {
    serde_json::from_slice(body).map_err(|e| bad_request(format!("reading the body: {e}")))
}

/// A number in the query.
fn number(value: Option<String>, default: u64) -> Result<u64, ErrorBody> {
    match value {
        Some(text) => text.parse().map_err(|_| bad_request(format!("{text:?} is no number"))),
        None => Ok(default),
    }
}

fn links(value: Option<String>) -> Result<Links, ErrorBody> {
    match value.as_deref() {
        None | Some("follow") => Ok(Links::Followed),
        Some("refuse") => Ok(Links::Refused),
        Some(other) => Err(bad_request(format!("links={other:?} is neither follow nor refuse"))),
    }
}

fn seconds(value: Option<String>) -> Result<Duration, ErrorBody> {
    Ok(Duration::from_secs(number(value, 0)?).min(MAX_POLL))
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

fn exec_error(error: ExecError) -> ErrorBody {
    match error {
        ExecError::NoProgram | ExecError::NoSignal(_) | ExecError::BadPrompt(_) => bad_request(error.to_string()),
        ExecError::Unknown(_) => ErrorBody::new(ErrorCode::NoSuchExec, FaultOrigin::Client, error.to_string()),
        ExecError::TooMany | ExecError::Setup(_) => {
            ErrorBody::new(ErrorCode::Unavailable, FaultOrigin::Workload, error.to_string())
        }
    }
}

fn relay_error(error: RelayError) -> ErrorBody {
    match error {
        RelayError::BadPort(_) => bad_request(error.to_string()),
        // The policy may have taken the port.
        RelayError::TooMany | RelayError::Listen { .. } => {
            ErrorBody::new(ErrorCode::Unavailable, FaultOrigin::Workload, error.to_string())
        }
    }
}

fn file_error(error: FileError) -> ErrorBody {
    let (code, fault) = match &error {
        FileError::BadPath(_) | FileError::BadMode(_) | FileError::BadTar { .. } => {
            (ErrorCode::BadRequest, FaultOrigin::Client)
        }
        FileError::Missing(_) | FileError::NotAFile(_) => (ErrorCode::NoSuchFile, FaultOrigin::Workload),
        FileError::TooLarge { .. } | FileError::TarTooLarge { .. } => (ErrorCode::TooLarge, FaultOrigin::Workload),
        // A full disk or a folder turned into a file is the policy's doing.
        FileError::Io { .. } => (ErrorCode::NoSuchFile, FaultOrigin::Workload),
        FileError::Late(_) => (ErrorCode::Unavailable, FaultOrigin::Workload),
    };
    ErrorBody::new(code, fault, error.to_string())
}
