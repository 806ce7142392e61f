//! Loopback ports of relays. The gateway fetches their connections, one call for each.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional_with_sizes};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Maximum open ports.
const MAX_PORTS: usize = 8;
/// Maximum connections that the gateway has not fetched yet; the kernel refuses more.
const BACKLOG: u32 = 64;
/// Lower ports are reserved for root.
const LOWEST_PORT: u16 = 1024;
/// Buffer size for each direction: many connections are open at one time, and a request is seldom larger.
const BUFFER: usize = 8 << 10;

#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    #[error("port {0} cannot be relayed; choose one from {LOWEST_PORT} on")]
    BadPort(u16),
    #[error("{MAX_PORTS} ports are relayed already")]
    TooMany,
    #[error("listening on port {port} of the loopback address: {source}")]
    Listen { port: u16, source: std::io::Error },
}

/// The open ports. Cloning is cheap.
#[derive(Clone, Default)]
pub struct Relays(Arc<Mutex<HashMap<u16, Arc<TcpListener>>>>);

impl Relays {
    /// The next connection to the port. The first call opens the port, and it stays open. `None` at the time limit.
    pub async fn next(&self, port: u16, wait: Duration) -> Result<Option<TcpStream>, RelayError> {
        let listener = self.listener(port)?;
        match tokio::time::timeout(wait, listener.accept()).await {
            Ok(Ok((stream, _))) => {
                let _ = stream.set_nodelay(true);
                Ok(Some(stream))
            }
            Ok(Err(source)) => Err(RelayError::Listen { port, source }),
            Err(_) => Ok(None),
        }
    }

    fn listener(&self, port: u16) -> Result<Arc<TcpListener>, RelayError> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(listener) = open.get(&port) {
            return Ok(listener.clone());
        }
        if port < LOWEST_PORT {
            return Err(RelayError::BadPort(port));
        }
        if open.len() >= MAX_PORTS {
            return Err(RelayError::TooMany);
        }
        let listen = || {
            let socket = TcpSocket::new_v4()?;
            socket.set_reuseaddr(true)?;
            socket.bind((Ipv4Addr::LOCALHOST, port).into())?;
            socket.listen(BACKLOG)
        };
        let listener = Arc::new(listen().map_err(|source| RelayError::Listen { port, source })?);
        open.insert(port, listener.clone());
        Ok(listener)
    }
}

/// Copies both ways until both sides have closed, or one has failed.
pub async fn join(mut inside: TcpStream, mut gateway: impl AsyncRead + AsyncWrite + Unpin) {
    let _ = copy_bidirectional_with_sizes(&mut inside, &mut gateway, BUFFER, BUFFER).await;
}
