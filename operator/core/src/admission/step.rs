//! Input and result of an admission decision: data that the rules share.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::{
    facts::{Candidate, NodeFacts, PodNeeds},
    messages,
    standing::Standing,
    verdict::Verdict,
};

/// Lifted pods not bound after this time are requeued.
pub const BIND_DEADLINE: SignedDuration = SignedDuration::from_secs(30);
/// The same while a volume is made for them: the scheduler binds a pod after its volumes, and a provisioner of shared
/// file systems needs minutes. The scheduler itself gives up after this time.
pub const VOLUME_DEADLINE: SignedDuration = SignedDuration::from_mins(10);

/// All input of a decision.
#[derive(Clone, Debug)]
pub struct Snapshot<'a> {
    /// `None`: the operator may not read nodes. Then everything fits until the scheduler shows otherwise.
    pub nodes: Option<&'a [NodeFacts]>,
    pub pods: Vec<&'a PodNeeds>,
    pub candidates: Vec<&'a Candidate>,
    pub now: Timestamp,
    /// How long to wait for new nodes. `None`: the cluster adds no nodes.
    pub scale_up: Option<SignedDuration>,
}

/// A pod to lift or to requeue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// The planned node.
    pub node: Option<String>,
    /// The node's host name, if the pod is pinned to the node.
    pub host: Option<String>,
    pub other_gates: Vec<String>,
}

/// The action to take now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Lift { run: String, pods: Vec<Chosen> },
    Requeue { run: String, pods: Vec<Chosen> },
}

#[derive(Debug)]
pub struct Decision {
    pub step: Option<Step>,
    pub verdicts: BTreeMap<String, Verdict>,
    /// Decide again then, even without an event.
    pub again_at: Option<Timestamp>,
}

/// A pod without a planned node.
pub(super) fn chosen(pod: &PodNeeds) -> Chosen {
    Chosen {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.to_string(),
        node: None,
        host: None,
        other_gates: pod
            .member
            .as_ref()
            .map(|member| member.other_gates.clone())
            .unwrap_or_default(),
    }
}

impl Decision {
    /// Sets the verdict on a run. A run that works stays admitted while further replicas wait.
    pub(super) fn tell(&mut self, run: &Standing<'_>, verdict: Verdict) {
        let verdict = match !verdict.admitted && run.works() {
            true => messages::works_while(&verdict),
            false => verdict,
        };
        self.verdicts.insert(run.run.uid.clone(), verdict);
    }

    pub(super) fn wake(&mut self, at: Timestamp) {
        self.again_at = Some(self.again_at.map_or(at, |known| known.min(at)));
    }
}
