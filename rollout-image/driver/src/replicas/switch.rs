//! Makes engines follow the journal: repeats the order to each replica that serves other weights than the promoted
//! ones; before that, orders it to prefetch them.
//!
//! Level-triggered: it checks every replica continuously, so a restarted replica is simply behind. An order names the
//! other replicas: their agents pass the files on to each other. Each replica switches by itself. A replica that served
//! the previous weights is awaited for a grace period. A replica that did not, because it boots, hangs or crashes again
//! and again, is not awaited: each switch would cost that grace period.
//!
//! Engines that share their devices with the trainer sleep while it steps ([`asleep`]).

pub mod asleep;

use crate::engine::Engines;
use crate::epoch::OrderError;
use crate::fault::{DriverError, TerminalFault};
use crate::metrics::Metrics;
use grpo_contracts::driver_epoch::Superseded;
use grpo_contracts::reason::Reason;
use grpo_engine_protocol::{AgentState, AgentStatus, Relay, WeightsOrder};
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Interval of checks when all replicas are updated, and while one is behind.
const LOOK_EVERY: Duration = Duration::from_secs(2);
const LOOK_WHILE_BEHIND: Duration = Duration::from_millis(250);
/// Shortest time between repeated orders.
const ORDER_EVERY: Duration = Duration::from_secs(5);
/// How long ready replicas wait for the others, counted from when the last one became ready.
const GRACE: Duration = Duration::from_secs(120);
/// How many replicas a message names.
const NAMED: usize = 3;

/// The weights that every replica should serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub version: String,
    /// `None` for the weights that an engine boots with: the driver cannot order those.
    pub order: Option<WeightsOrder>,
    /// Checksum of the tensors, if the manifest names it: an engine must hold it to count as updated.
    pub tensors_sha256: Option<String>,
    /// The next weights: prefetched to disk while `version` serves.
    pub prefetch: Option<WeightsOrder>,
    /// Whether the engines have left their devices to the trainer. `None`: they share none, and are told nothing.
    pub asleep: Option<bool>,
}

/// Progress of the replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The target version of this view.
    pub version: String,
    pub known: usize,
    pub updated: usize,
    /// Whether the target is that they sleep. None is updated then.
    pub sleeping: bool,
    /// Replicas that sleep, if they should.
    pub asleep: usize,
    /// Replicas that answer but do not do what they should.
    pub behind: usize,
    /// Replicas that do not answer.
    pub absent: usize,
    /// Replicas of both kinds that are expected soon, because they served the previous weights.
    pub awaited: usize,
    /// The next version, and the number of replicas that have it on disk.
    pub next: Option<String>,
    pub prefetched: usize,
    pub message: Option<String>,
    /// An agent refused an order, because a later attempt of the driver gives the orders. This is the last view then.
    pub superseded: Option<Superseded>,
}

impl View {
    fn is_complete(&self) -> bool {
        self.updated + self.asleep > 0 && self.behind == 0 && self.absent == 0
    }

    fn lacks_prefetch(&self) -> bool {
        self.next.is_some() && self.prefetched < self.updated
    }

    fn has_all_awaited(&self) -> bool {
        self.updated > 0 && self.awaited == 0
    }
}

/// Checks the replicas until the sender of `target` is dropped, or a later driver gives the orders.
pub async fn follow(
    engines: Engines,
    mut target: watch::Receiver<Option<Target>>,
    view: watch::Sender<View>,
    metrics: Arc<Metrics>,
) {
    let (mut told, mut served) = (Told::default(), Served::default());
    loop {
        let wanted = target.borrow_and_update().clone();
        let pause = match &wanted {
            // Without a target it still learns what the replicas serve: only then are they eligible.
            None => {
                let replicas = engines.replicas().await;
                let asked = replicas.iter().map(|replica| engines.status(*replica));
                futures::future::join_all(asked).await;
                LOOK_WHILE_BEHIND
            }
            Some(wanted) => {
                let now = look(&engines, wanted, &mut told, &mut served).await;
                metrics.replicas.set(now.known as i64);
                // Engines that sleep as ordered are not behind: the last value stays.
                if !now.sleeping {
                    metrics.replicas_updated.set(now.updated as i64);
                }
                let pause = if now.is_complete() && !now.lacks_prefetch() {
                    LOOK_EVERY
                } else {
                    LOOK_WHILE_BEHIND
                };
                view.send_if_modified(|view| {
                    let changed = *view != now;
                    *view = now;
                    changed
                });
                if told.superseded.is_some() {
                    return;
                }
                pause
            }
        };
        tokio::select! {
            changed = target.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// What this driver has told the replicas.
#[derive(Default)]
struct Told {
    /// The last order of each kind to each replica's process, and its time.
    orders: HashMap<(SocketAddr, OrderKind), (String, Instant)>,
    /// The last order to sleep (`true`) or to wake up that each replica accepted, with its process.
    accepted: HashMap<SocketAddr, (String, bool)>,
    /// A later attempt of the driver gives the orders.
    superseded: Option<Superseded>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum OrderKind {
    Weights,
    Sleep,
}

impl Told {
    /// Whether an order is due: the replica has not got it, or not lately.
    fn is_due(&mut self, replica: SocketAddr, kind: OrderKind, what: String) -> bool {
        let heard = self.orders.get(&(replica, kind));
        let due = heard.is_none_or(|(heard, at)| *heard != what || at.elapsed() >= ORDER_EVERY);
        if due {
            self.orders.insert((replica, kind), (what, Instant::now()));
        }
        due
    }

    /// Notes why an order was refused, and returns that as text.
    fn refused(&mut self, error: &OrderError) -> String {
        if let OrderError::Superseded(superseded) = error {
            self.superseded = Some(*superseded);
        }
        error.to_string()
    }

    fn keep_only(&mut self, replicas: &[SocketAddr]) {
        self.orders.retain(|(replica, _), _| replicas.contains(replica));
        self.accepted.retain(|replica, _| replicas.contains(replica));
    }
}

/// Which replicas served the target, and which served the one before it.
#[derive(Default)]
struct Served {
    version: String,
    now: HashSet<SocketAddr>,
    /// `None` for the first target: the replicas that served before are unknown.
    before: Option<HashSet<SocketAddr>>,
}

impl Served {
    fn turn_to(&mut self, version: &str) {
        if self.version != version {
            let now = std::mem::take(&mut self.now);
            self.before = (!self.version.is_empty()).then_some(now);
            version.clone_into(&mut self.version);
        }
    }

    /// Whether a replica with other weights, or none, should serve the target soon.
    fn awaits(&self, replica: SocketAddr, serves_others: bool) -> bool {
        match &self.before {
            Some(before) => before.contains(&replica),
            None => serves_others,
        }
    }
}

/// Checks every replica once, and orders each one that is behind to load the target.
async fn look(engines: &Engines, target: &Target, told: &mut Told, served: &mut Served) -> View {
    let sleeping = target.asleep == Some(true);
    if !sleeping {
        served.turn_to(&target.version);
    }
    let mut said = Vec::new();
    let replicas = engines.replicas().await;
    told.keep_only(&replicas);
    let mut view = View {
        version: target.version.clone(),
        known: replicas.len(),
        next: target.prefetch.as_ref().map(|order| order.version.clone()),
        sleeping,
        ..View::default()
    };
    let asked = replicas
        .iter()
        .map(|replica| async { (*replica, engines.status(*replica).await) });
    let statuses = futures::future::join_all(asked).await;
    let members = Members::of(&statuses);
    for (replica, status) in statuses {
        // The other agents may not know the later driver yet.
        if told.superseded.is_some() {
            break;
        }
        let status = match status {
            Ok(status) => status,
            Err(why) => {
                view.absent += 1;
                view.awaited += usize::from(served.awaits(replica, false));
                said.push(format!("engine {replica} does not answer: {why}"));
                continue;
            }
        };
        if sleeping {
            match asleep::put_to_sleep(engines, replica, &status, told).await {
                None => view.asleep += 1,
                Some(why) => {
                    view.behind += 1;
                    said.push(why);
                }
            }
            continue;
        }
        let serves = status.serving.as_deref() == Some(target.version.as_str());
        let held = status.loaded_sha256.as_ref();
        let wrong = serves && matches!((held, &target.tensors_sha256), (Some(held), Some(wanted)) if held != wanted);
        if serves && !wrong {
            view.updated += 1;
            served.now.insert(replica);
            said.extend(engines.trouble(replica));
            if let Some(order) = &target.prefetch {
                if status.pulled.as_ref() == Some(&order.version) {
                    view.prefetched += 1;
                } else if told.is_due(
                    replica,
                    OrderKind::Weights,
                    format!("{} prefetch {}", status.instance, order.version),
                ) && let Err(error) = engines.prefetch(replica, &members.order_for(replica, order)).await
                {
                    let why = told.refused(&error);
                    said.push(format!("engine {replica} does not take an order to prefetch: {why}"));
                }
            }
            continue;
        }
        view.behind += 1;
        // After the trainer's first turn all replicas wake up.
        let comes = status.serving.is_some() || target.asleep == Some(false);
        view.awaited += usize::from(served.awaits(replica, comes));
        said.push(match (wrong, &status.message) {
            (true, _) => format!(
                "engine {replica} says {} but holds other tensors than its manifest",
                target.version
            ),
            (false, Some(message)) => format!("engine {replica} is {:?}: {message}", status.state),
            (false, None) => format!("engine {replica} serves {:?} and is {:?}", status.serving, status.state),
        });
        // A replica that pulls or loads the target gets no order; any other gets one, repeated at intervals.
        let under_way = status.wanted.as_deref() == Some(target.version.as_str())
            && matches!(status.state, AgentState::Pulling | AgentState::Loading);
        if let (Some(order), false) = (&target.order, under_way)
            && told.is_due(
                replica,
                OrderKind::Weights,
                format!("{} {}", status.instance, target.version),
            )
        {
            tracing::info!(%replica, version = %target.version, serving = ?status.serving, "ordering weights");
            if let Err(error) = engines.order(replica, &members.order_for(replica, order)).await {
                let why = told.refused(&error);
                said.push(format!("engine {replica} does not take an order: {why}"));
            }
        }
        // After the weights: an engine that wakes up loads them, and serves no others in between. One that is awake may
        // still be about to fall asleep.
        if status.serving.is_none() && target.asleep == Some(false) && told.superseded.is_none() {
            said.extend(asleep::wake(engines, replica, &status, told).await);
        }
    }
    view.message = in_words(said);
    view.superseded = told.superseded;
    view
}

/// The replicas whose agents pass weights on to each other, in one order for all of them.
struct Members(Vec<SocketAddr>);

impl Members {
    fn of(statuses: &[(SocketAddr, Result<AgentStatus, String>)]) -> Self {
        let relays = |(replica, status): &(SocketAddr, Result<AgentStatus, String>)| {
            status.as_ref().is_ok_and(|status| status.relays).then_some(*replica)
        };
        let mut members: Vec<SocketAddr> = statuses.iter().filter_map(relays).collect();
        members.sort_unstable();
        members.truncate(Relay::MOST);
        Self(members)
    }

    /// The order for a replica: with the members, if it is one of them. One alone gets it too: those that come later
    /// get chunks from it.
    fn order_for(&self, replica: SocketAddr, order: &WeightsOrder) -> WeightsOrder {
        let own = self.0.iter().position(|member| *member == replica);
        let relay = own.map(|own| Relay {
            members: self.0.iter().map(|member| format!("http://{member}")).collect(),
            own,
        });
        WeightsOrder { relay, ..order.clone() }
    }
}

/// Problems of the first few replicas, and how many others have one.
fn in_words(mut said: Vec<String>) -> Option<String> {
    let more = said.len().saturating_sub(NAMED);
    said.truncate(NAMED);
    said.extend((more > 0).then(|| format!("{more} more engines are not as they should be")));
    (!said.is_empty()).then(|| said.join("; "))
}

/// Why the driver stops waiting for replicas.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SwitchError {
    #[error("nothing looks at the engines any more")]
    Unseen,
    #[error(transparent)]
    Superseded(#[from] Superseded),
    #[error(
        "the trainer waits for the devices, and for {patience:?} {awake} of {known} engines did not sleep: {last}; look at the logs of an engine and its agent"
    )]
    Awake {
        awake: usize,
        known: usize,
        patience: Duration,
        last: String,
    },
    #[error(
        "engines answer, and for {patience:?} none of them serves the weights {version}: {last}; look at the logs of an engine and its agent, and at the memory, disk and deadlines of its pod"
    )]
    NotServed {
        version: String,
        patience: Duration,
        last: String,
    },
}

impl From<SwitchError> for DriverError {
    fn from(error: SwitchError) -> Self {
        match error {
            // An engine that cannot sleep may be replaced: the next attempt begins with new ones.
            SwitchError::Unseen | SwitchError::Awake { .. } => Self::Other(error.to_string()),
            SwitchError::Superseded(superseded) => superseded.into(),
            SwitchError::NotServed { .. } => TerminalFault::new(Reason::WeightsNotServed, error.to_string()).into(),
        }
    }
}

/// How long to wait for replicas.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// For replicas that are not ready, while others are.
    grace: Duration,
    /// While replicas answer and none serves the weights.
    patience: Duration,
}

/// Waits until every awaited replica serves the current target, or until one does and the grace period of the others is
/// over.
pub async fn until_updated(
    view: watch::Receiver<View>,
    target: &watch::Receiver<Option<Target>>,
    patience: Duration,
) -> Result<View, SwitchError> {
    let limits = Limits { grace: GRACE, patience };
    until(view, |view| updated(view, target), View::has_all_awaited, limits).await
}

/// Waits until one replica serves the current target.
pub async fn until_one_updated(
    view: watch::Receiver<View>,
    target: &watch::Receiver<Option<Target>>,
    patience: Duration,
) -> Result<View, SwitchError> {
    let limits = Limits { grace: GRACE, patience };
    until(view, |view| updated(view, target), |_| true, limits).await
}

/// How many replicas serve the target; 0 if the view is of another version.
fn updated(view: &View, target: &watch::Receiver<Option<Target>>) -> usize {
    let target = target.borrow();
    let current = target.as_ref().is_some_and(|target| target.version == view.version);
    if current { view.updated } else { 0 }
}

/// Waits until every serving replica has `version` on disk, or until one has and the grace period of the others is
/// over.
pub async fn until_prefetched(view: watch::Receiver<View>, version: &str) -> Result<View, SwitchError> {
    let ready = |view: &View| {
        if view.next.as_deref() == Some(version) {
            view.prefetched
        } else {
            0
        }
    };
    // The previous weights serve meanwhile: no time limit.
    let limits = Limits {
        grace: GRACE,
        patience: Duration::MAX,
    };
    until(view, ready, |view| view.prefetched >= view.updated, limits).await
}

/// Waits until at least one replica is ready and either `all` holds or no other became ready within the grace period.
async fn until(
    mut view: watch::Receiver<View>,
    ready: impl Fn(&View) -> usize,
    all: impl Fn(&View) -> bool,
    Limits { grace, patience }: Limits,
) -> Result<View, SwitchError> {
    let mut newest = (0, Instant::now());
    // How long replicas have answered without serving this version, and the time of the last check. A pool without any
    // answer has no time limit: it has no pods, or no node for them.
    let mut unserved: Option<(String, Duration, Instant)> = None;
    loop {
        {
            let now = view.borrow_and_update();
            if let Some(superseded) = now.superseded {
                return Err(superseded.into());
            }
            let count = ready(&now);
            if count > newest.0 {
                newest = (count, Instant::now());
            }
            if count > 0 && (all(&now) || newest.1.elapsed() >= grace) {
                return Ok(now.clone());
            }
            let before = unserved.take().filter(|(version, ..)| *version == now.version);
            if now.updated == 0 {
                let (answered, looked) = before.map_or((Duration::ZERO, Instant::now()), |(_, time, at)| (time, at));
                let answered = match now.behind {
                    0 => answered,
                    _ => answered + looked.elapsed(),
                };
                if now.behind > 0 && answered >= patience {
                    let last = now.message.clone().unwrap_or_else(|| "they say no reason".into());
                    return Err(SwitchError::NotServed {
                        version: now.version.clone(),
                        patience,
                        last,
                    });
                }
                unserved = Some((now.version.clone(), answered, Instant::now()));
            }
        }
        tokio::select! {
            changed = view.changed() => changed.map_err(|_| SwitchError::Unseen)?,
            () = tokio::time::sleep(grace.min(LOOK_EVERY)) => {}
        }
    }
}

#[cfg(test)]
mod tests;
