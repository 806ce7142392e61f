//! The door: HTTP/1.1 over TCP, every call but health signed by the gateway.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use grpo_sandbox_protocol::signature::{EPOCH_HEADER, LEASE_HEADER, SIGNATURE_HEADER, TIME_HEADER};
use grpo_sandbox_protocol::{
    Bind, ErrorBody, ErrorCode, ExecRequest, Fault, MAX_FILE_BYTES, MAX_JSON_BYTES, RenewRequest, Signed, Verifier,
};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::exec::{ExecError, Executor};
use crate::files::{self, FileError};
use crate::lease::{Binding, LeaseError};

/// Connections at one time; the gateway pools far fewer.
const MAX_CONNECTIONS: usize = 128;

/// What a call needs.
pub struct Sandbox {
    pub verifier: Verifier,
    pub binding: Binding,
    pub executor: Executor,
}

/// Answers calls until the runtime ends.
pub async fn serve(listener: TcpListener, sandbox: Arc<Sandbox>) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            // Out of descriptors: the policy may have used them up. Others close; try again.
            Err(_) => {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let sandbox = sandbox.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let sandbox = sandbox.clone();
                async move { Ok::<_, std::convert::Infallible>(answer(&sandbox, request).await) }
            });
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            drop(permit);
        });
    }
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
    let path = head.uri.path().to_owned();
    let limit = if path == "/files" { MAX_FILE_BYTES } else { MAX_JSON_BYTES };
    let body = Limited::new(body, limit).collect().await.map_err(|e| {
        ErrorBody::new(ErrorCode::TooLarge, Fault::Client, format!("reading the body (at most {limit} bytes): {e}"))
    })?;
    let body = body.to_bytes();
    let header = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (lease, epoch) = (header(LEASE_HEADER), header(EPOCH_HEADER).parse().unwrap_or(0));
    let signed = Signed {
        method: head.method.as_str(),
        target: head.uri.path_and_query().map(|target| target.as_str()).unwrap_or_default(),
        lease,
        epoch,
        unix_millis: header(TIME_HEADER).parse().unwrap_or(0),
        body: &body,
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map(|since| since.as_millis() as i64).unwrap_or(0);
    sandbox
        .verifier
        .verify(&signed, header(SIGNATURE_HEADER), now)
        .map_err(|e| ErrorBody::new(ErrorCode::BadSignature, Fault::Client, e.to_string()))?;

    if path == "/bind" {
        let bind: Bind = parse(&body)?;
        sandbox.binding.bind(&bind.lease, bind.epoch, bind.ttl_seconds).map_err(wrong_lease)?;
        return Ok(plain(StatusCode::NO_CONTENT, Bytes::new()));
    }
    sandbox.binding.check(lease, epoch).map_err(wrong_lease)?;
    let query = |name: &str| query(head.uri.query().unwrap_or_default(), name);
    match (&head.method, path.as_str()) {
        (&Method::POST, "/exec") => {
            let request: ExecRequest = parse(&body)?;
            let result = sandbox.executor.run(request).await.map_err(exec_error)?;
            Ok(json(StatusCode::OK, &*result))
        }
        (&Method::POST, "/renew") => {
            let renew: RenewRequest = parse(&body)?;
            sandbox.binding.bind(lease, epoch, renew.ttl_seconds).map_err(wrong_lease)?;
            Ok(plain(StatusCode::NO_CONTENT, Bytes::new()))
        }
        (&Method::PUT, "/files") => {
            let path = query("path").unwrap_or_default();
            files::put(&path, query("mode").as_deref(), &body).await.map_err(file_error)?;
            Ok(plain(StatusCode::NO_CONTENT, Bytes::new()))
        }
        (&Method::GET, "/files") => {
            let bytes = files::get(&query("path").unwrap_or_default()).await.map_err(file_error)?;
            Ok(plain(StatusCode::OK, bytes.into()))
        }
        (method, path) => {
            let message = format!("{method} {path} is nothing that sandboxd does");
            Err(ErrorBody::new(ErrorCode::BadRequest, Fault::Client, message))
        }
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ErrorBody> {
    serde_json::from_slice(body)
        .map_err(|e| ErrorBody::new(ErrorCode::BadRequest, Fault::Client, format!("reading the body: {e}")))
}

/// The decoded value of a query parameter.
fn query(query: &str, name: &str) -> Option<String> {
    let value = query.split('&').find_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name))?.1;
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

fn wrong_lease(error: LeaseError) -> ErrorBody {
    ErrorBody::new(ErrorCode::WrongLease, Fault::Client, error.to_string())
}

fn exec_error(error: ExecError) -> ErrorBody {
    match error {
        ExecError::NoProgram => ErrorBody::new(ErrorCode::BadRequest, Fault::Client, error.to_string()),
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
    answer.headers_mut().insert("content-type", hyper::header::HeaderValue::from_static("application/json"));
    answer
}

fn plain(status: StatusCode, bytes: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(bytes));
    *answer.status_mut() = status;
    answer
}
