//! Channels from the watches to the three controllers.

use futures::{Stream, stream};
use kube::{Resource, core::DeserializeGuard, runtime::reflector::ObjectRef};
use tokio::sync::mpsc;

use crate::{
    metrics::Metrics,
    parent::{Controlled, Parent},
};

/// Length of a controller's trigger queue; a full queue slows the watch down.
const QUEUE: usize = 1024;

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
    stream::unfold(receiver, |mut receiver| async move {
        let parent = receiver.recv().await?;
        Some((ObjectRef::new(&parent.name).within(&parent.namespace), receiver))
    })
}
