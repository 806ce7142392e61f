//! Gateways against a cluster that answers late or not at all, and reports every event late, twice and in any order.
//! Meanwhile gateways are killed, replaced, or continue beside their successors.
//!
//! Released pods are used again, with restarted containers; sandboxd accepts one lease in each life of its container.
//!
//! Checked after every step: no life of a pod is ever given to two leases; no gateway has more pods than `max`,
//! counting those that its orders in progress may create; the next gateway finds every granted lease. Checked at the
//! end, when every event has arrived: nothing is left over.

use std::collections::BTreeSet;

use crate::index::*;
use grpo_sandbox_protocol::{LeaseRequest, Priority};
use proptest::prelude::*;

const MAX: usize = 4;

#[derive(Clone, Debug)]
struct Pod {
    image: String,
    uid: String,
    term: u64,
    answers: bool,
    /// Number of container restarts.
    restarts: u32,
    bound: Option<(String, u64)>,
}

impl Pod {
    fn shown(&self, name: &str) -> Shown {
        Shown {
            name: name.to_owned(),
            uid: self.uid.clone(),
            term: self.term,
            restarts: self.restarts,
        }
    }
}

/// A request on its way to the API server, to the ledger, or to a sandbox.
#[derive(Clone, Debug)]
enum InFlight {
    Create { name: String, image: String },
    Delete { name: String },
    Commit { lease: String },
    Bind { entry: LedgerEntry },
    Reset { name: String, lease: String, epoch: u64 },
    Forget { lease: String, epoch: u64 },
    Ask { lease: String, epoch: u64 },
}

/// An event on its way to a gateway.
#[derive(Clone, Debug)]
enum News {
    Created(String, String),
    Refused(String),
    Deleting(String),
    Absent(String),
    Shown(Shown),
    Gone(String, String),
    List(Vec<Shown>),
    /// sandboxd has accepted the order to end, or not.
    Restarting(String, u64),
    NotRestarting(String),
}

/// A pod in a watch event or a list.
#[derive(Clone, Debug)]
struct Shown {
    name: String,
    uid: String,
    term: u64,
    restarts: u32,
}

struct Gateway {
    index: Index,
    term: u64,
    orders: Vec<InFlight>,
    news: Vec<News>,
    /// Uids of the pods that this gateway took over.
    adopted: BTreeSet<String>,
    names: u32,
}

#[derive(Default)]
struct World {
    pods: BTreeMap<String, Pod>,
    ledger_term: u64,
    ledger: BTreeMap<String, LedgerEntry>,
    /// The last one is in office.
    gateways: Vec<Gateway>,
    /// Orders of gateways that have ended.
    late: Vec<(u64, InFlight)>,
    /// The lease that each life of a pod, by its uid, was ever granted to.
    granted: BTreeMap<(String, u32), (String, u64)>,
    /// Leases with a holder, neither released nor lost.
    held: BTreeMap<String, (u64, String, (String, u32))>,
    /// Leases that were released or taken back. A later grant from a gateway that does not know of it is void.
    ended: BTreeSet<(String, u64)>,
    uids: u32,
    now: i64,
}

fn bounds() -> Bounds {
    Bounds {
        max: MAX,
        reserved: 1,
        warm_max: MAX,
        orders: 3,
        waiting: 50,
        per_node: None,
        max_ttl_millis: 600_000,
        idle_millis: 600_000,
    }
}

impl World {
    fn begin() -> Self {
        let mut world = Self::default();
        world.next_gateway(true);
        world
    }

    /// A gateway begins. The previous one is killed, or continues because it does not know of the new one.
    fn next_gateway(&mut self, kill: bool) {
        if kill && let Some(old) = self.gateways.pop() {
            self.late.extend(old.orders.into_iter().map(|order| (old.term, order)));
        }
        self.ledger_term += 1;
        let (mut index, mut adopted) = (Index::new(bounds()), BTreeSet::new());
        index.resets = true;
        let pods = &self.pods;
        let newest = |entry: &LedgerEntry, ledger: &BTreeMap<String, LedgerEntry>| {
            let of_the_pod = ledger.values().filter(|other| other.pod_uid == entry.pod_uid);
            of_the_pod.map(|other| other.epoch).max() == Some(entry.epoch)
        };
        let lives = |entry: &LedgerEntry| {
            let pod = pods.get(&entry.sandbox);
            pod.is_some_and(|pod| pod.uid == entry.pod_uid && pod.restarts <= entry.restarts)
        };
        let all = self.ledger.clone();
        let named: BTreeSet<String> = all.values().map(|entry| entry.sandbox.clone()).collect();
        self.ledger.retain(|_, entry| lives(entry) && newest(entry, &all));
        for entry in self.ledger.values().cloned() {
            adopted.insert(entry.pod_uid.clone());
            index.restore(entry, Found::default(), self.now);
        }
        for (lease, (epoch, pod, life)) in &self.held {
            let found = index.leases.get(lease).map(|held| held.entry.epoch);
            let lives = pods
                .get(pod)
                .is_some_and(|pod| (&pod.uid, pod.restarts) == (&life.0, life.1));
            assert!(!lives || found == Some(*epoch), "{lease} is lost");
        }
        for (name, pod) in &self.pods {
            if !named.contains(name) && index.has_room() {
                index.adopt(name, &pod.image, None, pod.restarts, self.now);
                adopted.insert(pod.uid.clone());
            }
        }
        let news = vec![News::List(self.shown())];
        index.list_begins();
        self.gateways.push(Gateway {
            index,
            term: self.ledger_term,
            orders: Vec::new(),
            news,
            adopted,
            names: 0,
        });
    }

    fn end(&mut self, at: usize) {
        let old = self.gateways.remove(at);
        self.late.extend(old.orders.into_iter().map(|order| (old.term, order)));
    }

    fn tell_all(&mut self, news: &News) {
        self.gateways
            .iter_mut()
            .for_each(|gateway| gateway.news.push(news.clone()));
    }

    fn show(&mut self, name: &str) {
        if let Some(pod) = self.pods.get(name) {
            let shown = pod.shown(name);
            self.tell_all(&News::Shown(shown));
        }
    }

    fn shown(&self) -> Vec<Shown> {
        self.pods.iter().map(|(name, pod)| pod.shown(name)).collect()
    }

    fn remove(&mut self, name: &str) -> bool {
        let removed = self.pods.remove(name);
        if let Some(pod) = &removed {
            self.tell_all(&News::Gone(name.to_owned(), pod.uid.clone()));
        }
        removed.is_some()
    }

    fn create(&mut self, term: u64, name: &str, image: &str) {
        if self.pods.contains_key(name) {
            return;
        }
        self.uids += 1;
        let pod = Pod {
            image: image.to_owned(),
            uid: format!("u{}", self.uids),
            term,
            answers: false,
            restarts: 0,
            bound: None,
        };
        self.pods.insert(name.to_owned(), pod);
        self.show(name);
    }

    /// Plans, and sends the resulting orders.
    fn plan(&mut self, at: usize) {
        let now = self.now;
        let Some(gateway) = self.gateways.get_mut(at) else {
            return;
        };
        let (term, names) = (gateway.term, &mut gateway.names);
        let actions = gateway.index.plan(now, || {
            *names += 1;
            format!("t{term}-{names}")
        });
        self.act(at, actions);
    }

    fn act(&mut self, at: usize, actions: Vec<Action>) {
        for action in actions {
            let gateway = &mut self.gateways[at];
            gateway.orders.extend(match action {
                Action::Create { name, image, .. } => Some(InFlight::Create { name, image }),
                Action::Delete { name } => Some(InFlight::Delete { name }),
                Action::Reset { name, lease, epoch, .. } => Some(InFlight::Reset { name, lease, epoch }),
                Action::Grant { lease } => Some(InFlight::Commit { lease }),
                Action::Forget { lease, epoch, .. } => {
                    if self.held.get(&lease).is_some_and(|(held, ..)| *held == epoch) {
                        self.held.remove(&lease);
                    }
                    self.ended.insert((lease.clone(), epoch));
                    Some(InFlight::Forget { lease, epoch })
                }
                Action::Ask { lease, epoch } => Some(InFlight::Ask { lease, epoch }),
                Action::Refuse { .. } => None,
            });
        }
    }

    /// The API server, the ledger or a sandbox gets an order. It may refuse, and its answer may be lost.
    fn serve(&mut self, at: usize, nth: usize, outcome: u8) {
        let Some(gateway) = self.gateways.get_mut(at) else {
            return;
        };
        if gateway.orders.is_empty() {
            return;
        }
        let order = gateway.orders.swap_remove(nth % gateway.orders.len());
        let (term, is_lost) = (gateway.term, outcome == 0);
        match order {
            InFlight::Create { name, image } => match outcome {
                1 if !self.pods.contains_key(&name) => self.gateways[at].news.push(News::Refused(name)),
                2 => self.gateways[at].orders.push(InFlight::Create { name, image }),
                _ => {
                    self.create(term, &name, &image);
                    let uid = self.pods.get(&name).map(|pod| pod.uid.clone()).unwrap_or_default();
                    let gateway = &mut self.gateways[at];
                    match is_lost {
                        // The gateway asks for the same pod again.
                        true => gateway.orders.push(InFlight::Create { name, image }),
                        false => gateway.news.push(News::Created(name, uid)),
                    }
                }
            },
            InFlight::Delete { name } => {
                let news = match self.remove(&name) {
                    true => News::Deleting(name),
                    false => News::Absent(name),
                };
                if !is_lost {
                    self.gateways[at].news.push(news);
                }
            }
            InFlight::Commit { lease } => {
                if term != self.ledger_term {
                    return self.end(at);
                }
                let gateway = &mut self.gateways[at];
                if let Some(held) = gateway.index.leases.get(&lease) {
                    let entry = held.entry.clone();
                    self.ledger.insert(lease, entry.clone());
                    gateway.orders.push(InFlight::Bind { entry });
                }
            }
            InFlight::Bind { entry } => self.bind(at, entry),
            InFlight::Reset { name, lease, epoch } => {
                let is_taken = outcome != 1 && self.end_of_life(&name, &lease, epoch);
                let news = match is_taken && !is_lost {
                    true => News::Restarting(name, epoch),
                    false => News::NotRestarting(name),
                };
                self.gateways[at].news.push(news);
            }
            InFlight::Forget { lease, epoch } => {
                if term != self.ledger_term {
                    return self.end(at);
                }
                if self.ledger.get(&lease).is_some_and(|entry| entry.epoch == epoch) {
                    self.ledger.remove(&lease);
                }
            }
            InFlight::Ask { lease, epoch } => {
                let now = self.now;
                let actions = self.gateways[at]
                    .index
                    .told_whether_idle(&lease, epoch, outcome > 2, now);
                self.act(at, actions);
            }
        }
    }

    /// sandboxd gets the order to end. Its container restarts at a later time.
    fn end_of_life(&mut self, name: &str, lease: &str, epoch: u64) -> bool {
        let pod = self.pods.get_mut(name);
        let Some(pod) = pod.filter(|pod| {
            pod.bound
                .as_ref()
                .is_some_and(|bound| bound.0 == lease && bound.1 == epoch)
        }) else {
            return false;
        };
        pod.restarts += 1;
        pod.bound = None;
        pod.answers = false;
        self.show(name);
        true
    }

    fn bind(&mut self, at: usize, entry: LedgerEntry) {
        let gateway = &mut self.gateways[at];
        let (lease, epoch) = (entry.lease.clone(), entry.epoch);
        let known = gateway.index.leases.get(&lease).map(|held| held.entry.epoch);
        if known != Some(epoch) {
            gateway.orders.push(InFlight::Forget { lease, epoch });
            return;
        }
        let who = (lease.clone(), epoch);
        let pod = self.pods.get_mut(&entry.sandbox).filter(|pod| pod.uid == entry.pod_uid);
        // While its container restarts, no sandboxd listens.
        match pod.filter(|pod| pod.answers && pod.bound.as_ref().is_none_or(|bound| *bound == who)) {
            Some(pod) => {
                let life = (entry.pod_uid, pod.restarts);
                pod.bound = Some(who.clone());
                assert!(gateway.index.grant(&lease, epoch).is_some());
                let before = self.granted.insert(life.clone(), who.clone());
                assert!(
                    before.is_none_or(|before| before == who),
                    "{} has two leases",
                    entry.sandbox
                );
                if !self.ended.contains(&who) {
                    self.held.insert(lease, (epoch, entry.sandbox, life));
                }
            }
            None => {
                let actions = gateway.index.discard(&entry.sandbox, SandboxCause::Unknown, self.now);
                self.act(at, actions);
            }
        }
    }

    /// A gateway gets an event, perhaps not for the last time.
    fn hear(&mut self, at: usize, nth: usize, again: bool) {
        let Some(gateway) = self.gateways.get_mut(at) else {
            return;
        };
        if gateway.news.is_empty() {
            return;
        }
        let nth = nth % gateway.news.len();
        let is_of_the_watch = matches!(gateway.news[nth], News::Shown(_) | News::Gone(..));
        let news = match again && is_of_the_watch {
            true => gateway.news[nth].clone(),
            false => gateway.news.remove(nth),
        };
        let (index, now) = (&mut gateway.index, self.now);
        let actions = match news {
            News::Created(name, uid) => index.answered(&name, &uid, now),
            News::Gone(name, uid) => index.removed(&name, &uid, SandboxCause::Deleted),
            News::Refused(name) => {
                index.refused(&name);
                Vec::new()
            }
            News::Deleting(name) => {
                index.deleting(&name);
                Vec::new()
            }
            News::Absent(name) => {
                index.absent(&name);
                Vec::new()
            }
            News::Restarting(name, epoch) => {
                index.restarting(&name, epoch);
                Vec::new()
            }
            News::NotRestarting(name) => index.discard(&name, SandboxCause::Unknown, now),
            News::Shown(shown) => match self.saw(at, &shown) {
                Some(actions) => actions,
                None => return self.end(at),
            },
            News::List(pods) => {
                let mut actions = Vec::new();
                for shown in &pods {
                    match self.saw(at, shown) {
                        Some(more) => actions.extend(more),
                        None => return self.end(at),
                    }
                }
                let listed = pods.into_iter().map(|shown| shown.name).collect();
                actions.extend(self.gateways[at].index.list_ends(&listed));
                actions
            }
        };
        self.act(at, actions);
    }

    /// Handles a pod as the watch does. `None` when a later gateway made the pod.
    fn saw(&mut self, at: usize, shown: &Shown) -> Option<Vec<Action>> {
        let (gateway, now, name) = (&mut self.gateways[at], self.now, &shown.name);
        if gateway.index.knows(name) {
            let index = &mut gateway.index;
            let actions = index.restarted(name, shown.restarts, SandboxCause::Unknown, now);
            index.observed(name, &shown.uid, "10.0.0.1", "node", now);
            return Some(actions);
        }
        (shown.term <= gateway.term).then(|| gateway.index.orphan(name, now))
    }

    /// Notices the sandboxds that answer.
    fn notice(&mut self, at: usize) {
        let Some(gateway) = self.gateways.get_mut(at) else {
            return;
        };
        let index = &mut gateway.index;
        let shown = index.sandboxes.iter().filter(|(_, sandbox)| !sandbox.uid.is_empty());
        let names: Vec<String> = shown.map(|(name, _)| name.clone()).collect();
        for name in names {
            if self.pods.get(&name).is_some_and(|pod| pod.answers) {
                index.ready(&name);
            }
        }
    }

    fn relist(&mut self, at: usize) {
        let pods = self.shown();
        let Some(gateway) = self.gateways.get_mut(at) else {
            return;
        };
        // One list at a time.
        if !gateway.news.iter().any(|news| matches!(news, News::List(_))) {
            gateway.index.list_begins();
            gateway.news.push(News::List(pods));
        }
    }

    fn check(&self) {
        for gateway in &self.gateways {
            let owned = |pod: &&Pod| pod.term == gateway.term || gateway.adopted.contains(&pod.uid);
            let pods = self.pods.values().filter(owned).count();
            let (live, ending) = (&gateway.index.sandboxes, &gateway.index.ending);
            assert!(
                pods <= MAX,
                "term {}: {:?}\nlive {live:?}\nending {ending:?}",
                gateway.term,
                self.pods
            );
        }
    }

    /// Delivers all events, until nothing happens any more.
    fn settle(&mut self) {
        while self.gateways.len() > 1 {
            self.end(0);
        }
        for (term, order) in std::mem::take(&mut self.late) {
            match order {
                InFlight::Create { name, image } => self.create(term, &name, &image),
                InFlight::Delete { name } => drop(self.remove(&name)),
                InFlight::Reset { name, lease, epoch } => drop(self.end_of_life(&name, &lease, epoch)),
                _ => {}
            }
        }
        for round in 0..130 {
            // The watch restarts now and then, which corrects events that came out of order.
            if round == 60 {
                self.relist(0);
            }
            self.now += 1_000;
            self.notice(0);
            self.plan(0);
            self.pods.values_mut().for_each(|pod| pod.answers = true);
            while !self.gateways[0].orders.is_empty() || !self.gateways[0].news.is_empty() {
                self.serve(0, 0, 3);
                self.hear(0, 0, false);
                self.check();
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Wait(u8, u8, bool),
    Want(u8, u8),
    Release(u8),
    Serve(u8, u8, u8),
    Hear(u8, u8, bool),
    Answer(u8),
    Notice(u8),
    Relist(u8),
    Kill(u8),
    Replace(bool),
    Late(u8),
    Time(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..12u8, 0..2u8, any::<bool>()).prop_map(|(id, image, grader)| Step::Wait(id, image, grader)),
        1 => (0..2u8, 0..4u8).prop_map(|(image, count)| Step::Want(image, count)),
        2 => (0..12u8).prop_map(Step::Release),
        16 => (0..3u8, any::<u8>(), 0..12u8).prop_map(|(at, nth, outcome)| Step::Serve(at, nth, outcome)),
        16 => (0..3u8, any::<u8>(), any::<bool>()).prop_map(|(at, nth, again)| Step::Hear(at, nth, again)),
        4 => any::<u8>().prop_map(Step::Answer),
        6 => (0..3u8).prop_map(Step::Notice),
        1 => (0..3u8).prop_map(Step::Relist),
        1 => any::<u8>().prop_map(Step::Kill),
        1 => any::<bool>().prop_map(Step::Replace),
        2 => any::<u8>().prop_map(Step::Late),
        1 => (0..5_000u16).prop_map(Step::Time),
    ]
}

fn take(world: &mut World, step: Step) {
    let last = world.gateways.len() - 1;
    // The gateway in office, or the nth before it.
    let of = |at: u8| last.saturating_sub(at as usize % 3);
    let pod = |world: &World, nth: u8| {
        let count = world.pods.len().max(1);
        world.pods.keys().nth(nth as usize % count).cloned().unwrap_or_default()
    };
    match step {
        Step::Wait(id, image, grader) => {
            let request = LeaseRequest {
                id: format!("l{id}"),
                run: format!("r{}", id % 3),
                image: format!("i{image}"),
                ttl_seconds: 300,
                wait_seconds: 600,
                priority: if grader { Priority::Grader } else { Priority::Agent },
            };
            let now = world.now;
            let _ = world.gateways[last].index.wait(request, now);
        }
        Step::Want(image, count) => {
            let now = world.now;
            let images = vec![(format!("i{image}"), count as usize)];
            world.gateways[last].index.want("r0", images, now);
        }
        Step::Release(id) => {
            let (lease, now) = (format!("l{id}"), world.now);
            let actions = world.gateways[last].index.release(&lease, now);
            world.act(last, actions);
        }
        Step::Serve(at, nth, outcome) => world.serve(of(at), nth as usize, outcome),
        Step::Hear(at, nth, again) => world.hear(of(at), nth as usize, again),
        Step::Answer(nth) => {
            let name = pod(world, nth);
            if let Some(pod) = world.pods.get_mut(&name) {
                pod.answers = true;
            }
            world.show(&name);
        }
        Step::Notice(at) => world.notice(of(at)),
        Step::Relist(at) => world.relist(of(at)),
        Step::Kill(nth) => {
            let name = pod(world, nth);
            world.remove(&name);
        }
        Step::Replace(kill) => world.next_gateway(kill),
        Step::Late(nth) => {
            if !world.late.is_empty() {
                let nth = nth as usize % world.late.len();
                match world.late.swap_remove(nth) {
                    (term, InFlight::Create { name, image }) => world.create(term, &name, &image),
                    (_, InFlight::Delete { name }) => drop(world.remove(&name)),
                    (_, InFlight::Reset { name, lease, epoch }) => drop(world.end_of_life(&name, &lease, epoch)),
                    _ => {}
                }
            }
        }
        Step::Time(millis) => world.now += i64::from(millis),
    }
}

proptest! {
    #[test]
    fn no_pod_has_two_leases_and_none_is_one_too_many_whatever_is_late_lost_doubled_or_replaced(
        steps in prop::collection::vec(step(), 1..300)
    ) {
        let mut world = World::begin();
        for step in steps {
            take(&mut world, step);
            for at in 0..world.gateways.len() {
                world.plan(at);
            }
            world.check();
        }
        world.settle();
        let index = &world.gateways[0].index;
        let known: Vec<&String> = index.sandboxes.keys().collect();
        let there: Vec<&String> = world.pods.keys().collect();
        prop_assert_eq!(known, there, "nothing is left over, nothing is missing");
        prop_assert!(index.ending.is_empty());
        prop_assert_eq!(index.under_way(), 0);
        let in_the_ledger: Vec<&String> = world.ledger.keys().collect();
        let mut leases: Vec<&String> = index.leases.keys().collect();
        leases.sort();
        prop_assert_eq!(leases, in_the_ledger);
        prop_assert!(index.leases.values().all(|held| held.granted));
        prop_assert!(world.pods.len() <= MAX);
    }
}
