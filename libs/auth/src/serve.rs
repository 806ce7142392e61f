//! Serves a router over HTTP/1.1, with bounds on connections and on the time of a request's head.
//!
//! [`places`](crate::places) says which connections there may be; the guard tells which of them are authorised. A
//! connection has a deadline for its first request, and a longer one for each later request. No deadline runs while a
//! request is answered: commands run for hours, and answers are streamed.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::places::{Limits, Place, Places};

/// Maximum connections. A driver has one for each lease that it waits for and each command that it runs, up to ten
/// thousand; see [`Limits::of`]. Each can make the service hold a head of [`LONGEST_HEAD`].
const CONNECTIONS: usize = 20_480;
/// Open files that a service may need: a gateway has a connection to a sandbox for most of those that it serves.
const OPEN_FILES: u64 = 65_536;
/// Buffer of a connection, and so the longest head. A token has at most 8 KiB, and the longest path of a file has
/// 12 KiB in a query: 4 KiB, with each byte encoded.
const LONGEST_HEAD: usize = 32 << 10;
/// Deadline of a connection's first request. A client that opened it for nothing sees that it is closed.
const FIRST_REQUEST: Duration = Duration::from_secs(30);
/// How long a connection is kept between two requests, and the deadline of a later head. Longer than the 90 s for which
/// HTTP clients keep an idle connection, so that no client sends into a connection that is being closed.
const BETWEEN_REQUESTS: Duration = Duration::from_secs(120);
/// Pause after a connection could not be accepted, because no descriptor was free.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);

/// The bounds on connections.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub limits: Limits,
    pub first_request: Duration,
    pub between_requests: Duration,
}

impl Bounds {
    /// Those of this process. Half of its open files is left to the connections that it makes itself.
    fn of_process() -> Self {
        let files = usize::try_from(open_files()).unwrap_or(usize::MAX);
        Self {
            limits: Limits::of(CONNECTIONS.min(files / 2)),
            first_request: FIRST_REQUEST,
            between_requests: BETWEEN_REQUESTS,
        }
    }
}

/// How many files this process may open, raised as far as it needs and may: container runtimes start processes with a
/// limit of 1,024, and let them raise it.
fn open_files() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return OPEN_FILES;
    };
    let wanted = hard.min(OPEN_FILES);
    match soft < wanted && setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).is_ok() {
        true => wanted,
        false => soft,
    }
}

/// Serves until `shutdown`, and then until the requests in progress are answered.
pub async fn serve(listener: TcpListener, router: Router, shutdown: impl Future<Output = ()>) {
    serve_within(Bounds::of_process(), listener, router, shutdown).await;
}

/// As [`serve`], with other bounds.
pub async fn serve_within(bounds: Bounds, listener: TcpListener, router: Router, shutdown: impl Future<Output = ()>) {
    let places = Places::new(bounds.limits);
    // Each connection holds a receiver until it has ended.
    let (end, ending) = watch::channel(());
    let mut shutdown = pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.as_mut() => break,
        };
        match accepted {
            Ok((stream, peer)) => match places.take(peer.ip()) {
                Some(place) => {
                    tokio::spawn(attend(stream, place, router.clone(), bounds, ending.clone()));
                }
                None => tracing::debug!(%peer, "closed a connection: its address has all of its places"),
            },
            Err(error) if is_of_the_client(&error) => {}
            Err(error) => {
                tracing::error!(%error, "accepting a connection; raise the limit of open files if it is reached");
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
    drop((listener, ending));
    end.send_replace(());
    end.closed().await;
}

/// Whether a connection ended before it was accepted.
fn is_of_the_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused
    )
}

/// Serves one connection, until it ends or another takes its place.
async fn attend(stream: TcpStream, place: Place, router: Router, bounds: Bounds, mut ending: watch::Receiver<()>) {
    let has_asked = Arc::new(AtomicBool::new(false));
    let (asks, of_requests, router) = (has_asked.clone(), place.of_requests(), TowerToHyperService::new(router));
    let service = service_fn(move |mut request: Request<Incoming>| {
        asks.store(true, Ordering::Relaxed);
        request.extensions_mut().insert(of_requests.clone());
        router.call(request)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(bounds.between_requests)
        .max_buf_size(LONGEST_HEAD);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service).with_upgrades());
    let mut late = pin!(tokio::time::sleep(bounds.first_request));
    let (mut is_first, mut stays) = (true, true);
    loop {
        tokio::select! {
            _ = connection.as_mut() => return,
            () = place.taken_away() => return,
            () = late.as_mut(), if is_first => {
                if !has_asked.load(Ordering::Relaxed) {
                    return;
                }
                is_first = false;
            }
            _ = ending.changed(), if stays => {
                connection.as_mut().graceful_shutdown();
                stays = false;
            }
        }
    }
}

#[cfg(test)]
mod tests;
