//! Engines that leave their devices to the trainer and take them again.
//!
//! The trainer may use the devices when *every* replica has said that its engine sleeps: one that is awake, boots or
//! does not answer may hold their memory. So there is no grace period here, as there is for a switch of weights.

use super::{LOOK_EVERY, OrderKind, SwitchError, Target, Told, View};
use crate::engine::Engines;
use grpo_engine_protocol::{AgentState, AgentStatus, SleepOrder};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Orders a replica to sleep, unless it does. Returns why it does not.
///
/// A replica that an earlier driver has put to sleep gets the order too, and counts only when it still sleeps
/// afterwards: otherwise an order of that driver, which may still work, could wake it up beside the trainer.
pub(super) async fn put_to_sleep(
    engines: &Engines,
    replica: SocketAddr,
    status: &AgentStatus,
    told: &mut Told,
) -> Option<String> {
    let is_asleep = status.state == AgentState::Asleep;
    let accepted = told.accepted.get(&replica);
    if is_asleep && accepted.is_some_and(|(instance, asleep)| *instance == status.instance && *asleep) {
        return None;
    }
    let refused = order(engines, replica, status, told, true).await;
    let why = status
        .message
        .as_ref()
        .map(|why| format!(": {why}"))
        .unwrap_or_default();
    Some(refused.unwrap_or_else(|| match is_asleep {
        true => format!("engine {replica} sleeps by an earlier order, and has yet to confirm this driver's{why}"),
        false => format!("engine {replica} is {:?} and does not sleep yet{why}", status.state),
    }))
}

/// Orders a replica that sleeps to wake up. Returns why it does not take the order.
pub(super) async fn wake(
    engines: &Engines,
    replica: SocketAddr,
    status: &AgentStatus,
    told: &mut Told,
) -> Option<String> {
    order(engines, replica, status, told, false).await
}

async fn order(
    engines: &Engines,
    replica: SocketAddr,
    status: &AgentStatus,
    told: &mut Told,
    asleep: bool,
) -> Option<String> {
    if !told.is_due(replica, OrderKind::Sleep, format!("{} {asleep}", status.instance)) {
        return None;
    }
    tracing::info!(%replica, asleep, "telling the engine to sleep or to wake up");
    let Err(error) = engines.sleep(replica, SleepOrder { asleep }).await else {
        told.accepted.insert(replica, (status.instance.clone(), asleep));
        return None;
    };
    let what = match asleep {
        true => "sleep",
        false => "wake up",
    };
    let refused = told.refused(&error);
    Some(format!("engine {replica} does not take the order to {what}: {refused}"))
}

/// Whose turn it is: the trainer's, as long as every engine sleeps. Cloning is cheap.
#[derive(Clone)]
pub struct Turn {
    pub view: watch::Receiver<View>,
    pub target: watch::Receiver<Option<Target>>,
    /// All of these sleep in the trainer's turn, and further ones too.
    pub replicas: usize,
}

impl Turn {
    /// By the last look at the engines.
    pub fn is_the_trainers(&self) -> bool {
        all_sleep(&self.view.borrow(), &self.target, self.replicas)
    }
}

fn all_sleep(view: &View, target: &watch::Receiver<Option<Target>>, replicas: usize) -> bool {
    let all = view.known >= replicas && view.asleep == view.known;
    view.sleeping && all && view.superseded.is_none() && is_of(view, target)
}

/// Waits until all of at least `replicas` engines sleep. `patience`: how long engines may answer without doing so; a
/// pool without any answer has no time limit, because the operator waits for its pods.
pub async fn until_asleep(turn: &Turn, patience: Duration) -> Result<(), SwitchError> {
    let Turn { target, replicas, .. } = turn;
    let (mut view, replicas) = (turn.view.clone(), *replicas);
    let mut answered = Duration::ZERO;
    loop {
        let looked = Instant::now();
        let awake = {
            let now = view.borrow_and_update();
            if let Some(superseded) = now.superseded {
                return Err(superseded.into());
            }
            if all_sleep(&now, target, replicas) {
                return Ok(());
            }
            if answered >= patience {
                return Err(SwitchError::Awake {
                    awake: now.known.max(replicas) - now.asleep,
                    known: now.known.max(replicas),
                    patience,
                    last: now.message.clone().unwrap_or_else(|| "they say no reason".into()),
                });
            }
            now.behind > 0
        };
        tokio::select! {
            changed = view.changed() => changed.map_err(|_| SwitchError::Unseen)?,
            () = tokio::time::sleep(patience.saturating_sub(answered).min(LOOK_EVERY)) => {}
        }
        if awake {
            answered += looked.elapsed();
        }
    }
}

/// Whether a view is of the current target.
fn is_of(view: &View, target: &watch::Receiver<Option<Target>>) -> bool {
    let target = target.borrow();
    target
        .as_ref()
        .is_some_and(|target| target.asleep == Some(true) && target.version == view.version)
}

#[cfg(test)]
mod tests;
