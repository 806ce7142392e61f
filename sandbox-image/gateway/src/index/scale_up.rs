//! The number of pods: first for waiting callers, then for the warm demand of runs. Unwanted pods end after a while.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use grpo_sandbox_protocol::{Priority, SandboxCause};

use super::fair_queue::in_fair_order;
use super::{Action, Index, Sandbox, Stage};
use crate::pull::PullFailure;

/// How long unwanted pods are kept, in milliseconds: demand comes in waves.
const LINGER: i64 = 60_000;

/// Unleased pods by image, without those already counted for a waiter or a demand.
type Spare = HashMap<String, usize>;

fn takes_one(spare: &mut Spare, image: &str) -> bool {
    match spare.get_mut(image) {
        Some(left) if *left > 0 => {
            *left -= 1;
            true
        }
        _ => false,
    }
}

/// The room for new orders in one plan.
struct Room {
    /// Orders until too many are in progress, or too many removals hang.
    orders: usize,
    /// Places until the pool is full.
    places: usize,
    /// Pods of each slot, if nodes are bounded.
    slots: Vec<usize>,
}

impl Room {
    /// Takes room for one pod and returns its slot: the one with the fewest pods. As long as some node has room, that
    /// node lacks a pod of this slot.
    fn take(&mut self) -> Option<u32> {
        self.orders -= 1;
        self.places -= 1;
        let (slot, pods) = self.slots.iter_mut().enumerate().min_by_key(|(_, pods)| **pods)?;
        *pods += 1;
        Some(slot as u32)
    }
}

impl Index {
    /// Orders pods for waiters, then for warm demand, and ends useless pods.
    pub(super) fn scale_up(&mut self, now: i64, name: &mut impl FnMut() -> String) -> Vec<Action> {
        let mut spare = self.unleased();
        // Waiters without a starting or ready pod.
        let mut missing = self.waiting_images(now);
        missing.retain(|image| !takes_one(&mut spare, image));
        let not_waited_for = spare.clone();
        let mut missing_warm = self.warm_images();
        missing_warm.retain(|image| !takes_one(&mut spare, image));

        let (mut actions, mut trying) = (Vec::new(), self.trying(now));
        let (mut for_waiting, mut for_warm) = (0usize, 0usize);
        let mut room = self.room();
        // Missing pods beyond this make no difference.
        let enough = not_waited_for.values().sum::<usize>() + self.coming();
        let wanted = missing.iter().map(|image| (image, true));
        for (image, is_waited_for) in wanted.chain(missing_warm.iter().map(|image| (image, false))) {
            if room.orders == 0 || room.places == 0 && for_waiting + for_warm >= enough {
                break;
            }
            if !self.may_try(image, &mut trying, now) {
                continue;
            }
            match (room.places > 0, is_waited_for) {
                (true, _) => actions.push(self.order(name(), image, room.take())),
                (false, true) => for_waiting += 1,
                (false, false) => for_warm += 1,
            }
        }
        for victim in self.victims(for_waiting, for_warm, &spare, not_waited_for) {
            if let Some(sandbox) = self.sandboxes.get(&victim) {
                takes_one(&mut spare, &sandbox.image);
            }
            actions.extend(self.discard(&victim, SandboxCause::Deleted, now));
        }
        actions.extend(self.shrink(spare, now));
        actions
    }

    /// Unleased pods that make room: unwanted pods for wanted ones, and warm pods for waiting callers. Pods in removal
    /// make room too.
    fn victims(&self, for_waiting: usize, for_warm: usize, unwanted: &Spare, mut not_waited_for: Spare) -> Vec<String> {
        let coming = self.coming();
        let short = (for_waiting + for_warm).saturating_sub(coming);
        let mut victims = self.some_unleased(&mut unwanted.clone(), short, &[]);
        let still_short = for_waiting.saturating_sub(coming + victims.len());
        for sandbox in victims.iter().filter_map(|victim| self.sandboxes.get(victim)) {
            takes_one(&mut not_waited_for, &sandbox.image);
        }
        let more = self.some_unleased(&mut not_waited_for, still_short, &victims);
        victims.extend(more);
        victims
    }

    /// Pods that count towards the pool's `max`.
    pub fn counted(&self) -> usize {
        self.sandboxes.len() + self.coming()
    }

    /// Places that become free as soon as deletions are accepted.
    fn coming(&self) -> usize {
        self.ending.values().filter(|ending| !ending.accepted).count()
    }

    pub fn has_room(&self) -> bool {
        self.counted() < self.bounds.max
    }

    fn room(&self) -> Room {
        let all = self.sandboxes.len() + self.ending.len();
        let beside_hanging = (self.bounds.max + self.bounds.allowance()).saturating_sub(all);
        let mut slots = vec![0; self.bounds.per_node.unwrap_or(0) as usize];
        let live = self.sandboxes.values().filter_map(|sandbox| sandbox.slot);
        let ending = self.ending.values().filter_map(|ending| ending.slot);
        for slot in live.chain(ending) {
            if let Some(pods) = slots.get_mut(slot as usize) {
                *pods += 1;
            }
        }
        Room {
            orders: self.bounds.orders.saturating_sub(self.under_way()).min(beside_hanging),
            places: self.bounds.max.saturating_sub(self.counted()),
            slots,
        }
    }

    /// Creations that the API server has not answered.
    pub fn under_way(&self) -> usize {
        let ending = self.ending.values().filter(|ending| ending.unanswered);
        self.sandboxes.values().filter(|sandbox| sandbox.unanswered).count() + ending.count()
    }

    /// Starting pods of failed images, by image. If sandboxd's image failed, all pods count.
    fn trying(&self, now: i64) -> HashMap<String, usize> {
        let mut trying: HashMap<String, usize> = HashMap::new();
        for sandbox in self.sandboxes.values().filter(|s| s.stage == Stage::Starting) {
            if self.pulls.is_suspect(&sandbox.image, now) {
                *trying.entry(sandbox.image.clone()).or_default() += 1;
            }
        }
        trying
    }

    /// Whether a pod of the image may be started now. After a failure, one pod must succeed before more are started.
    fn may_try(&self, image: &str, trying: &mut HashMap<String, usize>, now: i64) -> bool {
        if self.pulls.refusal(image, now).is_some() {
            return false;
        }
        if !self.pulls.is_suspect(image, now) {
            return true;
        }
        let is_free = match self.pulls.a_volume_is_suspect(now) {
            true => trying.is_empty(),
            false => !trying.contains_key(image),
        };
        if is_free {
            trying.insert(image.to_owned(), 1);
        }
        is_free
    }

    fn order(&mut self, name: String, image: &str, slot: Option<u32>) -> Action {
        self.sandboxes.insert(name.clone(), Sandbox::ordered(image, slot));
        Action::Create {
            name,
            image: image.to_owned(),
            slot,
        }
    }

    /// The images of the waiters that may be served, in fair order.
    fn waiting_images(&self, now: i64) -> Vec<Arc<str>> {
        let (mut agents_left, mut images) = (self.agents_left(), Vec::new());
        in_fair_order(&self.queue, &self.leases, |_, waiter| {
            let is_agent = waiter.request.priority == Priority::Agent;
            let is_kept_waiting = waiter.is_abandoned || is_agent && agents_left == 0;
            if is_kept_waiting || self.pulls.refusal(&waiter.request.image, now).is_some() {
                return false;
            }
            agents_left -= usize::from(is_agent);
            images.push(Arc::from(waiter.request.image.as_str()));
            true
        });
        images
    }

    /// The images of the warm demand, in turn over the runs, up to the maximum of warm pods.
    fn warm_images(&self) -> Vec<Arc<str>> {
        let runs = self.demand.values().map(|wanted| {
            let images = wanted.images.iter();
            images.flat_map(|(image, count)| std::iter::repeat_n(image, *count))
        });
        let (mut runs, mut images): (Vec<_>, Vec<Arc<str>>) = (runs.collect(), Vec::new());
        while !runs.is_empty() && images.len() < self.bounds.warm_max {
            runs.retain_mut(|run| match run.next() {
                Some(image) if images.len() < self.bounds.warm_max => {
                    images.push(image.clone());
                    true
                }
                _ => false,
            });
        }
        images
    }

    /// Wanted images without a pod, because the pool has no room: those of waiters first, then those of the warm
    /// demand. Images with a failed pull are left out; a sandbox tries them.
    pub fn images_to_come(&self, now: i64) -> Vec<Arc<str>> {
        let there: HashSet<&str> = self.sandboxes.values().map(|sandbox| sandbox.image.as_str()).collect();
        let waiting = self.queue.iter().map(|waiter| Arc::from(waiter.request.image.as_str()));
        let demanded = self.demand.values().flat_map(|wanted| &wanted.images);
        let mut distinct = HashSet::new();
        waiting
            .chain(demanded.map(|(image, _)| image.clone()))
            .filter(|image| !there.contains(&**image) && !self.pulls.is_suspect(image, now))
            .filter(|image| distinct.insert(image.clone()))
            .collect()
    }

    /// Whether a waiter or a run wants sandboxes of the image.
    pub fn is_wanted(&self, image: &str) -> bool {
        let mut demanded = self.demand.values().flat_map(|wanted| &wanted.images);
        demanded.any(|(wanted, _)| &**wanted == image) || self.queue.iter().any(|w| w.request.image == image)
    }

    /// A node failed to pull the image before a sandbox of it existed.
    pub fn pull_failed_ahead(&mut self, image: &str, failure: &PullFailure, now: i64) {
        self.pulls.failed(image, failure, now);
    }

    fn unleased(&self) -> Spare {
        let mut unleased = Spare::new();
        for sandbox in self.sandboxes.values().filter(|s| s.lease.is_none()) {
            match unleased.get_mut(&sandbox.image) {
                Some(count) => *count += 1,
                None => drop(unleased.insert(sandbox.image.clone(), 1)),
            }
        }
        unleased
    }

    /// `count` spare unleased pods; starting pods first.
    fn some_unleased(&self, spare: &mut Spare, count: usize, but: &[String]) -> Vec<String> {
        if count == 0 {
            return Vec::new();
        }
        let unleased = |starting: bool| {
            let unleased = self.sandboxes.iter().filter(|(_, s)| s.lease.is_none());
            unleased.filter(move |(_, s)| (s.stage == Stage::Starting) == starting)
        };
        let all = unleased(true)
            .chain(unleased(false))
            .filter(|(name, _)| !but.contains(name));
        let some = all.filter(|(_, sandbox)| takes_one(spare, &sandbox.image));
        some.take(count).map(|(name, _)| name.clone()).collect()
    }

    /// Ends pods that have been unwanted for a while.
    fn shrink(&mut self, spare: Spare, now: i64) -> Vec<Action> {
        self.surplus_since
            .retain(|image, _| spare.get(image).is_some_and(|count| *count > 0));
        for image in spare.iter().filter(|(_, count)| **count > 0).map(|(image, _)| image) {
            if !self.surplus_since.contains_key(image) {
                self.surplus_since.insert(image.clone(), now);
            }
        }
        let is_over = |image: &String| self.surplus_since.get(image).is_some_and(|since| since + LINGER <= now);
        let mut over: Spare = spare.into_iter().filter(|(image, _)| is_over(image)).collect();
        let count = over.values().sum();
        let ends = self.some_unleased(&mut over, count, &[]);
        self.surplus_since.retain(|_, since| *since + LINGER > now);
        ends.iter()
            .flat_map(|name| self.discard(name, SandboxCause::Deleted, now))
            .collect()
    }

    pub(super) fn next_shrink(&self) -> Option<i64> {
        self.surplus_since.values().map(|since| since + LINGER).min()
    }
}

#[cfg(test)]
mod tests;
