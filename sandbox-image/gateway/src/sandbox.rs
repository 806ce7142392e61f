//! sandboxd, as the gateway reaches it: pooled HTTP/1.1 connections, every request signed for one lease.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use grpo_sandbox_protocol::signature::{EPOCH_HEADER, LEASE_HEADER, SIGNATURE_HEADER, TIME_HEADER};
use grpo_sandbox_protocol::{Bind, IDLE_CONNECTION, MAX_FILE_BYTES, SANDBOXD_PORT, Signed, Signer};
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::CONNECTION;
use hyper::{Method, Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::sync::Semaphore;

/// Each takes a connection, and two seconds where nobody listens.
const LOOKS: usize = 512;

#[derive(Debug, thiserror::Error)]
#[error("{doing} at {ip}: {message}")]
pub struct SandboxError {
    pub doing: String,
    pub ip: String,
    pub message: String,
}

/// Whose request it is.
#[derive(Clone, Copy, Debug)]
pub struct Holder<'a> {
    pub ip: &'a str,
    pub lease: &'a str,
    pub epoch: u64,
}

/// Talks to sandboxds.
pub struct Sandboxes {
    client: Client<HttpConnector, Full<Bytes>>,
    signer: Signer,
    /// Looks whether sandboxds answer, at one time: of a pool that is taken over every pod is looked at.
    looks: Semaphore,
}

impl Sandboxes {
    pub fn new(signer: Signer) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(Duration::from_secs(2)));
        let client = Client::builder(TokioExecutor::new())
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
        // Most are not asked again for long: their connections would be idle ones.
        let request = Request::get(format!("http://{ip}:{SANDBOXD_PORT}/healthz")).header(CONNECTION, "close");
        let (Ok(request), Ok(_look)) = (request.body(Full::default()), self.looks.acquire().await) else {
            return false;
        };
        let answer = tokio::time::timeout(Duration::from_secs(2), self.client.request(request)).await;
        answer.is_ok_and(|answer| answer.is_ok_and(|answer| answer.status() == StatusCode::OK))
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

    /// Tells sandboxd to end, so that its container begins anew.
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

    /// Passes a request on and answers what sandboxd does.
    pub async fn send(
        &self,
        holder: Holder<'_>,
        method: Method,
        target: &str,
        body: Bytes,
        timeout: Duration,
    ) -> Result<(StatusCode, Bytes), SandboxError> {
        let doing = format!("{method} {}", target.split('?').next().unwrap_or(target));
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map(|since| since.as_millis() as i64)
            .unwrap_or(0);
        let signature = self.signer.sign(&Signed {
            method: method.as_str(),
            target,
            lease: holder.lease,
            epoch: holder.epoch,
            unix_millis: now,
            body: &body,
        });
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}:{SANDBOXD_PORT}{target}", holder.ip))
            .header(SIGNATURE_HEADER, signature)
            .header(LEASE_HEADER, holder.lease)
            .header(EPOCH_HEADER, holder.epoch)
            .header(TIME_HEADER, now)
            .body(Full::new(body))
            .map_err(|e| error(&doing, holder.ip, e.to_string()))?;
        let exchange = async {
            let answer = self
                .client
                .request(request)
                .await
                .map_err(|e| error(&doing, holder.ip, e.to_string()))?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), MAX_FILE_BYTES + (1 << 20))
                .collect()
                .await;
            let body = body.map_err(|e| error(&doing, holder.ip, e.to_string()))?.to_bytes();
            Ok((status, body))
        };
        let late = || error(&doing, holder.ip, format!("no answer within {timeout:?}"));
        tokio::time::timeout(timeout, exchange).await.map_err(|_| late())?
    }
}

fn error(doing: &str, ip: &str, message: String) -> SandboxError {
    SandboxError {
        doing: doing.to_owned(),
        ip: ip.to_owned(),
        message,
    }
}
