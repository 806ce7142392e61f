//! Makes engines follow the journal: whoever serves other weights than the promoted ones is told so, again and again.
//!
//! Level-triggered: this looks at every replica there is, all the time. A replica that restarts is simply behind.

use crate::engine::Engines;
use crate::metrics::Metrics;
use grpo_engine_protocol::{AgentState, WeightsOrder};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How often replicas are looked at when all is well, and while one is behind.
const LOOK_EVERY: Duration = Duration::from_secs(2);
const LOOK_WHILE_BEHIND: Duration = Duration::from_millis(250);
/// An order is repeated at most this often.
const ORDER_EVERY: Duration = Duration::from_secs(5);
/// How long a replica that does not answer holds the others up.
const ABSENT_GRACE: Duration = Duration::from_secs(120);

/// What every replica should serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub version: String,
    /// Nothing for the weights an engine boots with, which nobody can order.
    pub order: Option<WeightsOrder>,
    /// Checksum of the tensors, if the manifest names it: what an engine has to hold to count as updated.
    pub tensors_sha256: Option<String>,
}

/// How far the replicas are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The version this view is about.
    pub version: String,
    pub known: usize,
    pub updated: usize,
    /// Replicas that answer and serve something else.
    pub behind: usize,
    /// Replicas that do not answer.
    pub absent: usize,
    pub message: Option<String>,
}

impl View {
    fn is_complete(&self) -> bool {
        self.updated > 0 && self.behind == 0 && self.absent == 0
    }
}

/// Looks at the replicas until the sender of `target` is dropped.
pub async fn follow(
    engines: Engines,
    mut target: watch::Receiver<Option<Target>>,
    view: watch::Sender<View>,
    metrics: Arc<Metrics>,
) {
    let mut told: HashMap<SocketAddr, (String, Instant)> = HashMap::new();
    loop {
        let wanted = target.borrow_and_update().clone();
        let pause = match &wanted {
            None => LOOK_EVERY,
            Some(wanted) => {
                let now = look(&engines, wanted, &mut told).await;
                metrics.replicas.set(now.known as i64);
                metrics.replicas_updated.set(now.updated as i64);
                let pause = if now.is_complete() {
                    LOOK_EVERY
                } else {
                    LOOK_WHILE_BEHIND
                };
                view.send_if_modified(|view| {
                    let changed = *view != now;
                    *view = now;
                    changed
                });
                pause
            }
        };
        tokio::select! {
            changed = target.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// One look at every replica, with an order for each that is behind.
async fn look(engines: &Engines, target: &Target, told: &mut HashMap<SocketAddr, (String, Instant)>) -> View {
    let replicas = engines.replicas().await;
    told.retain(|replica, _| replicas.contains(replica));
    let mut view = View {
        version: target.version.clone(),
        known: replicas.len(),
        ..View::default()
    };
    let asked = replicas
        .iter()
        .map(|replica| async { (*replica, engines.status(*replica).await) });
    for (replica, status) in futures::future::join_all(asked).await {
        let status = match status {
            Ok(status) => status,
            Err(why) => {
                view.absent += 1;
                view.message = Some(format!("engine {replica} does not answer: {why}"));
                continue;
            }
        };
        let serves = status.serving.as_deref() == Some(target.version.as_str());
        let held = status.loaded_sha256.as_ref();
        let wrong = serves && matches!((held, &target.tensors_sha256), (Some(held), Some(wanted)) if held != wanted);
        if serves && !wrong {
            view.updated += 1;
            continue;
        }
        view.behind += 1;
        view.message = Some(match (wrong, &status.message) {
            (true, _) => format!(
                "engine {replica} says {} but holds other tensors than its manifest",
                target.version
            ),
            (false, Some(message)) => format!("engine {replica} is {:?}: {message}", status.state),
            (false, None) => format!("engine {replica} serves {:?} and is {:?}", status.serving, status.state),
        });
        // A replica on its way is left alone, one that failed or does not know is told; one in between now and then.
        let under_way = status.wanted.as_deref() == Some(target.version.as_str())
            && matches!(status.state, AgentState::Pulling | AgentState::Loading);
        let (instance, at) = told
            .get(&replica)
            .map_or((String::new(), None), |(instance, at)| (instance.clone(), Some(*at)));
        let key = format!("{} {}", status.instance, target.version);
        let due = instance != key || at.is_none_or(|at| at.elapsed() >= ORDER_EVERY);
        if let (Some(order), true, false) = (&target.order, due, under_way) {
            tracing::info!(%replica, version = %target.version, serving = ?status.serving, "ordering weights");
            told.insert(replica, (key, Instant::now()));
            if let Err(error) = engines.order(replica, order).await {
                view.message = Some(format!("engine {replica} does not take an order: {error}"));
            }
        }
    }
    view
}

/// Waits until every replica that answers serves `version`, at least one does, and those that do not answer have had
/// their time. Ends with an error text only if nobody looks any more.
pub async fn until_updated(mut view: watch::Receiver<View>, version: &str) -> Result<View, String> {
    let began = Instant::now();
    loop {
        {
            let now = view.borrow_and_update();
            let here = now.version == version && now.updated > 0 && now.behind == 0;
            if here && (now.absent == 0 || began.elapsed() >= ABSENT_GRACE) {
                return Ok(now.clone());
            }
        }
        tokio::select! {
            changed = view.changed() => changed.map_err(|_| "nobody looks at the engines any more".to_owned())?,
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
    }
}
