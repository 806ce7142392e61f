//! Simulated engine agents: every pod of a control plane with KWOK has the same address, and this server listens there.

use std::net::{Ipv4Addr, SocketAddr};

use axum::{Json, Router, routing::get};
use grpo_contracts::RunConfig;
use grpo_engine_protocol::{AgentStatus, BASE_VERSION};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use super::RigError;

/// Serves until it is dropped.
pub struct Agents(JoinHandle<()>);

impl Agents {
    pub async fn serve(at: Ipv4Addr) -> Result<Self, RigError> {
        let address = SocketAddr::from((at, RunConfig::AGENT_PORT));
        let listener = TcpListener::bind(address)
            .await
            .map_err(|source| RigError::Agents { address, source })?;
        let router = Router::new().route(
            "/agent/v1/status",
            get(async || Json(AgentStatus::serving(BASE_VERSION))),
        );
        Ok(Self(tokio::spawn(async move {
            // Ends only when dropped.
            let _ = axum::serve(listener, router).await;
        })))
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The body that an `http://` address on this machine returns.
pub async fn fetch(url: &str) -> Option<String> {
    let (host, path) = url.strip_prefix("http://")?.split_once('/')?;
    let mut stream = TcpStream::connect(host).await.ok()?;
    let request = format!("GET /{path} HTTP/1.0\r\nHost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
}
