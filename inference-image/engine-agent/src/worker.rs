//! Carries out the last order: a level-triggered reconcile loop.
//!
//! Each iteration compares the version that the engine reports with the last order, and brings the engine a step
//! closer: pull, load, verify. It never assumes that an earlier result still holds: an engine that restarted reports
//! `base` again, is simply behind, and the same iteration repairs it. Failures are retried a bounded number of times
//! with back-off; a repeated order starts over.
//!
//! An order to sleep comes first: no weights are pulled or loaded before the engine is to wake up. See [`sleep`].

mod sleep;

use crate::cache::{BadName, Cache};
use crate::engine::{Engine, EngineFault, Serving, Weights};
use crate::gate::Gate;
use crate::pull::{Pulled, pull};
use crate::source::{PullClient, PullError};
use grpo_engine_protocol::{AgentState, AgentStatus, WeightsOrder};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// A version with this file is an adapter to the model with which the engine booted.
const ADAPTER_CONFIG: &str = "adapter_config.json";

/// Attempts for one order; after them the agent waits for a person or the next order.
const ATTEMPTS: u32 = 10;

/// The last orders, and the number of orders: a repetition after the attempts are used up starts over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    pub wanted: Option<WeightsOrder>,
    pub received: u64,
    /// The version to pull to disk while the wanted one serves.
    pub prefetch: Option<WeightsOrder>,
    /// Whether the engine is to sleep. Without an order it is left as it is.
    pub asleep: Option<bool>,
}

/// Intervals and deadlines of the loop.
#[derive(Clone, Debug)]
pub struct Pace {
    /// Interval between two checks of the engine.
    pub look: Duration,
    /// Back-off before the second attempt; doubles up to `longest_pause`.
    pub first_pause: Duration,
    pub longest_pause: Duration,
    /// Deadline of one load, and of falling asleep or waking up.
    pub load_deadline: Duration,
    /// Deadline for the requests at the engine to end before it sleeps.
    pub empty_deadline: Duration,
    /// Time that clients' requests have to end once an order waits for the engine.
    pub client_grace: Duration,
}

/// The engine loads weights of 8B in about this time, so a run waits at most twice as long because of clients. In it an
/// engine samples some hundred tokens for a row, which is most answers.
const CLIENT_GRACE: Duration = Duration::from_secs(10);

impl Pace {
    /// The back-off after this many failures.
    fn pause_after(&self, failures: u32) -> Duration {
        let pause = self.first_pause.saturating_mul(1 << failures.saturating_sub(1).min(16));
        pause.min(self.longest_pause)
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            look: Duration::from_secs(1),
            first_pause: Duration::from_millis(500),
            longest_pause: Duration::from_secs(15),
            load_deadline: Duration::from_secs(600),
            empty_deadline: Duration::from_secs(60),
            client_grace: CLIENT_GRACE,
        }
    }
}

/// Why one attempt at an order failed.
#[derive(Debug, thiserror::Error)]
enum Setback {
    #[error(transparent)]
    Pull(#[from] PullError),
    #[error(transparent)]
    Name(#[from] BadName),
    #[error(transparent)]
    Engine(#[from] EngineFault),
    #[error(
        "the engine says it serves {found} after {wanted} was loaded; another agent may be at work on it: check that one agent guards one engine"
    )]
    OtherVersion { wanted: String, found: String },
    #[error(
        "the engine holds tensors with sha256 {found} for {version}, its manifest says {expected}; the weights in the store do not match \
         their manifest, or the engine did not load them. The version must be published again"
    )]
    OtherTensors {
        version: String,
        expected: String,
        found: String,
    },
    #[error("after {seconds} s there are still requests at the engine: {requests}; it sleeps when they have ended")]
    Busy { requests: u32, seconds: u64 },
    #[error("the engine says that it is awake after it was told to sleep; look at its container's log")]
    StillAwake,
    #[error("the engine says that it is asleep after it was told to wake up; look at its container's log")]
    StillAsleep,
}

pub struct Worker<E> {
    pub engine: E,
    pub cache: Cache,
    pub client: PullClient,
    pub orders: watch::Receiver<Orders>,
    pub status: watch::Sender<AgentStatus>,
    /// Closed while the engine sleeps; opened when a drained engine is gone.
    pub gate: Arc<Gate>,
    pub pace: Pace,
}

/// Attempts at the current orders.
struct Attempts {
    order: Orders,
    made: u32,
    not_before: Instant,
    last_setback: Option<String>,
    /// Whether the engine was found awake. Without an order to sleep it stays so.
    found_awake: bool,
    /// Whether the engine got the order to sleep, after all orders before it.
    told_to_sleep: bool,
    failed_prefetch: Option<FailedPrefetch>,
}

/// A prefetch that failed. Without a back-off a source with wrong bytes would send a version again and again, while
/// episodes need the same network.
struct FailedPrefetch {
    order: WeightsOrder,
    times: u32,
    not_before: Instant,
    message: String,
}

impl Attempts {
    fn new(order: Orders) -> Self {
        Self {
            order,
            made: 0,
            not_before: Instant::now(),
            last_setback: None,
            found_awake: false,
            told_to_sleep: false,
            failed_prefetch: None,
        }
    }

    /// Whether another one is due now.
    fn are_due(&self) -> bool {
        self.made < ATTEMPTS && Instant::now() >= self.not_before
    }

    /// The orders are carried out.
    fn succeed(&mut self) {
        self.made = 0;
        self.last_setback = None;
    }

    /// Plans the next attempt after one that failed; returns the message for the status.
    fn fail(&mut self, aim: &str, setback: &Setback, pace: &Pace) -> String {
        self.not_before = Instant::now() + pace.pause_after(self.made);
        let message = format!("attempt {} of {ATTEMPTS} to {aim} failed: {setback}", self.made);
        tracing::warn!("{message}");
        self.last_setback = Some(message.clone());
        message
    }
}

impl<E: Engine> Worker<E> {
    /// Runs until the sender of orders is dropped.
    pub async fn run(mut self) {
        let mut attempts = Attempts::new(self.orders.borrow_and_update().clone());
        loop {
            // A new order interrupts the current iteration; a pull resumes where it stopped.
            let mut orders = self.orders.clone();
            tokio::select! {
                () = self.turn(&mut attempts) => {}
                _ = orders.changed() => {}
            }
            let pause = Instant::now() + self.pace.look;
            tokio::select! {
                () = sleep_until(pause) => {}
                changed = self.orders.changed() => if changed.is_err() { return },
            }
            let order = self.orders.borrow_and_update().clone();
            let another = match (&order.wanted, &attempts.order.wanted) {
                (Some(now), Some(before)) => !now.is_same(before),
                (now, before) => now.is_some() != before.is_some(),
            };
            let another = another || order.asleep != attempts.order.asleep;
            let again = order.received != attempts.order.received && attempts.made >= ATTEMPTS;
            if another || again {
                let still = order.asleep == attempts.order.asleep && attempts.told_to_sleep;
                attempts = Attempts::new(order);
                attempts.told_to_sleep = still;
            } else {
                // The same weights, perhaps with other agents that pass them on.
                attempts.order.wanted = order.wanted;
            }
        }
    }

    /// One check of the engine, and one attempt if it is behind and the back-off is over.
    async fn turn(&self, attempts: &mut Attempts) {
        let serving = match self.engine.serving().await {
            Ok(serving) => serving,
            Err(fault) => {
                // The drained engine is gone: its successor takes requests.
                self.gate.set_draining(false);
                return self.say(AgentState::Booting, None, Some(fault.to_string()));
            }
        };
        let Some(wakes) = self.settle(attempts, &serving).await else {
            return;
        };
        let wanted = attempts.order.wanted.clone();
        // An engine wakes up with the version that it had. If that fails, this version is loaded again.
        let loads = |order: &WeightsOrder| order.version != serving.version || (wakes && attempts.made > 0);
        let order = wanted.filter(loads);
        if order.is_none() && !wakes {
            attempts.succeed();
            self.say(AgentState::Idle, Some(&serving), None);
            return self.prefetch(attempts, &serving).await;
        }
        if !attempts.are_due() {
            return self.say(AgentState::Failed, Some(&serving), attempts.last_setback.clone());
        }
        attempts.made += 1;
        let done = match &order {
            Some(order) => self.fulfil(order, &serving).await,
            None => self.wake(&serving).await,
        };
        match done {
            Ok((loaded, changed)) => {
                tracing::info!(
                    version = loaded.version,
                    sha256 = loaded.sha256.as_deref().unwrap_or("not told"),
                    changed,
                    "ordered weights serve"
                );
                attempts.succeed();
                self.gate.set_sleeping(false);
                if let Some(order) = &order {
                    self.make_room(&[&serving.version, &order.version]);
                    self.status.send_modify(|status| status.changed = Some(changed));
                }
                self.say(AgentState::Idle, Some(&loaded), None);
            }
            Err(setback) => {
                let aim = match &order {
                    Some(order) => format!("serve {}", order.version),
                    None => "wake the engine up".to_owned(),
                };
                let message = attempts.fail(&aim, &setback, &self.pace);
                // The engine itself may have failed.
                let serving = self.engine.serving().await.ok();
                self.say(AgentState::Failed, serving.as_ref(), Some(message));
            }
        }
    }

    /// Pulls the next version to disk until the engine changes or a new order comes. After a failure it waits for the
    /// back-off: the order that follows pulls what is missing anyway.
    async fn prefetch(&self, attempts: &mut Attempts, serving: &Serving) {
        let order = self.orders.borrow().prefetch.clone();
        let Some(order) = order.filter(|order| self.status.borrow().pulled.as_ref() != Some(&order.version)) else {
            return;
        };
        let failed = attempts
            .failed_prefetch
            .take()
            .filter(|failed| failed.order.is_same(&order));
        let times = failed.as_ref().map_or(0, |failed| failed.times);
        if let Some(failed) = failed.filter(|failed| Instant::now() < failed.not_before) {
            self.say(AgentState::Idle, Some(serving), Some(failed.message.clone()));
            attempts.failed_prefetch = Some(failed);
            return;
        }
        if self.engine.reads_folders() && order.version != serving.version {
            self.make_room(&[&serving.version, &order.version]);
            let pulled = tokio::select! {
                pulled = pull(&self.client, &self.cache, &order) => pulled,
                () = self.serves_no_more(serving) => return,
            };
            if let Err(error) = pulled {
                let message = format!("prefetching {}: {error}", order.version);
                tracing::warn!("{message}");
                attempts.failed_prefetch = Some(FailedPrefetch {
                    order,
                    times: times + 1,
                    not_before: Instant::now() + self.pace.pause_after(times + 1),
                    message: message.clone(),
                });
                return self.say(AgentState::Idle, Some(serving), Some(message));
            }
        }
        tracing::info!(version = order.version, "prefetched");
        self.status.send_modify(|status| status.pulled = Some(order.version));
    }

    /// Returns when the engine serves another version, or does not answer.
    async fn serves_no_more(&self, serving: &Serving) {
        loop {
            tokio::time::sleep(self.pace.look).await;
            match self.engine.serving().await {
                Ok(now) if now.version == serving.version => {}
                _ => return,
            }
        }
    }

    /// Before a pull: removes all versions from disk except these and those from which rows are still sampled.
    fn make_room(&self, versions: &[&str]) {
        let mut kept = self.engine.in_use();
        kept.extend(versions.iter().map(|version| (*version).to_owned()));
        if let Err(error) = self.cache.keep_only(&kept) {
            tracing::warn!("cannot tidy {}: {error}", self.cache.root().display());
        }
    }

    /// Pull, load, verify. Also returns whether the tensors differ from the previously served ones.
    async fn fulfil(&self, order: &WeightsOrder, before: &Serving) -> Result<(Serving, bool), Setback> {
        if !self.engine.reads_folders() {
            self.loading(order, before);
            let weights = Weights {
                order,
                dir: Path::new(""),
                sha256: "",
                adapter: false,
                canary: None,
            };
            self.engine.load(weights, self.pace.load_deadline).await?;
            return self.verified(order, before).await;
        }
        self.say(
            AgentState::Pulling,
            Some(before),
            Some(format!("pulling {} from {}", order.version, order.source)),
        );
        self.make_room(&[&before.version, &order.version]);
        let Pulled { folder, manifest } = pull(&self.client, &self.cache, order).await?;
        self.loading(order, before);
        let weights = Weights {
            order,
            dir: &folder,
            sha256: &manifest.tensors_sha256,
            adapter: manifest.files.iter().any(|file| file.name == ADAPTER_CONFIG),
            canary: manifest.canary.as_ref(),
        };
        let grace = self.pace.client_grace;
        let waits = self.engine.waits_to_load(&weights);
        let _without_clients = waits.then(|| self.gate.without_clients(grace));
        let loaded = self.engine.load(weights, self.pace.load_deadline).await?;
        if let Some(found) = loaded
            .sha256
            .filter(|found| !found.eq_ignore_ascii_case(&manifest.tensors_sha256))
        {
            return Err(Setback::OtherTensors {
                version: order.version.clone(),
                expected: manifest.tensors_sha256,
                found,
            });
        }
        self.verified(order, before).await
    }

    fn loading(&self, order: &WeightsOrder, before: &Serving) {
        let message = format!("the engine loads {}", order.version);
        self.say(AgentState::Loading, Some(before), Some(message));
    }

    /// An answer to `load` is only a promise; the version that the engine reports is the fact.
    async fn verified(&self, order: &WeightsOrder, before: &Serving) -> Result<(Serving, bool), Setback> {
        let serving = self.engine.serving().await?;
        self.must_be_awake().await?;
        if serving.version != order.version {
            return Err(Setback::OtherVersion {
                wanted: order.version.clone(),
                found: serving.version,
            });
        }
        let changed = match (&serving.sha256, &before.sha256) {
            (Some(now), Some(before)) => now != before,
            _ => serving.version != before.version,
        };
        Ok((serving, changed))
    }

    /// Shows a status. Nothing is served while the gate is closed for sleep.
    fn say(&self, state: AgentState, serving: Option<&Serving>, message: Option<String>) {
        let serving = serving.filter(|_| !self.gate.is_sleeping());
        let wanted = self.orders.borrow().wanted.as_ref().map(|order| order.version.clone());
        self.status.send_if_modified(|status| {
            let next = AgentStatus {
                serving: serving.map(|serving| serving.version.clone()),
                loaded_sha256: serving.and_then(|serving| serving.sha256.clone()),
                wanted,
                state,
                message,
                ..status.clone()
            };
            let modified = next != *status;
            *status = next;
            modified
        });
    }
}
