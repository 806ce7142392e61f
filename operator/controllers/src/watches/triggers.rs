//! Channels from the watches to the three controllers.

use std::{
    collections::{HashSet, VecDeque},
    future::pending,
    time::Duration,
};

use futures::{Stream, stream};
use kube::{Resource, core::DeserializeGuard, runtime::reflector::ObjectRef};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

use crate::{
    metrics::Metrics,
    parent::{Controlled, Parent},
};

/// Length of a controller's trigger queue; a full queue slows the watch down.
const QUEUE: usize = 1024;
/// Triggers of an object within this time lead to one reconcile.
const WINDOW: Duration = Duration::from_millis(20);

/// Senders to the three controllers.
#[derive(Clone)]
pub struct Triggers {
    runs: mpsc::Sender<Parent>,
    inference_pools: mpsc::Sender<Parent>,
    sandbox_pools: mpsc::Sender<Parent>,
    pub metrics: Metrics,
}

/// The controllers' receivers.
pub struct Triggered {
    pub runs: mpsc::Receiver<Parent>,
    pub inference_pools: mpsc::Receiver<Parent>,
    pub sandbox_pools: mpsc::Receiver<Parent>,
}

pub fn triggers(metrics: &Metrics) -> (Triggers, Triggered) {
    let (runs, runs_end) = mpsc::channel(QUEUE);
    let (inference_pools, inference_end) = mpsc::channel(QUEUE);
    let (sandbox_pools, sandbox_end) = mpsc::channel(QUEUE);
    let triggers = Triggers {
        runs,
        inference_pools,
        sandbox_pools,
        metrics: metrics.clone(),
    };
    let triggered = Triggered {
        runs: runs_end,
        inference_pools: inference_end,
        sandbox_pools: sandbox_end,
    };
    (triggers, triggered)
}

impl Triggers {
    pub async fn pull(&self, parent: Parent) {
        let way = match parent.kind {
            Controlled::Run => &self.runs,
            Controlled::InferencePool => &self.inference_pools,
            Controlled::SandboxPool => &self.sandbox_pools,
        };
        self.metrics.triggered(&parent);
        // The end of a controller ends the process; until then its triggers are dropped.
        let _ = way.send(parent).await;
    }
}

/// A controller's receiver as the stream that kube's runtime needs.
pub fn requests<K>(
    receiver: mpsc::Receiver<Parent>,
) -> impl Stream<Item = ObjectRef<DeserializeGuard<K>>> + Send + 'static
where
    K: Resource<DynamicType = ()> + 'static,
{
    stream::unfold(Merging::of(receiver), |mut merging| async move {
        let parent = merging.next().await?;
        Some((ObjectRef::new(&parent.name).within(&parent.namespace), merging))
    })
}

/// Merges the triggers of an object: the first one opens a window of [`WINDOW`], at whose end the object is reconciled
/// once. The debounce of kube's runtime begins anew with each trigger instead: a pool whose pods change all the time
/// would wait until they stop.
struct Merging {
    receiver: mpsc::Receiver<Parent>,
    /// Open windows, in the order of their ends.
    windows: VecDeque<(Instant, Parent)>,
    open: HashSet<Parent>,
}

impl Merging {
    fn of(receiver: mpsc::Receiver<Parent>) -> Self {
        Self {
            receiver,
            windows: VecDeque::new(),
            open: HashSet::new(),
        }
    }

    /// `None`: the senders are gone.
    async fn next(&mut self) -> Option<Parent> {
        loop {
            let end = self.windows.front().map(|(end, _)| *end);
            let ended = async {
                match end {
                    Some(end) => sleep_until(end).await,
                    None => pending().await,
                }
            };
            let trigger = tokio::select! {
                biased;
                () = ended => None,
                trigger = self.receiver.recv() => Some(trigger?),
            };
            match trigger {
                Some(parent) => {
                    if self.open.insert(parent.clone()) {
                        self.windows.push_back((Instant::now() + WINDOW, parent));
                    }
                }
                None => {
                    let (_, parent) = self.windows.pop_front()?;
                    self.open.remove(&parent);
                    return Some(parent);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
