//! The client of sandboxd: pooled HTTP/1.1 connections, every request signed for one lease.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use grpo_sandbox_protocol::signature::{EPOCH_HEADER, LEASE_HEADER, SIGNATURE_HEADER, TIME_HEADER};
use grpo_sandbox_protocol::{
    Bind, ErrorBody, IDLE_CONNECTION, MAX_FILE_BYTES, RELAY_PROTOCOL, SANDBOXD_PORT, Signed, Signer,
};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::CONNECTION;
use hyper::http::request::Builder;
use hyper::http::response::Parts;
use hyper::upgrade::Upgraded;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::sync::Semaphore;

/// Maximum concurrent health checks. Each takes a connection, and two seconds if no process listens.
const LOOKS: usize = 512;

use crate::clock::time_of_day;
use crate::index::ActiveLease;

#[derive(Debug, thiserror::Error)]
#[error("{doing} at {ip}: {message}")]
pub struct SandboxError {
    pub doing: String,
    pub ip: String,
    pub message: String,
    /// sandboxd's own error, if it answered.
    pub answer: Option<Box<ErrorBody>>,
}

/// The lease that a request is for, and its sandbox.
#[derive(Clone, Copy, Debug)]
pub struct Holder<'a> {
    pub ip: &'a str,
    pub lease: &'a str,
    pub epoch: u64,
}

impl<'a> Holder<'a> {
    pub fn of(held: &'a ActiveLease) -> Self {
        Self {
            ip: &held.ip,
            lease: &held.entry.lease,
            epoch: held.entry.epoch,
        }
    }
}

/// Longest pause within a response. sandboxd has the whole response before it begins to send.
const PAUSE: Duration = Duration::from_secs(30);

/// Talks to sandboxds.
pub struct Sandboxes {
    client: Client<HttpConnector, Full<Bytes>>,
    signer: Signer,
    /// Limits concurrent health checks: after a takeover, every pod of the pool is checked.
    looks: Semaphore,
}

impl Sandboxes {
    pub fn new(signer: Signer) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(Duration::from_secs(2)));
        let client = Client::builder(TokioExecutor::new())
            // With it, idle connections to pods of lost nodes, which close none, do not stay.
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_CONNECTION / 2)
            .pool_max_idle_per_host(8)
            .build(connector);
        Self {
            client,
            signer,
            looks: Semaphore::new(LOOKS),
        }
    }

    /// Whether sandboxd answers at the address.
    pub async fn answers(&self, ip: &str) -> bool {
        // Most of these sandboxd are not asked again for long, so a pooled connection would stay idle.
        let Ok(_look) = self.looks.acquire().await else {
            return false;
        };
        self.is_well(health(ip).header(CONNECTION, "close")).await
    }

    /// Opens a connection that the next request will find.
    pub async fn greet(&self, ip: &str) {
        self.is_well(health(ip)).await;
    }

    async fn is_well(&self, request: Builder) -> bool {
        let Ok(request) = request.body(Full::default()) else {
            return false;
        };
        let exchange = async {
            let answer = self.client.request(request).await.ok()?;
            let is_well = answer.status() == StatusCode::OK;
            // Read to the end; otherwise the connection cannot be used again.
            answer.into_body().collect().await.ok().map(|_| is_well)
        };
        let answered = tokio::time::timeout(Duration::from_secs(2), exchange).await;
        answered.is_ok_and(|answer| answer == Some(true))
    }

    pub async fn bind(&self, holder: Holder<'_>, ttl_seconds: u64) -> Result<(), SandboxError> {
        let bind = Bind {
            lease: holder.lease.to_owned(),
            epoch: holder.epoch,
            ttl_seconds,
        };
        let body = serde_json::to_vec(&bind).unwrap_or_default();
        let (status, body) = self
            .send(holder, Method::POST, "/bind", body.into(), Duration::from_secs(5))
            .await?;
        match status.is_success() {
            true => Ok(()),
            false => Err(error("binding", holder.ip, String::from_utf8_lossy(&body).into_owned())),
        }
    }

    /// Tells sandboxd to end, so that its container restarts.
    pub async fn reset(&self, holder: Holder<'_>) -> Result<(), SandboxError> {
        let within = Duration::from_secs(5);
        let (status, body) = self.send(holder, Method::POST, "/reset", Bytes::new(), within).await?;
        match status.is_success() {
            true => Ok(()),
            false => Err(error(
                "resetting",
                holder.ip,
                String::from_utf8_lossy(&body).into_owned(),
            )),
        }
    }

    /// Sends a request and returns the whole response.
    pub async fn send(
        &self,
        holder: Holder<'_>,
        method: Method,
        target: &str,
        body: Bytes,
        timeout: Duration,
    ) -> Result<(StatusCode, Bytes), SandboxError> {
        let doing = doing(&method, target);
        let exchange = async {
            let answer = self.ask(holder, method, target, body, None).await?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), MAX_FILE_BYTES + (1 << 20))
                .collect()
                .await;
            let body = body.map_err(|e| error(&doing, holder.ip, e.to_string()))?.to_bytes();
            Ok((status, body))
        };
        in_time(&doing, holder.ip, timeout, exchange).await
    }

    /// Sends a request and returns the response as soon as it begins; the body is streamed. The deadline is for its
    /// begin.
    pub async fn pass(
        &self,
        holder: Holder<'_>,
        method: Method,
        target: &str,
        body: Bytes,
        timeout: Duration,
    ) -> Result<(Parts, Body), SandboxError> {
        let doing = doing(&method, target);
        let answer = in_time(&doing, holder.ip, timeout, self.ask(holder, method, target, body, None)).await?;
        let (head, body) = answer.into_parts();
        let frames = futures::stream::unfold(body, |mut body| async move {
            // A sandbox that is gone does not close its connections.
            match tokio::time::timeout(PAUSE, body.frame()).await {
                Ok(None) => None,
                Ok(Some(Ok(frame))) => Some((Ok(frame.into_data().unwrap_or_default()), body)),
                Ok(Some(Err(error))) => Some((Err(error.to_string()), body)),
                Err(_) => Some((Err(format!("nothing came for {PAUSE:?}")), body)),
            }
        });
        Ok((head, Body::from_stream(frames)))
    }

    /// Asks for a connection from a port inside. `None` if no process has connected within the time limit, which
    /// sandboxd enforces.
    pub async fn relayed(
        &self,
        holder: Holder<'_>,
        port: u16,
        wait: Duration,
    ) -> Result<Option<Upgraded>, SandboxError> {
        let target = format!("/relay?port={port}&waitSeconds={}", wait.as_secs());
        let doing = doing(&Method::POST, &target);
        let exchange = async {
            let mut answer = self
                .ask(holder, Method::POST, &target, Bytes::new(), Some(RELAY_PROTOCOL))
                .await?;
            match answer.status() {
                StatusCode::SWITCHING_PROTOCOLS => {
                    let upgraded = hyper::upgrade::on(&mut answer).await;
                    upgraded.map(Some).map_err(|e| error(&doing, holder.ip, e.to_string()))
                }
                StatusCode::NO_CONTENT => Ok(None),
                _ => {
                    let body = Limited::new(answer.into_body(), 64 << 10).collect().await;
                    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
                    Err(SandboxError {
                        answer: serde_json::from_slice(&body).ok(),
                        ..error(&doing, holder.ip, String::from_utf8_lossy(&body).into_owned())
                    })
                }
            }
        };
        in_time(&doing, holder.ip, wait + PAUSE, exchange).await
    }

    async fn ask(
        &self,
        holder: Holder<'_>,
        method: Method,
        target: &str,
        body: Bytes,
        upgrade: Option<&str>,
    ) -> Result<Response<Incoming>, SandboxError> {
        let doing = doing(&method, target);
        // sandboxd has another clock, so the time of day is compared.
        let now = time_of_day();
        let signature = self.signer.sign(&Signed {
            method: method.as_str(),
            target,
            lease: holder.lease,
            epoch: holder.epoch,
            unix_millis: now,
            body: &body,
        });
        let mut request = Request::builder()
            .method(method)
            .uri(url(holder.ip, target))
            .header(SIGNATURE_HEADER, signature)
            .header(LEASE_HEADER, holder.lease)
            .header(EPOCH_HEADER, holder.epoch)
            .header(TIME_HEADER, now);
        if let Some(protocol) = upgrade {
            request = request
                .header(header::CONNECTION, "upgrade")
                .header(header::UPGRADE, protocol);
        }
        let request = request
            .body(Full::new(body))
            .map_err(|e| error(&doing, holder.ip, e.to_string()))?;
        let answer = self.client.request(request).await;
        answer.map_err(|e| error(&doing, holder.ip, e.to_string()))
    }
}

fn health(ip: &str) -> Builder {
    Request::get(url(ip, "/healthz"))
}

/// The URL of sandboxd. An IPv6 address stands in brackets.
fn url(ip: &str, target: &str) -> String {
    match ip.contains(':') {
        true => format!("http://[{ip}]:{SANDBOXD_PORT}{target}"),
        false => format!("http://{ip}:{SANDBOXD_PORT}{target}"),
    }
}

fn doing(method: &Method, target: &str) -> String {
    format!("{method} {}", target.split('?').next().unwrap_or(target))
}

async fn in_time<T>(
    doing: &str,
    ip: &str,
    timeout: Duration,
    exchange: impl Future<Output = Result<T, SandboxError>>,
) -> Result<T, SandboxError> {
    let late = || error(doing, ip, format!("no answer within {timeout:?}"));
    tokio::time::timeout(timeout, exchange).await.map_err(|_| late())?
}

fn error(doing: &str, ip: &str, message: String) -> SandboxError {
    SandboxError {
        doing: doing.to_owned(),
        ip: ip.to_owned(),
        message,
        answer: None,
    }
}

#[cfg(test)]
mod tests;
