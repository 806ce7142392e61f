//! The driver's side of the conversation with a gateway, with as little work as possible, because it shares the machine
//! with the measured program.

use bytes::Bytes;
use grpo_sandbox_protocol::{Demand, IDLE_CONNECTION, ImageDemand, Lease, LeaseRequest, PoolState, Priority};
use http_body_util::{BodyExt, Full};
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use serde::{Serialize, de::DeserializeOwned};

use super::SandboxBenchError;

/// Tries of a call whose connection breaks.
const TRIES: u32 = 3;
pub const RUN: &str = "bench";
pub const IMAGE: &str = "example.com/task:1";

/// Talks to one gateway. Cloning is cheap, and shares connections.
#[derive(Clone)]
pub struct Caller {
    client: Client<HttpConnector, Full<Bytes>>,
    base: String,
    /// `Bearer …`, for a server that requires it.
    bearer: Option<HeaderValue>,
}

impl Caller {
    pub fn new(base: String) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_CONNECTION / 2)
            .build(connector);
        Self {
            client,
            base,
            bearer: None,
        }
    }

    /// Sends a token with every call.
    pub fn with_token(mut self, token: &str) -> Self {
        self.bearer = HeaderValue::from_str(&format!("Bearer {token}")).ok();
        self
    }

    /// Returns an answer with any status.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), SandboxBenchError> {
        self.send_with(method, path, &[], body).await
    }

    /// The same, with headers.
    pub async fn send_with(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, String)],
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), SandboxBenchError> {
        let failed = |what: String| SandboxBenchError::Call {
            doing: format!("{method} {path} of {}", self.base),
            what,
        };
        let request = || {
            let named = Request::builder()
                .method(method.clone())
                .uri(format!("{}{path}", self.base));
            let named = match &self.bearer {
                Some(bearer) => named.header(AUTHORIZATION, bearer),
                None => named,
            };
            let all = headers
                .iter()
                .fold(named, |request, (name, value)| request.header(*name, value));
            all.body(Full::new(body.clone()))
                .map_err(|error| failed(error.to_string()))
        };
        // The server may close a connection while the client begins to use it. Every call carries an id, so the client
        // can repeat it, as a driver does.
        let mut tries = 0;
        let answer = loop {
            tries += 1;
            match self.client.request(request()?).await {
                Ok(answer) => break answer,
                Err(error) if error.is_connect() || tries == TRIES => return Err(failed(error.to_string())),
                Err(_) => {}
            }
        };
        let status = answer.status();
        let body = answer
            .into_body()
            .collect()
            .await
            .map_err(|error| failed(error.to_string()))?;
        Ok((status, body.to_bytes()))
    }

    /// Returns an answer only if its status is a success.
    pub async fn ask(&self, method: Method, path: &str, body: impl Serialize) -> Result<Bytes, SandboxBenchError> {
        let body = serde_json::to_vec(&body).unwrap_or_default();
        let (status, answer) = self.send(method.clone(), path, body.into()).await?;
        match status.is_success() {
            true => Ok(answer),
            false => Err(SandboxBenchError::Call {
                doing: format!("{method} {path} of {}", self.base),
                what: format!("{status}: {}", String::from_utf8_lossy(&answer)),
            }),
        }
    }

    pub async fn lease(&self, id: &str, priority: Priority) -> Result<Lease, SandboxBenchError> {
        let request = LeaseRequest {
            id: id.to_owned(),
            run: RUN.into(),
            image: IMAGE.into(),
            ttl_seconds: 3600,
            wait_seconds: 60,
            priority,
        };
        read(&self.ask(Method::POST, "/v1/leases", request).await?)
    }

    pub async fn release(&self, id: &str) -> Result<(), SandboxBenchError> {
        let path = format!("/v1/leases/{id}");
        let (status, _) = self.send(Method::DELETE, &path, Bytes::new()).await?;
        match status.is_success() {
            true => Ok(()),
            false => Err(SandboxBenchError::Call {
                doing: format!("DELETE {path}"),
                what: status.to_string(),
            }),
        }
    }

    pub async fn want(&self, count: usize) -> Result<(), SandboxBenchError> {
        let demand = Demand {
            run: RUN.into(),
            images: vec![ImageDemand {
                image: IMAGE.into(),
                count: count as u32,
            }],
        };
        self.ask(Method::PUT, "/v1/demand", demand).await.map(|_| ())
    }

    pub async fn pool(&self) -> Result<PoolState, SandboxBenchError> {
        read(&self.ask(Method::GET, "/v1/pool", ()).await?)
    }

    /// A counter of the gateway's metrics.
    pub async fn counter(&self, name: &str) -> Result<f64, SandboxBenchError> {
        let text = self.ask(Method::GET, "/metrics", ()).await?;
        let text = String::from_utf8_lossy(&text);
        let line = text.lines().find(|line| line.split([' ', '{']).next() == Some(name));
        let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
        value.ok_or_else(|| SandboxBenchError::Wrong(format!("the gateway's metrics have no {name}")))
    }
}

/// A JSON answer.
pub fn read<T: DeserializeOwned>(body: &Bytes) -> Result<T, SandboxBenchError> {
    serde_json::from_slice(body).map_err(|error| SandboxBenchError::Call {
        doing: "reading an answer of the gateway".into(),
        what: error.to_string(),
    })
}
