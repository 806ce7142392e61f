//! Leader election by a Lease: which replica reconciles, and how long its writes may leave this process.
//!
//! ```text
//! acquire ─► hold (renews) ─► lost to another: the process ends
//!               └─► WriteWindow: writes are let through until 10 s after the last renewal began (see api_client)
//! ```
//!
//! The protocol is client-go's: another replica's lease counts from when *this* process saw the renewal, so clocks need
//! not agree, and every write of the Lease names the version it replaces. Two things are added. Waiting replicas watch
//! the Lease, so they take a released one at once. And a holder that was frozen or cut off cannot write when it wakes:
//! its write window closes before another replica may take the Lease. If no replica has taken it meanwhile, the same
//! process continues with its state.

use std::{
    fmt::Display,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::StreamExt;
use grpo_operator_core::names;
use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{
    Api, Client,
    api::PostParams,
    runtime::{WatchStreamExt, watcher::watch_object},
};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::watches::config::Pauses;

/// A replica that stops without releasing the Lease is replaced after this time.
const DURATION: Duration = Duration::from_secs(15);
/// Renewal period of the holder.
const RENEWAL: Duration = Duration::from_secs(5);
/// Writes are allowed for this long after a renewal began. The rest of the Lease's duration is for requests under way.
const WINDOW: Duration = Duration::from_secs(10);
/// The pause after a failed request, and the timeout of a request.
const RETRY: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(5);

/// Until when this process may write.
#[derive(Debug)]
pub struct WriteWindow {
    epoch: Instant,
    /// Milliseconds after the epoch; 0 if this process never held the Lease or has released it.
    until: AtomicU64,
}

impl WriteWindow {
    pub fn new() -> Self {
        Self {
            epoch: Instant::now(),
            until: AtomicU64::new(0),
        }
    }

    /// Whether writes may leave.
    pub fn is_open(&self) -> bool {
        self.epoch.elapsed() < Duration::from_millis(self.until.load(Ordering::Acquire))
    }

    fn extend(&self, begun: Instant) {
        let until = begun + WINDOW - self.epoch;
        self.until
            .store(u64::try_from(until.as_millis()).unwrap_or(u64::MAX), Ordering::Release);
    }

    fn close(&self) {
        self.until.store(0, Ordering::Release);
    }
}

/// One replica's part in the election.
pub struct Elector {
    leases: Api<Lease>,
    name: String,
    identity: String,
    window: Arc<WriteWindow>,
}

impl Elector {
    pub fn new(client: Client, namespace: &str, name: &str, identity: &str, window: Arc<WriteWindow>) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            name: name.to_owned(),
            identity: identity.to_owned(),
            window,
        }
    }

    /// Waits until this replica holds the Lease.
    pub async fn acquire(&self) -> Lease {
        let mut shown = pin!(watch_object(self.leases.clone(), &self.name).backoff(Pauses::default()));
        // The last Lease seen, and since when it has not changed. `None`: not read yet.
        let mut seen: Option<(Option<Lease>, Instant)> = None;
        loop {
            let free_at = seen.as_ref().map(|(lease, since)| self.free_at(lease.as_ref(), *since));
            let free = async {
                match free_at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                next = shown.next() => match next {
                    Some(Ok(lease)) => {
                        if seen.as_ref().is_none_or(|(known, _)| version(known.as_ref()) != version(lease.as_ref())) {
                            let before = seen.as_ref().map(|(known, _)| known.as_ref().and_then(holder));
                            let now = lease.as_ref().and_then(holder);
                            if before != Some(now) {
                                tracing::info!(lease = self.name, holder = now, "waiting for the Lease");
                            }
                            seen = Some((lease, Instant::now()));
                        }
                    }
                    Some(Err(error)) => self.warn("watch", &error),
                    None => sleep(RETRY).await,
                },
                () = free => {
                    let known = seen.as_ref().and_then(|(lease, _)| lease.clone());
                    match timeout(PATIENCE, self.take(known)).await {
                        Ok(Ok(lease)) => return lease,
                        // Another replica was faster, or the Lease was missing: read it again.
                        Ok(Err(error)) if is_about_its_version(&error) => seen = None,
                        Ok(Err(error)) => self.warn("take", &error),
                        Err(late) => self.warn("take", &late),
                    }
                    sleep(RETRY).await;
                }
            }
            if seen.is_none() {
                let read = timeout(PATIENCE, self.leases.get_opt(&self.name)).await;
                if let Ok(Ok(lease)) = read {
                    seen = Some((lease, Instant::now()));
                }
            }
        }
    }

    /// Keeps the Lease until this replica loses it; returns the new holder.
    pub async fn hold(&self, mut lease: Lease) -> String {
        loop {
            sleep(RENEWAL).await;
            // Retries after any error until the Lease's holder is known. Meanwhile the write window stops writes.
            lease = loop {
                let begun = Instant::now();
                let wanted = self.held(Some(&lease));
                match timeout(PATIENCE, self.leases.replace(&self.name, &write(), &wanted)).await {
                    Ok(Ok(renewed)) => {
                        self.window.extend(begun);
                        break renewed;
                    }
                    Ok(Err(error)) if is_about_its_version(&error) => {
                        match timeout(PATIENCE, self.leases.get_opt(&self.name)).await {
                            Ok(Ok(Some(there))) if holder(&there) == Some(&self.identity) => lease = there,
                            // Also without a holder: another replica may have held the Lease, worked, and released it.
                            Ok(Ok(there)) => {
                                self.window.close();
                                return there.as_ref().and_then(holder).unwrap_or("no replica").to_owned();
                            }
                            Ok(Err(error)) => self.warn("read", &error),
                            Err(late) => self.warn("read", &late),
                        }
                    }
                    Ok(Err(error)) => self.warn("renew", &error),
                    Err(late) => self.warn("renew", &late),
                }
                sleep(RETRY).await;
            };
        }
    }

    /// Releases the Lease, if this replica holds it, so that a waiting replica takes it at once. Ends all writes.
    pub async fn give_back(&self) {
        self.window.close();
        let Ok(Ok(Some(mut lease))) = timeout(PATIENCE, self.leases.get_opt(&self.name)).await else {
            return;
        };
        if holder(&lease) != Some(&self.identity) {
            return;
        }
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(String::new());
        spec.renew_time = Some(MicroTime(Timestamp::now()));
        spec.lease_duration_seconds = Some(1);
        let given = timeout(PATIENCE, self.leases.replace(&self.name, &write(), &lease)).await;
        if !matches!(given, Ok(Ok(_))) {
            tracing::warn!(
                lease = self.name,
                "could not give the Lease back; another replica takes it when it has run out"
            );
        }
    }

    /// Takes the Lease in the version that was seen; a conflict if it has changed.
    async fn take(&self, known: Option<Lease>) -> Result<Lease, kube::Error> {
        let begun = Instant::now();
        let wanted = self.held(known.as_ref());
        let taken = match known {
            Some(_) => self.leases.replace(&self.name, &write(), &wanted).await?,
            None => self.leases.create(&write(), &wanted).await?,
        };
        self.window.extend(begun);
        Ok(taken)
    }

    /// The Lease with this replica as its holder.
    fn held(&self, known: Option<&Lease>) -> Lease {
        let now = MicroTime(Timestamp::now());
        let before = known.and_then(|lease| lease.spec.clone()).unwrap_or_default();
        let ours = before.holder_identity.as_deref() == Some(&self.identity);
        let transitions = before.lease_transitions.unwrap_or(0);
        Lease {
            metadata: known.map(|lease| lease.metadata.clone()).unwrap_or(ObjectMeta {
                name: Some(self.name.clone()),
                ..ObjectMeta::default()
            }),
            spec: Some(LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                acquire_time: before.acquire_time.clone().filter(|_| ours).or(Some(now.clone())),
                renew_time: Some(now),
                lease_duration_seconds: Some(DURATION.as_secs() as i32),
                lease_transitions: Some(if ours {
                    transitions
                } else {
                    transitions.saturating_add(1)
                }),
                ..before
            }),
        }
    }

    /// When an unchanged Lease may be taken: at once without a holder, or if this replica held it before a restart.
    fn free_at(&self, lease: Option<&Lease>, since: Instant) -> Instant {
        match lease.and_then(holder) {
            Some(other) if other != self.identity => {
                let spec = lease.and_then(|lease| lease.spec.as_ref());
                let seconds = spec.and_then(|spec| spec.lease_duration_seconds);
                since
                    + seconds.map_or(DURATION, |seconds| {
                        Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
                    })
            }
            _ => since,
        }
    }

    fn warn(&self, attempted: &str, error: &dyn Display) {
        tracing::warn!(lease = self.name, attempted, %error, "the Lease could not be reached; it is tried again");
    }
}

/// The Lease's holder. An empty name means no holder: client-go writes it on release.
fn holder(lease: &Lease) -> Option<&str> {
    let holder = lease.spec.as_ref()?.holder_identity.as_deref();
    holder.filter(|holder| !holder.is_empty())
}

fn version(lease: Option<&Lease>) -> Option<&str> {
    lease?.metadata.resource_version.as_deref()
}

fn write() -> PostParams {
    PostParams {
        field_manager: Some(names::FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    }
}

/// The Lease has another version, exists unexpectedly, or is missing unexpectedly.
fn is_about_its_version(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_conflict() || status.is_already_exists() || status.is_not_found())
}

#[cfg(test)]
mod tests;
