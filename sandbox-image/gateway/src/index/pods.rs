//! Events about pods from the cluster: made, shown, answering, failing, gone.

use std::collections::{HashSet, VecDeque};

use grpo_sandbox_protocol::SandboxCause;

use super::{Action, Created, DELETE_AGAIN, Ending, Index, Sandbox, Stage, Waiter, WithoutAddress};
use crate::pull::PullFailure;

/// The kubelet retries a failed pull, but not earlier than this. A second report before is the first failure again,
/// milliseconds.
const SECOND_PULL: i64 = 5_000;

impl Index {
    /// A list of pods begins. Every pod that is known to exist by now is in the list, or is gone.
    pub fn list_begins(&mut self) {
        self.lists += 1;
    }

    /// The list is complete.
    pub fn list_ends(&mut self, listed: &HashSet<String>) -> Vec<Action> {
        let lists = self.lists;
        let must_be_listed = |created: Option<Created>| created.is_some_and(|created| created.lists < lists);
        self.ending
            .retain(|name, ending| ending.unanswered || listed.contains(name) || !must_be_listed(ending.created));
        let missing: Vec<String> = self
            .sandboxes
            .iter()
            .filter(|(name, sandbox)| !listed.contains(*name) && must_be_listed(sandbox.created))
            .map(|(name, _)| name.clone())
            .collect();
        missing
            .iter()
            .flat_map(|name| self.gone(name, SandboxCause::Deleted))
            .collect()
    }

    /// The API server has accepted the order for a pod with this uid, if the uid is known. A pod to be removed can now
    /// be deleted.
    pub fn answered(&mut self, name: &str, uid: &str, now: i64) -> Vec<Action> {
        if let Some(sandbox) = self.sandboxes.get_mut(name) {
            sandbox.made = uid.to_owned();
        }
        if let Some(ending) = self.ending.get_mut(name) {
            ending.made = uid.to_owned();
        }
        self.created(name, now)
    }

    /// The watch reports a pod as gone. It may be an earlier pod of the same name, because a repeated order can make a
    /// pod twice.
    pub fn removed(&mut self, name: &str, uid: &str, cause: SandboxCause) -> Vec<Action> {
        let live = self.sandboxes.get(name).map(|sandbox| &sandbox.made);
        let made = live.or_else(|| self.ending.get(name).map(|ending| &ending.made));
        match made.is_some_and(|made| !made.is_empty() && made != uid) {
            true => Vec::new(),
            false => self.gone(name, cause),
        }
    }

    /// The API server has accepted the order for a pod. A pod to be removed can now be deleted.
    pub fn created(&mut self, name: &str, now: i64) -> Vec<Action> {
        let created = self.created_now(now);
        if let Some(sandbox) = self.sandboxes.get_mut(name) {
            // A list that began before the answer may have missed the pod, even if an earlier attempt was seen.
            sandbox.created = Some(created);
            sandbox.unanswered = false;
        }
        let Some(ending) = self.ending.get_mut(name) else {
            return Vec::new();
        };
        ending.created = Some(created);
        ending.unanswered = false;
        ending.again_at = now + DELETE_AGAIN;
        vec![Action::Delete { name: name.to_owned() }]
    }

    /// A pod of the pool was seen, started or not. Returns whether its address is new.
    pub fn observed(&mut self, name: &str, uid: &str, ip: &str, node: &str, now: i64) -> bool {
        let created = self.created_now(now);
        let Some(sandbox) = self.sandboxes.get_mut(name) else {
            return false;
        };
        sandbox.created.get_or_insert(created);
        // An address appears once; later events add nothing.
        if !sandbox.ip.is_empty() {
            return false;
        }
        if !node.is_empty() {
            sandbox.on_node_since.get_or_insert(now);
        }
        (sandbox.uid, sandbox.ip, sandbox.node) = (uid.to_owned(), ip.to_owned(), node.to_owned());
        !ip.is_empty()
    }

    /// Pods that were shown and have had no address for `for_long` milliseconds: they wait for a node, pull an image,
    /// or their network cannot be set up.
    pub fn without_address(&self, for_long: i64, now: i64) -> Vec<WithoutAddress> {
        let shown = self
            .sandboxes
            .iter()
            .filter(|(_, sandbox)| sandbox.ip.is_empty() && !sandbox.uid.is_empty());
        let since = |sandbox: &Sandbox| sandbox.on_node_since.or(sandbox.created.map(|created| created.at));
        shown
            .filter_map(|(name, sandbox)| {
                let since = since(sandbox).filter(|since| since + for_long <= now)?;
                let (name, uid, node) = (name.clone(), sandbox.uid.clone(), sandbox.node.clone());
                Some(WithoutAddress { name, uid, node, since })
            })
            .collect()
    }

    /// Ends a pod if it still has no address and is still the same pod.
    pub fn discard_without_address(&mut self, pod: &WithoutAddress, now: i64) -> Vec<Action> {
        match self.sandboxes.get(&pod.name) {
            Some(sandbox) if sandbox.ip.is_empty() && sandbox.uid == pod.uid => {
                self.discard(&pod.name, SandboxCause::Unknown, now)
            }
            _ => Vec::new(),
        }
    }

    /// Whether the pod is one of the pool's, or in removal.
    pub fn knows(&self, name: &str) -> bool {
        self.sandboxes.contains_key(name) || self.ending.contains_key(name)
    }

    /// An orphan: a pod that this gateway neither ordered nor restored. It may hold an earlier holder's work, so it is
    /// deleted.
    pub fn orphan(&mut self, name: &str, now: i64) -> Vec<Action> {
        if self.knows(name) {
            return Vec::new();
        }
        let created = Some(self.created_now(now));
        let sandbox = Sandbox {
            created,
            unanswered: false,
            ..Sandbox::ordered("", None)
        };
        self.end(name, &sandbox, now)
    }

    /// sandboxd answers, so both images could be pulled.
    pub fn ready(&mut self, name: &str) {
        let asked = |image: &str, queue: &VecDeque<Waiter>| queue.iter().any(|waiter| waiter.request.image == image);
        let Some(sandbox) = self.sandboxes.get_mut(name) else {
            return;
        };
        // A refused pod may still answer: the kubelet also refuses pods that ran before it restarted.
        if sandbox.stage == Stage::Starting && sandbox.refused_until.is_none() {
            sandbox.warm = !asked(&sandbox.image, &self.queue);
            sandbox.stage = Stage::Ready;
            sandbox.restart_deadline = None;
            self.pulls.succeeded(&sandbox.image);
            // The kubelet does not decide again about a container that the pool restarts.
            if sandbox.restarts == 0 {
                self.node_refusals.succeeded(&sandbox.node);
            }
        }
    }

    /// sandboxd, bound under this epoch, has accepted the order to end: the next answer comes from the restarted
    /// container. Returns its address, for the check whether it answers.
    pub fn restarting(&mut self, name: &str, epoch: u64) -> Option<String> {
        let sandbox = self.sandboxes.get_mut(name)?;
        if sandbox.stage != (Stage::Resetting { epoch }) {
            return None;
        }
        sandbox.stage = Stage::Starting;
        sandbox.restarts += 1;
        Some(sandbox.ip.clone())
    }

    /// Takes in a container's number of restarts. If the container restarted more often than ordered, the lease on it
    /// is lost.
    pub fn restarted(&mut self, name: &str, restarts: u32, cause: SandboxCause, now: i64) -> Vec<Action> {
        let expected = self.sandboxes.get(name).map(|sandbox| match sandbox.stage {
            // The watch may report the restart before sandboxd's answer arrives.
            Stage::Resetting { .. } => sandbox.restarts + 1,
            Stage::Starting | Stage::Ready => sandbox.restarts,
        });
        match expected.is_some_and(|expected| restarts > expected) {
            true => self.discard(name, cause, now),
            false => Vec::new(),
        }
    }

    /// A pod is gone, and a lease on it is lost. While the order for it is not answered, it may appear once more.
    pub fn gone(&mut self, name: &str, cause: SandboxCause) -> Vec<Action> {
        if self.ending.get(name).is_some_and(|ending| !ending.unanswered) {
            self.ending.remove(name);
        }
        let Some(sandbox) = self.sandboxes.remove(name) else {
            return Vec::new();
        };
        let lease = sandbox.lease.clone();
        if sandbox.unanswered {
            self.end(name, &sandbox, 0);
        }
        self.lose(lease, cause)
    }

    /// The API server refused to make a pod.
    pub fn refused(&mut self, name: &str) {
        self.ending.remove(name);
        self.sandboxes.remove(name);
    }

    /// A node refused to run a pod that nothing has used yet. The pod keeps its place for a pause, because the next pod
    /// would probably come to the same node. False if the pod was in use.
    pub fn refused_by_node(&mut self, name: &str, node: &str, message: &str, now: i64) -> bool {
        let sandbox = self.sandboxes.get_mut(name);
        let Some(sandbox) = sandbox.filter(|s| s.lease.is_none() && s.stage == Stage::Starting) else {
            return false;
        };
        if sandbox.refused_until.is_none() {
            sandbox.refused_until = Some(self.node_refusals.refused(node, name, message, now));
        }
        true
    }

    /// Deletes a pod of no further use. A lease on it is lost.
    pub fn discard(&mut self, name: &str, cause: SandboxCause, now: i64) -> Vec<Action> {
        let Some(sandbox) = self.sandboxes.remove(name) else {
            return Vec::new();
        };
        let mut actions = self.end(name, &sandbox, now);
        actions.extend(self.lose(sandbox.lease, cause));
        actions
    }

    /// The API server has no such pod. This means nothing until the pod is known to have existed: the order may be in
    /// progress.
    pub fn absent(&mut self, name: &str) {
        if self.ending.get(name).is_some_and(|ending| ending.created.is_some()) {
            self.ending.remove(name);
        }
    }

    /// The API server has accepted the order to delete a pod: its place is free.
    pub fn deleting(&mut self, name: &str) {
        if let Some(ending) = self.ending.get_mut(name) {
            ending.accepted = true;
        }
    }

    pub(super) fn end(&mut self, name: &str, sandbox: &Sandbox, now: i64) -> Vec<Action> {
        let ending = Ending {
            slot: sandbox.slot,
            created: sandbox.created,
            unanswered: sandbox.unanswered,
            made: sandbox.made.clone(),
            accepted: false,
            orders: 1,
            again_at: now + DELETE_AGAIN,
        };
        self.ending.insert(name.to_owned(), ending);
        match sandbox.unanswered {
            true => Vec::new(),
            false => vec![Action::Delete { name: name.to_owned() }],
        }
    }

    /// An image of a pod cannot be pulled. After the kubelet's second attempt, or after a final failure, callers that
    /// wait for the image get the error, and the pool does not try the image again for a while.
    pub fn pull_failed(&mut self, name: &str, failure: &PullFailure, now: i64) -> Vec<Action> {
        let Some(sandbox) = self.sandboxes.get_mut(name) else {
            return Vec::new();
        };
        let first = *sandbox.pull_failed_at.get_or_insert(now);
        if !failure.is_final && now < first + SECOND_PULL {
            return Vec::new();
        }
        let image = sandbox.image.clone();
        self.pulls.failed(&image, failure, now);
        let mut actions = self.discard(name, SandboxCause::Unknown, now);
        actions.extend(self.refuse_what_cannot_be_pulled(now));
        actions
    }

    fn refuse_what_cannot_be_pulled(&mut self, now: i64) -> Vec<Action> {
        let mut actions = Vec::new();
        let waiters = std::mem::take(&mut self.queue);
        for waiter in waiters {
            match self.pulls.refusal(&waiter.request.image, now) {
                Some(error) if !self.has_ready(&waiter.request.image) => actions.push(Action::Refuse {
                    lease: waiter.request.id,
                    error,
                }),
                _ => self.queue.push_back(waiter),
            }
        }
        actions
    }
}
