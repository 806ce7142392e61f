//! What admission decides from, and what it decides: data that the rules share.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::{
    facts::{Candidate, NodeFacts, PodNeeds},
    messages,
    standing::Standing,
    verdict::Verdict,
};

/// Lifted pods are bound after this long, or go back.
pub const BIND_DEADLINE: SignedDuration = SignedDuration::from_secs(30);
/// Everything a decision is made from.
#[derive(Clone, Debug)]
pub struct Snapshot<'a> {
    /// None: the operator may not look at nodes. Then everything fits until the scheduler shows otherwise.
    pub nodes: Option<&'a [NodeFacts]>,
    pub pods: Vec<&'a PodNeeds>,
    pub candidates: Vec<&'a Candidate>,
    pub now: Timestamp,
    /// How long new nodes are waited for. None: no nodes are added.
    pub scale_up: Option<SignedDuration>,
}

/// A pod to be let go or taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// The node that is planned for it.
    pub node: Option<String>,
    /// Its hostname, when the scheduler is bound to it.
    pub host: Option<String>,
    pub other_gates: Vec<String>,
}

/// What is done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Lift { run: String, pods: Vec<Chosen> },
    Requeue { run: String, pods: Vec<Chosen> },
}

#[derive(Debug)]
pub struct Decision {
    pub step: Option<Step>,
    pub verdicts: BTreeMap<String, Verdict>,
    /// Something is due then even if nothing happens.
    pub again_at: Option<Timestamp>,
}

/// A pod without a node that is planned for it.
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
    /// What a run is told. One that does its work stays admitted while further replicas wait.
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
