//! Serves the relays: for each port, one keeper fetches connections from sandboxd, one at a time, as long as the lease
//! lasts.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use grpo_sandbox_protocol::{ErrorBody, ErrorCode, FaultOrigin};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::Upgraded;
use hyper::{Request, Uri};
use hyper_util::rt::TokioTimer;
use tokio::sync::{Semaphore, watch};

use super::Core;
use crate::index::ActiveLease;
use crate::relay::{Noted, PORTS};
use crate::sandbox::Holder;

/// Maximum concurrent connections of one port; more wait in the sandbox.
const CONNECTIONS: usize = 16;
/// How long sandboxd waits for a connection before the gateway asks again.
const WAIT: Duration = Duration::from_secs(45);
/// Pause between two checks of the lease.
const LOOK: Duration = Duration::from_secs(1);
/// First pause after an unanswered request to sandboxd; it doubles.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A connection without a new request for this long is closed.
const IDLE: Duration = Duration::from_secs(300);
/// Maximum bytes that are read ahead from a connection. A request that waits for its service holds about twice this.
const BUFFER: usize = 64 << 10;

impl Core {
    /// Opens a port of a sandbox to a service, or points an open port to another one. When this returns, the port
    /// listens.
    pub async fn relay(self: &Arc<Self>, held: &ActiveLease, port: u16, to: Uri) -> Result<(), ErrorBody> {
        let (lease, epoch) = (&held.entry.lease, held.entry.epoch);
        if self.relays.led_elsewhere(lease, epoch, port, &to) {
            return Ok(());
        }
        let first = self.sandboxes.relayed(Holder::of(held), port, Duration::ZERO).await;
        let first = first.map_err(|error| self.why_unreachable(lease, &error))?;
        let to = match self.relays.note(lease, epoch, port, to) {
            Noted::New(to) => to,
            Noted::IsOpen => return Ok(()),
            Noted::TooMany => {
                let message = format!("lease {lease} has {PORTS} relays already");
                return Err(ErrorBody::new(ErrorCode::BadRequest, FaultOrigin::Client, message));
            }
        };
        let keeper = Keeper {
            core: self.clone(),
            held: held.clone(),
            port,
            to,
        };
        tokio::spawn(keeper.keep(first));
        Ok(())
    }
}

/// Fetches one port's connections until the lease ends.
struct Keeper {
    core: Arc<Core>,
    held: ActiveLease,
    port: u16,
    to: watch::Receiver<Uri>,
}

impl Keeper {
    async fn keep(self, mut next: Option<Upgraded>) {
        let (lease, epoch) = (self.held.entry.lease.as_str(), self.held.entry.epoch);
        // Ends all connections when it is dropped.
        let (_lasting, over) = watch::channel(());
        tokio::select! {
            () = self.lease_ends() => {}
            () = async {
                let places = Arc::new(Semaphore::new(CONNECTIONS));
                let mut pause = PAUSE;
                loop {
                    let Ok(place) = places.clone().acquire_owned().await else { return };
                    let fetched = match next.take() {
                        Some(first) => Ok(Some(first)),
                        None => self.core.sandboxes.relayed(Holder::of(&self.held), self.port, WAIT).await,
                    };
                    match fetched {
                        Ok(connection) => {
                            pause = PAUSE;
                            let Some(connection) = connection else { continue };
                            let (core, lease, to) = (self.core.clone(), lease.to_owned(), self.to.clone());
                            let mut over = over.clone();
                            tokio::spawn(async move {
                                tokio::select! {
                                    () = serve(&core, connection, &lease, &to) => {}
                                    _ = over.changed() => {}
                                }
                                drop(place);
                            });
                        }
                        Err(error) => {
                            tracing::debug!(%error, lease, port = self.port, "fetching a relayed connection");
                            tokio::time::sleep(pause).await;
                            pause = (pause * 2).min(LONGEST_PAUSE);
                        }
                    }
                }
            } => {}
        }
        self.core.relays.forget(lease, epoch, self.port);
    }

    async fn lease_ends(&self) {
        let entry = &self.held.entry;
        let is_there = || {
            self.core.look(|index| {
                let held = index.leases.get(&entry.lease);
                held.is_some_and(|held| held.entry.epoch == entry.epoch)
            })
        };
        while is_there() {
            tokio::time::sleep(LOOK).await;
        }
    }
}

async fn serve(core: &Arc<Core>, connection: Upgraded, lease: &str, to: &watch::Receiver<Uri>) {
    let service = service_fn(|request: Request<Incoming>| async move {
        let request = request.map(BodyExt::boxed);
        Ok::<_, Infallible>(core.relays.pass_on(request, lease, to).await)
    });
    let mut http = http1::Builder::new();
    // Without `half_close`: with it, a connection that serves a request is not read, and the end of a process that gave
    // its request up would not be seen. So a process that closes only its sending side gives its request up too.
    http.timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_buf_size(BUFFER);
    let _ = http.serve_connection(connection, service).await;
}
