//! The replicas of the engine pool: which there are, which may be asked, and, in [`switch`], which weights each serves.
//!
//! The replicas are the addresses that the pool's headless service resolves to, looked up every second. One is eligible
//! if it said that it serves the weights that are asked for and has not failed a moment ago. Of the eligible ones an
//! episode takes the one that answered it before, which has its prefix in its cache, unless that one is much busier
//! than others; else the least busy. A replica of which nothing is known yet, or that boots and serves nothing, is not
//! eligible: it has the fewest requests of all and would be given every one of them. Failures in a row make it rest
//! longer.

mod gate;
pub mod switch;

pub use gate::Gate;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a replica that failed is left alone; twice as long after each failure in a row.
const COOL_DOWN: Duration = Duration::from_secs(1);
const LONGEST_COOL_DOWN: Duration = Duration::from_secs(8);
/// So many requests more than the least busy replica, and half as many as that one has, an episode's own may have.
const MORE_AT_HOME: usize = 4;
/// How long the list of addresses is trusted.
const LOOK_UP_EVERY: Duration = Duration::from_secs(1);

/// Where the replicas are.
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
    /// What it said it serves; nothing while it serves nothing, does not answer, or has not been asked.
    serving: Option<String>,
    rest_until: Option<Instant>,
    /// In a row.
    failures: u32,
    /// The last of them.
    why: String,
}

impl Replica {
    fn is_eligible(&self, version: &str, now: Instant) -> bool {
        self.serving.as_deref() == Some(version) && self.rest_until.is_none_or(|until| until <= now)
    }
}

/// The pool, as the driver sees it. Cloning is cheap.
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

    /// Every replica there is now.
    pub async fn all(&self) -> Vec<SocketAddr> {
        let mut looked_up = self.looked_up.lock().await;
        if looked_up.is_none_or(|at| at.elapsed() >= LOOK_UP_EVERY) {
            match self.look_up().await {
                Ok(found) => self.remember(&found),
                // A name without addresses and a resolver that is away look alike; what was known stays in use.
                Err(error) => tracing::debug!(host = %self.host(), %error, "looking up the engines"),
            }
            *looked_up = Some(Instant::now());
        }
        self.known().keys().copied().collect()
    }

    /// How many are known.
    pub fn count(&self) -> usize {
        self.known().len()
    }

    /// Remembers what a replica said it serves; nothing for one that does not answer.
    pub fn serves(&self, replica: SocketAddr, version: Option<&str>) {
        self.with(replica, |r| r.serving = version.map(str::to_owned));
    }

    /// Leaves a replica that failed alone for a moment.
    pub fn rest(&self, replica: SocketAddr, why: &str) {
        self.with(replica, |r| {
            let pause = COOL_DOWN * (1 << r.failures.min(8));
            r.rest_until = Some(Instant::now() + pause.min(LONGEST_COOL_DOWN));
            r.failures = r.failures.saturating_add(1);
            why.clone_into(&mut r.why);
        });
    }

    /// A replica answered as it should.
    pub fn answered(&self, replica: SocketAddr) {
        self.with(replica, |r| {
            r.rest_until = None;
            r.failures = 0;
        });
    }

    /// What is wrong with a replica, as far as requests to it showed.
    pub fn trouble(&self, replica: SocketAddr) -> Option<String> {
        let known = self.known();
        let state = known.get(&replica).filter(|r| r.failures > 0)?;
        Some(format!(
            "engine {replica} has failed {} requests in a row; last: {}",
            state.failures, state.why
        ))
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

    /// Takes the eligible replica that `home` names, or the least busy one, which is its home from then on. The request
    /// counts as the replica's own until the guard is dropped.
    pub fn take(&self, version: &str, home: &Home) -> Option<InFlight> {
        let mut known = self.known();
        let now = Instant::now();
        let eligible = known.iter().filter(|(_, r)| r.is_eligible(version, now));
        let (least, fewest) = eligible
            .map(|(replica, r)| (*replica, r.in_flight))
            .min_by_key(|(_, in_flight)| *in_flight)?;
        let mut home = home.0.lock().unwrap_or_else(PoisonError::into_inner);
        let stays = home.filter(|replica| {
            let state = known.get(replica).filter(|r| r.is_eligible(version, now));
            state.is_some_and(|r| r.in_flight <= fewest + fewest / 2 + MORE_AT_HOME)
        });
        let replica = *home.insert(stays.unwrap_or(least));
        known.get_mut(&replica)?.in_flight += 1;
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

/// The replica that answered an episode last. A prompt that it knows is computed from its end on.
#[derive(Debug, Default)]
pub struct Home(Mutex<Option<SocketAddr>>);

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
