//! The replicas of the engine pool: which exist, which get requests, and, in [`switch`], which weights each serves.
//!
//! The replicas are the addresses that the pool's headless service resolves to, looked up every second. A replica is
//! eligible if it said that it serves the requested weights and has not just failed. Of the eligible ones an episode
//! takes the one that answered it before, which has its prefix in its cache, unless that one has many more requests or
//! episodes than another: a replica that joins gets a share of the episodes that run. Else it takes the least busy one.
//! A replica with unknown weights, or one that boots and serves nothing, is not eligible: it has the fewest requests
//! and would get all of them. Failures in a row lengthen its cool-down. A replica whose server limits the rate of
//! requests rests for as long as the server asks.

mod gate;
pub mod switch;

pub use gate::Gate;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Cool-down of a failed replica; doubles with each failure in a row.
const COOL_DOWN: Duration = Duration::from_secs(1);
const LONGEST_COOL_DOWN: Duration = Duration::from_secs(8);
/// Of a replica whose server limits the rate of requests, and does not say for how long.
const LONGEST_LIMIT: Duration = Duration::from_secs(64);
/// An episode's own replica may have this many requests, or episodes, more than one and a half times those of the least
/// busy one.
const MORE_AT_HOME: usize = 4;
/// How long the list of addresses is used.
const LOOK_UP_EVERY: Duration = Duration::from_secs(1);

/// The addresses of the replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoints {
    /// All addresses of this name, on this port.
    Name {
        host: String,
        port: u16,
    },
    Fixed(Vec<SocketAddr>),
}

#[derive(Debug, Default, Clone)]
struct Replica {
    in_flight: usize,
    /// Live episodes whose home it is; most of them wait for a command at any moment.
    episodes: usize,
    /// The version that it said it serves; `None` while it serves nothing, does not answer, or has not been asked.
    serving: Option<String>,
    rest_until: Option<Instant>,
    /// Its server asked for no request until then.
    asked_until: Option<Instant>,
    /// In a row.
    failures: u32,
    /// Why the last request failed.
    why: String,
    /// It has refused token ids, because its server speaks only text.
    text_only: bool,
}

impl Replica {
    fn is_eligible(&self, version: &str, now: Instant) -> bool {
        let rests_until = self.rest_until.max(self.asked_until);
        self.serving.as_deref() == Some(version) && rests_until.is_none_or(|until| until <= now)
    }

    /// The next cool-down: it doubles with each failure in a row.
    fn cool_down(&self, longest: Duration) -> Duration {
        (COOL_DOWN * (1 << self.failures.min(8))).min(longest)
    }
}

/// The driver's view of the pool. Cloning is cheap.
#[derive(Clone)]
pub struct Replicas {
    endpoints: Endpoints,
    known: Arc<Mutex<BTreeMap<SocketAddr, Replica>>>,
    looked_up: Arc<tokio::sync::Mutex<Option<Instant>>>,
}

impl Replicas {
    pub fn new(endpoints: Endpoints) -> Self {
        Self {
            endpoints,
            known: Arc::default(),
            looked_up: Arc::default(),
        }
    }

    /// The name of the pool, for messages.
    pub fn host(&self) -> String {
        match &self.endpoints {
            Endpoints::Name { host, .. } => host.clone(),
            Endpoints::Fixed(all) => all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        }
    }

    /// All current replicas.
    pub async fn all(&self) -> Vec<SocketAddr> {
        let mut looked_up = self.looked_up.lock().await;
        if looked_up.is_none_or(|at| at.elapsed() >= LOOK_UP_EVERY) {
            match self.look_up().await {
                Ok(found) => self.remember(&found),
                // A name without addresses and an unavailable resolver look alike; known replicas stay in use.
                Err(error) => tracing::debug!(host = %self.host(), %error, "looking up the engines"),
            }
            *looked_up = Some(Instant::now());
        }
        self.known().keys().copied().collect()
    }

    /// Remembers the version that a replica serves; `None` if it does not answer.
    pub fn serves(&self, replica: SocketAddr, version: Option<&str>) {
        self.with(replica, |r| r.serving = version.map(str::to_owned));
    }

    /// Remembers that a replica's server speaks only text.
    pub fn found_text_only(&self, replica: SocketAddr) {
        self.with(replica, |r| r.text_only = true);
    }

    pub fn is_text_only(&self, replica: SocketAddr) -> bool {
        self.known().get(&replica).is_some_and(|r| r.text_only)
    }

    /// Starts the cool-down of a failed replica.
    pub fn rest(&self, replica: SocketAddr, why: &str) {
        self.failed(replica, why, |r| {
            let until = Instant::now() + r.cool_down(LONGEST_COOL_DOWN);
            r.rest_until = r.rest_until.max(Some(until));
            r.failures = r.failures.saturating_add(1);
        });
    }

    /// Starts the cool-down of a replica whose server limits the rate of requests. `asked`: the pause that the server
    /// asks for. An answer to an earlier request does not end it.
    pub fn limited(&self, replica: SocketAddr, why: &str, asked: Option<Duration>) {
        let now = Instant::now();
        self.failed(replica, why, |r| match asked {
            Some(asked) => {
                r.asked_until = r.asked_until.max(Some(now + asked.max(COOL_DOWN)));
                r.failures = r.failures.saturating_add(1);
            }
            // Requests that were under way together meet one limit.
            None if r.rest_until.is_some_and(|until| until > now) => {}
            None => {
                r.rest_until = Some(now + r.cool_down(LONGEST_LIMIT));
                r.failures = r.failures.saturating_add(1);
            }
        });
    }

    fn failed(&self, replica: SocketAddr, why: &str, rest: impl FnOnce(&mut Replica)) {
        self.with(replica, |r| {
            rest(r);
            why.clone_into(&mut r.why);
        });
    }

    /// Ends the cool-down of a replica that answered.
    pub fn answered(&self, replica: SocketAddr) {
        self.with(replica, |r| {
            r.rest_until = None;
            r.failures = 0;
        });
    }

    /// Why requests to a replica fail, if its last request failed.
    pub fn trouble(&self, replica: SocketAddr) -> Option<String> {
        let known = self.known();
        let state = known.get(&replica).filter(|r| r.failures > 0)?;
        Some(format!(
            "engine {replica} has failed {} requests in a row; last: {}",
            state.failures, state.why
        ))
    }

    /// That no replica takes a request for this version, and why a request to one of them failed.
    pub fn none_ready(&self, version: &str) -> String {
        let known = self.known();
        let now = Instant::now();
        let fails = |r: &Replica| r.failures > 0 || r.asked_until.is_some_and(|until| until > now);
        let failed = known.iter().find(|(_, r)| fails(r));
        let why = failed.map(|(replica, r)| format!("; {replica}: {}", r.why));
        let count = known.len();
        format!(
            "no replica is ready for {version} ({count} known){}",
            why.unwrap_or_default()
        )
    }

    async fn look_up(&self) -> std::io::Result<Vec<SocketAddr>> {
        match &self.endpoints {
            Endpoints::Fixed(all) => Ok(all.clone()),
            Endpoints::Name { host, port } => {
                let found = tokio::net::lookup_host((host.as_str(), *port)).await?;
                Ok(found.collect())
            }
        }
    }

    fn remember(&self, found: &[SocketAddr]) {
        let mut known = self.known();
        known.retain(|replica, state| found.contains(replica) || state.in_flight > 0);
        for replica in found {
            known.entry(*replica).or_default();
        }
    }

    /// Takes the eligible replica that `home` names, or the least busy one, which becomes the home. The request counts
    /// for the replica until the guard is dropped.
    pub fn take(&self, version: &str, home: &Home) -> Option<InFlight> {
        let mut home = home.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = self.known();
        let now = Instant::now();
        let eligible = || known.iter().filter(|(_, r)| r.is_eligible(version, now));
        let (least, idlest) = eligible().min_by_key(|(_, r)| (r.in_flight, r.episodes))?;
        let (emptiest, fewest) = eligible().min_by_key(|(_, r)| (r.episodes, r.in_flight))?;
        let bound = |least: usize| least + least / 2 + MORE_AT_HOME;
        let at_home = home.as_ref().and_then(|lives| {
            let state = known.get(&lives.replica).filter(|r| r.is_eligible(version, now))?;
            Some((lives.replica, state))
        });
        // Not to a busy one: the next request would leave it again, and find no prefix in either cache.
        let has_room = fewest.in_flight <= bound(idlest.in_flight);
        let replica = match at_home {
            Some((_, state)) if has_room && state.episodes > bound(fewest.episodes) => *emptiest,
            Some((replica, state)) if state.in_flight <= bound(idlest.in_flight) => replica,
            _ => *least,
        };
        let moves = home.as_ref().is_none_or(|lives| lives.replica != replica);
        let state = known.get_mut(&replica)?;
        state.in_flight += 1;
        state.episodes += usize::from(moves);
        drop(known);
        if moves {
            // The earlier home counts the episode until here.
            *home = Some(Lives {
                replica,
                replicas: self.clone(),
            });
        }
        Some(InFlight {
            replica,
            replicas: self.clone(),
        })
    }

    fn with(&self, replica: SocketAddr, change: impl FnOnce(&mut Replica)) {
        if let Some(state) = self.known().get_mut(&replica) {
            change(state);
        }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, BTreeMap<SocketAddr, Replica>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The replica that answered an episode last: of a prompt that it knows, it computes only the new part.
#[derive(Default)]
pub struct Home(Mutex<Option<Lives>>);

/// An episode counts for its replica until this is dropped.
struct Lives {
    replica: SocketAddr,
    replicas: Replicas,
}

impl Drop for Lives {
    fn drop(&mut self) {
        self.replicas
            .with(self.replica, |r| r.episodes = r.episodes.saturating_sub(1));
    }
}

/// A request that a replica works on.
pub struct InFlight {
    pub replica: SocketAddr,
    replicas: Replicas,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.replicas
            .with(self.replica, |r| r.in_flight = r.in_flight.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests;
