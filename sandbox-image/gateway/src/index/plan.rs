//! What follows from the pool's state at one moment: who is served, what is ordered, what goes.

use std::collections::{HashMap, VecDeque};

use grpo_sandbox_protocol::{LeaseRequest, LedgerEntry, Priority, SandboxCause};

use super::{Action, DELETE_AGAIN, Held, Index, Sandbox, Stage, Waiter};

/// A pod that was created is in the watch at once; one that is not there after so long was deleted before it could be shown, milliseconds. One that is
/// shown may start as slowly as it likes: it may be waiting for its image, or for a node.
const UNSEEN: i64 = 120_000;

/// Longest pause before a deletion is ordered again, milliseconds.
const DELETE_AGAIN_MAX: i64 = 30_000;

/// Numbers of pods by image, in the order in which the images were first asked for.
#[derive(Clone, Default)]
struct Counts(Vec<(String, usize)>);

impl Counts {
    fn add(&mut self, image: &str, count: usize) {
        match self.0.iter_mut().find(|(other, _)| other == image) {
            Some((_, n)) => *n += count,
            None => self.0.push((image.to_owned(), count)),
        }
    }

    fn of(&self, image: &str) -> usize {
        self.0.iter().find(|(other, _)| other == image).map_or(0, |(_, n)| *n)
    }
}

impl Held {
    /// When the lease ends by itself, if nothing happens.
    fn ends_at(&self, idle_millis: i64) -> i64 {
        match self.running {
            0 => self.entry.expires_at.min(self.used_at + idle_millis),
            _ => self.entry.expires_at,
        }
    }
}

impl Sandbox {
    /// When a pod that was created but never shown is given up.
    fn given_up_at(&self) -> Option<i64> {
        self.created
            .filter(|_| self.uid.is_empty())
            .map(|created| created.at + UNSEEN)
    }
}

impl Index {
    /// Everything that follows from the state at this moment. `name` makes names for new pods.
    pub fn plan(&mut self, now: i64, mut name: impl FnMut() -> String) -> Vec<Action> {
        let mut actions = self.expire(now);
        actions.extend(self.give_up_unseen(now));
        actions.extend(self.assign(now));
        actions.extend(self.grow(now, &mut name));
        actions.extend(self.delete_again(now));
        actions
    }

    /// When [`Index::plan`] must be asked again though nothing happens.
    pub fn next_deadline(&self, now: i64) -> Option<i64> {
        let idle = self.bounds.idle_millis;
        let leases = self.leases.values().filter(|held| held.promised);
        leases
            .map(|held| held.ends_at(idle))
            .chain(self.queue.iter().map(|waiter| waiter.deadline))
            .chain(self.ending.values().map(|ending| ending.again_at))
            .chain(self.sandboxes.values().filter_map(Sandbox::given_up_at))
            .chain(self.pulls.next_try(now))
            .min()
    }

    fn expire(&mut self, now: i64) -> Vec<Action> {
        let idle = self.bounds.idle_millis;
        let over: Vec<String> = self
            .leases
            .iter()
            .filter(|(_, held)| held.promised && held.ends_at(idle) <= now)
            .map(|(lease, _)| lease.clone())
            .collect();
        self.queue.retain(|waiter| waiter.deadline > now);
        over.iter()
            .flat_map(|lease| {
                self.remember(lease, SandboxCause::Expired);
                self.take_back(lease, Some(SandboxCause::Expired), now)
            })
            .collect()
    }

    fn give_up_unseen(&mut self, now: i64) -> Vec<Action> {
        let unseen: Vec<String> = self
            .sandboxes
            .iter()
            .filter(|(_, sandbox)| sandbox.given_up_at().is_some_and(|at| at <= now))
            .map(|(name, _)| name.clone())
            .collect();
        unseen
            .iter()
            .flat_map(|name| self.discard(name, SandboxCause::Deleted, now))
            .collect()
    }

    /// Orders deletions again that have had no effect yet.
    fn delete_again(&mut self, now: i64) -> Vec<Action> {
        let due = self.ending.iter_mut().filter(|(_, ending)| ending.again_at <= now);
        due.map(|(name, ending)| {
            let pause = (DELETE_AGAIN << ending.orders.min(10)).min(DELETE_AGAIN_MAX);
            ending.orders += 1;
            ending.again_at = now + pause;
            Action::Delete { name: name.clone() }
        })
        .collect()
    }

    fn assign(&mut self, now: i64) -> Vec<Action> {
        let mut order: Vec<usize> = (0..self.queue.len()).collect();
        // Graders first: their episodes are finished but for the verdict.
        order.sort_by_key(|&at| (self.queue[at].request.priority != Priority::Grader, at));
        let mut waiters: Vec<Option<Waiter>> = std::mem::take(&mut self.queue).into_iter().map(Some).collect();
        let mut actions = Vec::new();
        for at in order {
            let Some(waiter) = waiters[at].take() else { continue };
            match self.free_sandbox_for(&waiter.request) {
                Some(name) => {
                    actions.push(Action::Promise {
                        lease: waiter.request.id.clone(),
                    });
                    self.hold(&name, waiter, now);
                }
                None => waiters[at] = Some(waiter),
            }
        }
        self.queue = waiters.into_iter().flatten().collect::<VecDeque<_>>();
        actions
    }

    fn free_sandbox_for(&self, request: &LeaseRequest) -> Option<String> {
        if request.priority == Priority::Agent && self.agents_left() == 0 {
            return None;
        }
        self.sandboxes
            .iter()
            .find(|(_, s)| s.stage == Stage::Ready && s.lease.is_none() && s.image == request.image)
            .map(|(name, _)| name.clone())
    }

    fn hold(&mut self, name: &str, waiter: Waiter, now: i64) {
        let Some(sandbox) = self.sandboxes.get_mut(name) else {
            return;
        };
        let request = waiter.request;
        sandbox.lease = Some(request.id.clone());
        match sandbox.warm {
            true => self.warm_hits += 1,
            false => self.cold_leases += 1,
        }
        self.last_epoch = (self.last_epoch + 1).max(now.unsigned_abs());
        let ttl = (request.ttl_seconds as i64)
            .saturating_mul(1000)
            .clamp(1_000, self.bounds.max_ttl_millis);
        let held = Held {
            ip: sandbox.ip.clone(),
            node: sandbox.node.clone(),
            promised: false,
            warm: sandbox.warm,
            asked_at: waiter.since,
            used_at: now,
            running: 0,
            entry: LedgerEntry {
                lease: request.id.clone(),
                run: request.run,
                sandbox: name.to_owned(),
                pod_uid: sandbox.uid.clone(),
                image: request.image,
                epoch: self.last_epoch,
                expires_at: now + ttl,
                priority: request.priority,
            },
        };
        self.lost.remove(&request.id);
        self.leases.insert(request.id, held);
    }

    /// How many leases more agents may have.
    fn agents_left(&self) -> usize {
        let held = self.leases.values();
        let agents = held.filter(|held| held.entry.priority == Priority::Agent).count();
        (self.bounds.max - self.bounds.reserved).saturating_sub(agents)
    }

    /// Orders pods for who waits, then for who will.
    fn grow(&mut self, now: i64, name: &mut impl FnMut() -> String) -> Vec<Action> {
        let mut actions = Vec::new();
        let asked = self.asked_for();
        let wanted = self.asked_for_or_wanted_warm(&asked);
        let mut free = self.free();
        for (image, count) in wanted.0 {
            if self.pulls.refusal(&image, now).is_some() {
                continue;
            }
            let have = free.get(&image).copied().unwrap_or(0);
            for nth in have..count {
                if self.hanging_removals_fill_the_pool() {
                    return actions;
                }
                if self.sandboxes.len() >= self.bounds.max {
                    // Warm pods make room for those who wait now.
                    let is_waited_for = nth < asked.of(&image);
                    let Some(victim) = is_waited_for.then(|| self.surplus(&asked, &free)).flatten() else {
                        break;
                    };
                    if let Some(sandbox) = self.sandboxes.get(&victim) {
                        free.entry(sandbox.image.clone()).and_modify(|n| *n -= 1);
                    }
                    actions.extend(self.discard(&victim, SandboxCause::Deleted, now));
                }
                *free.entry(image.clone()).or_default() += 1;
                actions.push(self.order(name(), &image));
            }
        }
        actions
    }

    fn hanging_removals_fill_the_pool(&self) -> bool {
        self.sandboxes.len() + self.ending.len() >= self.bounds.max + self.bounds.allowance()
    }

    fn order(&mut self, name: String, image: &str) -> Action {
        let slot = self.slot();
        self.sandboxes.insert(name.clone(), Sandbox::ordered(image, slot));
        Action::Create {
            name,
            image: image.to_owned(),
            slot,
        }
    }

    /// The slot with the fewest pods: as long as some node has room there is one without a pod of that slot.
    fn slot(&self) -> Option<u32> {
        let slots = self.bounds.per_node?;
        let live = self.sandboxes.values().filter_map(|sandbox| sandbox.slot);
        let ending = self.ending.values().filter_map(|ending| ending.slot);
        let mut pods: HashMap<u32, usize> = HashMap::new();
        for slot in live.chain(ending) {
            *pods.entry(slot).or_default() += 1;
        }
        (0..slots).min_by_key(|slot| pods.get(slot).copied().unwrap_or(0))
    }

    /// Pods by image for those who wait and may be served.
    fn asked_for(&self) -> Counts {
        let mut agents_left = self.agents_left();
        let mut asked = Counts::default();
        for waiter in &self.queue {
            if waiter.request.priority == Priority::Agent {
                if agents_left == 0 {
                    continue;
                }
                agents_left -= 1;
            }
            asked.add(&waiter.request.image, 1);
        }
        asked
    }

    fn asked_for_or_wanted_warm(&self, asked: &Counts) -> Counts {
        let mut wanted = asked.clone();
        let mut room_for_warm = self.bounds.warm_max;
        for (image, count) in self.demand.values().flatten() {
            let count = (*count).min(room_for_warm);
            room_for_warm -= count;
            wanted.add(image, count);
        }
        wanted
    }

    /// Pods by image that nobody has leased.
    fn free(&self) -> HashMap<String, usize> {
        let mut free: HashMap<String, usize> = HashMap::new();
        for sandbox in self.sandboxes.values().filter(|s| s.lease.is_none()) {
            *free.entry(sandbox.image.clone()).or_default() += 1;
        }
        free
    }

    /// An unleased pod beyond what those who wait need of its image.
    fn surplus(&self, asked: &Counts, free: &HashMap<String, usize>) -> Option<String> {
        self.sandboxes
            .iter()
            .find(|(_, s)| s.lease.is_none() && free.get(&s.image).copied().unwrap_or(0) > asked.of(&s.image))
            .map(|(name, _)| name.clone())
    }
}
