//! The gateway's own API, called in-process. Its checks, counters and waits therefore apply to clients of other systems
//! too.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header::CONTENT_LENGTH;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use grpo_sandbox_protocol::{
    ErrorBody, ErrorCode, ExecRequest, ExecResult, FaultOrigin, Lease, LeaseRequest, MAX_FILE_BYTES, RenewRequest, Room,
};
use http_body_util::{BodyExt, Limited};
use hyper::body::Body as _;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tower::ServiceExt;

use crate::body::ARRIVES_WITHIN;
use crate::core::{Core, now};

/// Maximum size of our own responses: a file, or JSON about one.
const MAX_ANSWER: usize = MAX_FILE_BYTES + (1 << 20);

/// Shortest pause between two renewals.
const SOONEST_RENEWAL: Duration = Duration::from_millis(100);

#[derive(Clone)]
pub struct Own {
    pub core: Arc<Core>,
    api: Router,
    /// Room for the bodies of these in-process calls.
    bodies: Room,
    /// Room for their responses.
    answers: Room,
}

impl Own {
    pub fn new(core: Arc<Core>, api: Router) -> Self {
        Self {
            core,
            api,
            bodies: Room::of_files(1),
            answers: Room::of_files(1),
        }
    }

    pub async fn lease(&self, request: &LeaseRequest) -> Result<Lease, ErrorBody> {
        self.call(Method::POST, "/v1/leases", request).await
    }

    pub async fn look(&self, lease: &str) -> Result<Lease, ErrorBody> {
        parsed(&self.send(Method::GET, &path(lease, ""), Bytes::new()).await?)
    }

    pub async fn renew(&self, lease: &str, ttl: Duration) -> Result<Lease, ErrorBody> {
        let renew = RenewRequest {
            ttl_seconds: ttl.as_secs(),
        };
        self.call(Method::POST, &path(lease, "/renew"), &renew).await
    }

    pub async fn release(&self, lease: &str) -> Result<(), ErrorBody> {
        self.send(Method::DELETE, &path(lease, ""), Bytes::new())
            .await
            .map(|_| ())
    }

    /// Runs a command to its end.
    pub async fn exec(&self, lease: &str, ttl: Duration, request: &ExecRequest) -> Result<ExecResult, ErrorBody> {
        self.in_lease(lease, ttl, "/exec", request).await
    }

    /// Renews a lease until `work` ends, because the caller does not renew while it waits.
    async fn while_renewing<T>(
        &self,
        lease: &str,
        ttl: Duration,
        work: impl Future<Output = Result<T, ErrorBody>>,
    ) -> Result<T, ErrorBody> {
        let mut next = self.renew(lease, ttl).await.map(|lease| before_the_end_of(&lease))?;
        let renewing = async {
            loop {
                tokio::time::sleep(next).await;
                // If this fails, the work itself reports the error.
                let renewed = self.renew(lease, ttl).await;
                next = renewed.map_or(next, |lease| before_the_end_of(&lease));
            }
        };
        tokio::select! {
            done = work => done,
            () = renewing => unreachable!("it renews for ever"),
        }
    }

    pub async fn put(&self, lease: &str, file: &str, mode: &str, bytes: Bytes) -> Result<(), ErrorBody> {
        let file = utf8_percent_encode(file, NON_ALPHANUMERIC);
        let target = path(lease, &format!("/files?path={file}&mode={mode}"));
        self.send(Method::PUT, &target, bytes).await.map(|_| ())
    }

    pub async fn get(&self, lease: &str, file: &str) -> Result<Bytes, ErrorBody> {
        let file = utf8_percent_encode(file, NON_ALPHANUMERIC);
        let target = path(lease, &format!("/files?path={file}"));
        self.send(Method::GET, &target, Bytes::new()).await
    }

    pub async fn put_tree(&self, lease: &str, folder: &str, tar: Bytes) -> Result<(), ErrorBody> {
        let folder = utf8_percent_encode(folder, NON_ALPHANUMERIC);
        let target = path(lease, &format!("/tree?path={folder}"));
        self.send(Method::PUT, &target, tar).await.map(|_| ())
    }

    /// A call in a lease, on a path below the lease's. The lease is renewed meanwhile.
    pub async fn in_lease<T: DeserializeOwned>(
        &self,
        lease: &str,
        ttl: Duration,
        rest: &str,
        body: &impl Serialize,
    ) -> Result<T, ErrorBody> {
        let target = path(lease, rest);
        self.while_renewing(lease, ttl, self.call(Method::POST, &target, body))
            .await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        target: &str,
        body: &impl Serialize,
    ) -> Result<T, ErrorBody> {
        let body = serde_json::to_vec(body).map_err(|error| internal("writing a request", &error))?;
        parsed(&self.send(method, target, body.into()).await?)
    }

    async fn send(&self, method: Method, target: &str, body: Bytes) -> Result<Bytes, ErrorBody> {
        let request = Request::builder().method(method).uri(target).body(Body::from(body));
        let mut request = request.map_err(|error| internal(target, &error))?;
        request.extensions_mut().insert(self.bodies.clone());
        let answer = match self.api.clone().oneshot(request).await {
            Ok(answer) => answer,
            Err(never) => match never {},
        };
        let status = answer.status();
        let body = self.read(target, answer).await?;
        match status.is_success() {
            true => Ok(body),
            false => Err(refused(target, status, &body)),
        }
    }

    /// Reads a whole response once there is room for it. The bytes keep the room until the last one is dropped.
    async fn read(&self, target: &str, answer: Response) -> Result<Bytes, ErrorBody> {
        let said = answer
            .headers()
            .get(CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok());
        let said = said.and_then(|length| length.parse().ok());
        let declared = said.or_else(|| answer.body().size_hint().exact().map(|bytes| bytes as usize));
        let whole = async {
            let share = self.answers.take(declared.unwrap_or(MAX_ANSWER)).await;
            let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
            let body = body.map_err(|error| internal(target, &error))?.to_bytes();
            Ok(share.hold(body.into()))
        };
        tokio::time::timeout(ARRIVES_WITHIN, whole).await.map_err(|_| {
            let message = format!(
                "{target}: the answer did not arrive within {ARRIVES_WITHIN:?}, or others took all the room; ask again"
            );
            ErrorBody::new(ErrorCode::Unavailable, FaultOrigin::Infrastructure, message)
        })?
    }
}

/// The time until the next renewal. It follows from the granted expiry, because the pool may grant less time than
/// requested.
fn before_the_end_of(lease: &Lease) -> Duration {
    let left = (lease.expires_at - now()).max(0).unsigned_abs();
    Duration::from_millis(left / 3).max(SOONEST_RENEWAL)
}

/// The path of a lease. Its id is the caller's and may contain any character.
fn path(lease: &str, rest: &str) -> String {
    format!("/v1/leases/{}{rest}", utf8_percent_encode(lease, NON_ALPHANUMERIC))
}

fn refused(target: &str, status: StatusCode, body: &[u8]) -> ErrorBody {
    serde_json::from_slice(body).unwrap_or_else(|_| {
        let said = String::from_utf8_lossy(body);
        internal(target, &format_args!("answered {status}: {said}"))
    })
}

fn parsed<T: DeserializeOwned>(body: &[u8]) -> Result<T, ErrorBody> {
    // A response with status but no body.
    let body = if body.is_empty() { b"null" } else { body };
    serde_json::from_slice(body).map_err(|error| internal("reading an answer", &error))
}

fn internal(doing: &str, error: &dyn Display) -> ErrorBody {
    ErrorBody::new(
        ErrorCode::Internal,
        FaultOrigin::Infrastructure,
        format!("{doing}: {error}"),
    )
}
