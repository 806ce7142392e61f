//! A server of OpenAI's chat completions on this machine, as the engine agents of a pool with an external server ask
//! it. What it answers is the caller's: [`crate::judge::server`] and [`crate::teacher::server`].

use axum::Router;
use axum::routing::MethodRouter;
use std::io;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A server. It ends when this value is dropped.
#[derive(Debug)]
pub struct ChatServer {
    /// With the `/v1` at the end.
    pub url: String,
    serving: JoinHandle<()>,
}

impl Drop for ChatServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl ChatServer {
    /// Listens on a port of this address.
    pub async fn start(address: &str, answers: MethodRouter) -> io::Result<Self> {
        let router = Router::new().route("/v1/chat/completions", answers);
        let listener = TcpListener::bind((address, 0)).await?;
        let url = format!("http://{}/v1", listener.local_addr()?);
        let serving = tokio::spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { url, serving })
    }
}
