//! Loopback ports of relays. The gateway fetches their connections, one call for each.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Maximum open ports.
const MAX_PORTS: usize = 8;
/// Maximum connections that the gateway has not fetched yet; the kernel refuses more.
const BACKLOG: u32 = 64;
/// Lower ports are reserved for root.
const LOWEST_PORT: u16 = 1024;

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

/// Copies both ways until the gateway has closed its side, or one side has failed. The gateway closes after its last
/// answer, and then takes no more requests. A process inside that keeps its end open must not keep the connection: with
/// many of them it would use up all places, and calls of the lease would find none.
pub async fn join(mut inside: TcpStream, gateway: impl AsyncRead + AsyncWrite + Unpin) {
    let (mut from_inside, mut to_inside) = inside.split();
    let (mut from_gateway, mut to_gateway) = tokio::io::split(gateway);
    let requests = async {
        if tokio::io::copy(&mut from_inside, &mut to_gateway).await.is_ok() && to_gateway.shutdown().await.is_ok() {
            // The answer to the last request is still to come.
            std::future::pending::<()>().await;
        }
    };
    let answers = async {
        let _ = tokio::io::copy(&mut from_gateway, &mut to_inside).await;
        let _ = to_inside.shutdown().await;
    };
    tokio::select! {
        () = requests => {}
        () = answers => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    async fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (process, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        (process.unwrap(), accepted.unwrap().0)
    }

    #[tokio::test]
    async fn a_process_that_keeps_its_end_open_does_not_keep_the_connection() {
        let (mut process, inside) = connected().await;
        let (gateway, mut far) = tokio::io::duplex(64);
        let joined = tokio::spawn(join(inside, gateway));
        process.write_all(b"ask").await.unwrap();
        let mut asked = [0; 3];
        far.read_exact(&mut asked).await.unwrap();
        far.write_all(b"answer").await.unwrap();
        far.shutdown().await.unwrap();
        joined.await.unwrap();
        let mut answer = String::new();
        process.read_to_string(&mut answer).await.unwrap();
        assert_eq!((&asked, answer.as_str()), (b"ask", "answer"));
    }

    #[tokio::test]
    async fn a_process_that_has_sent_its_last_request_still_gets_the_answer() {
        let (mut process, inside) = connected().await;
        let (gateway, mut far) = tokio::io::duplex(64);
        let joined = tokio::spawn(join(inside, gateway));
        process.write_all(b"ask").await.unwrap();
        process.shutdown().await.unwrap();
        let mut asked = String::new();
        far.read_to_string(&mut asked).await.unwrap();
        far.write_all(b"answer").await.unwrap();
        drop(far);
        joined.await.unwrap();
        let mut answer = String::new();
        process.read_to_string(&mut answer).await.unwrap();
        assert_eq!((asked.as_str(), answer.as_str()), ("ask", "answer"));
    }
}
