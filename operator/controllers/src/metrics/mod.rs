//! The operator's own metrics, and the port that serves them. Labels are kinds, roles, states and reasons, never names
//! of objects.
//!
//! Events are counted when they happen; states are read at each scrape ([`Metrics::at_each_look`]).
//! `docs/src/metrics.md` lists all metrics, and a test compares it with the served text.

mod process;
mod queue;
pub mod serve;

#[cfg(test)]
mod tests;

use std::{
    fmt::Write,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
    time::Duration,
};

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};

use grpo_contracts::reason::Reason;
use grpo_operator_core::{causes, names::role};

use crate::parent::{Controlled, Parent};

/// Verbs of which a refusal (403) raises an alert. A quota also refuses to `create`, and that is no fault of rights.
const VERBS: [&str; 6] = ["get", "list", "watch", "patch", "update", "delete"];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindReason {
    kind: String,
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindState {
    kind: String,
    state: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WaitReason {
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Role {
    role: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RoleState {
    role: String,
    state: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RoleCause {
    role: String,
    cause: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerbCode {
    verb: String,
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Verb {
    verb: String,
}

type Look = Box<dyn Fn(&Census) + Send + Sync>;

/// All metrics.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    durations: Family<Kind, Histogram>,
    errors: Family<KindReason, Counter>,
    unreadable: Family<Kind, Counter>,
    leader: Gauge,
    requests: Family<VerbCode, Counter>,
    request_durations: Family<Verb, Histogram>,
    interruptions: Family<Kind, Counter>,
    attempts: Family<Role, Counter>,
    failures: Family<RoleCause, Counter>,
    waits: Family<Kind, Histogram>,
    waiting: Family<Kind, Gauge>,
    queue: Arc<queue::Queue>,
    memory: Gauge<f64, AtomicU64>,
    processor: Counter<f64, AtomicU64>,
    census: Census,
    looks: Arc<Mutex<Vec<Look>>>,
}

/// Current numbers of objects and pods, by state.
#[derive(Clone, Default)]
pub struct Census {
    listed: Family<Kind, Gauge>,
    objects: Family<KindState, Gauge>,
    waiting_runs: Family<WaitReason, Gauge>,
    pods: Family<RoleState, Gauge>,
}

impl Census {
    /// A state without objects has no series, so only this tells "no object" from "not listed yet".
    pub fn listed(&self, kind: &str, listed: bool) {
        let kind = kind.to_owned();
        self.listed.get_or_create(&Kind { kind }).set(i64::from(listed));
    }

    pub fn objects(&self, kind: &str, state: &str) {
        let (kind, state) = (kind.to_owned(), state.to_owned());
        self.objects.get_or_create(&KindState { kind, state }).inc();
    }

    pub fn waiting_run(&self, reason: &str) {
        let reason = reason.to_owned();
        self.waiting_runs.get_or_create(&WaitReason { reason }).inc();
    }

    pub fn pods(&self, role: &str, state: &str) {
        let (role, state) = (role.to_owned(), state.to_owned());
        self.pods.get_or_create(&RoleState { role, state }).inc();
    }

    fn forget(&self) {
        self.listed.clear();
        self.objects.clear();
        self.waiting_runs.clear();
        self.pods.clear();
    }
}

/// A histogram from a millisecond to half a minute.
fn durations<L: Clone + std::hash::Hash + Eq>() -> Family<L, Histogram> {
    Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 2.0, 16)))
}

impl Metrics {
    pub fn new() -> Self {
        let mut metrics = Self {
            registry: Arc::default(),
            durations: durations(),
            errors: Family::default(),
            unreadable: Family::default(),
            leader: Gauge::default(),
            requests: Family::default(),
            request_durations: durations(),
            interruptions: Family::default(),
            attempts: Family::default(),
            failures: Family::default(),
            waits: durations(),
            waiting: Family::default(),
            queue: Arc::default(),
            memory: Gauge::default(),
            processor: Counter::default(),
            census: Census::default(),
            looks: Arc::default(),
        };
        metrics.registry = Arc::new(metrics.registered());
        metrics.begin_at_zero();
        metrics
    }

    /// Makes the counters that alerts look at. Prometheus sees no increase in a counter whose first value is 1, so the
    /// first fault would raise no alert.
    fn begin_at_zero(&self) {
        for kind in Controlled::ALL {
            let (kind, reason) = (kind.name().to_owned(), Reason::OperatorFault.text().to_owned());
            drop(self.errors.get_or_create(&KindReason { kind, reason }));
        }
        for verb in VERBS {
            let (verb, code) = (verb.to_owned(), "403".to_owned());
            drop(self.requests.get_or_create(&VerbCode { verb, code }));
        }
        for role in [role::DRIVER, role::TRAINER, role::ENGINE, role::GATEWAY, role::SANDBOX] {
            for cause in causes::WORDS.into_iter().chain([causes::DISRUPTED, causes::OTHER]) {
                let (role, cause) = (role.to_owned(), cause.to_owned());
                drop(self.failures.get_or_create(&RoleCause { role, cause }));
            }
        }
    }

    fn registered(&self) -> Registry {
        let mut all = Registry::default();
        all.register_with_unit(
            "process_resident_memory",
            "Memory this process holds",
            Unit::Bytes,
            self.memory.clone(),
        );
        all.register_with_unit(
            "process_cpu",
            "Processor time this process has taken",
            Unit::Seconds,
            self.processor.clone(),
        );
        let own = all.sub_registry_with_prefix("grpo_operator");
        own.register("leader", "1 while this replica reconciles", self.leader.clone());
        own.register(
            "listed",
            "1 once this replica has listed all objects of the kind",
            self.census.listed.clone(),
        );
        own.register(
            "objects",
            "Runs by phase, pools by whether they are ready",
            self.census.objects.clone(),
        );
        own.register(
            "waiting_runs",
            "Runs that admission does not let start, by reason",
            self.census.waiting_runs.clone(),
        );
        own.register("pods", "Pods of runs and pools", self.census.pods.clone());
        own.register(
            "attempts",
            "Pods made, by rank 0 of each attempt",
            self.attempts.clone(),
        );
        own.register(
            "pod_failures",
            "Pods that ended otherwise than well",
            self.failures.clone(),
        );
        own.register_with_unit(
            "reconcile_duration",
            "Duration of one reconcile",
            Unit::Seconds,
            self.durations.clone(),
        );
        own.register(
            "reconcile_errors",
            "Reconciles that ended with an error",
            self.errors.clone(),
        );
        own.register(
            "reconcile_waiting",
            "Objects that something happened to and that wait for their reconcile",
            self.waiting.clone(),
        );
        own.register_with_unit(
            "reconcile_wait",
            "From what happened to the reconcile it causes",
            Unit::Seconds,
            self.waits.clone(),
        );
        own.register(
            "unreadable_objects",
            "Objects that could not be read",
            self.unreadable.clone(),
        );
        own.register(
            "api_requests",
            "Requests to the API server; code 0: no answer",
            self.requests.clone(),
        );
        own.register_with_unit(
            "api_request_duration",
            "From a request to the beginning of its answer",
            Unit::Seconds,
            self.request_durations.clone(),
        );
        own.register(
            "watch_interruptions",
            "Watches that were interrupted and began anew",
            self.interruptions.clone(),
        );
        all
    }

    /// Adds a function that reads states at each scrape.
    pub fn at_each_look(&self, look: impl Fn(&Census) + Send + Sync + 'static) {
        self.looks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Box::new(look));
    }

    pub fn leading(&self) {
        self.leader.set(1);
    }

    pub fn reconciled(&self, kind: &str, took: Duration, error: Option<&'static str>) {
        let kind = kind.to_owned();
        self.durations
            .get_or_create(&Kind { kind: kind.clone() })
            .observe(took.as_secs_f64());
        if let Some(reason) = error {
            let reason = reason.to_owned();
            self.errors.get_or_create(&KindReason { kind, reason }).inc();
        }
    }

    pub fn unreadable(&self, kind: &str) {
        self.unreadable.get_or_create(&Kind { kind: kind.to_owned() }).inc();
    }

    /// Records an event for this object: its reconcile waits from now on.
    pub fn triggered(&self, parent: &Parent) {
        self.queue.triggered(parent);
    }

    /// Records that the object's reconcile begins.
    pub fn begun(&self, kind: &str, namespace: &str, name: &str) {
        if let Some(waited) = self.queue.begun(kind, namespace, name) {
            self.waits
                .get_or_create(&Kind { kind: kind.to_owned() })
                .observe(waited.as_secs_f64());
        }
    }

    /// Records a request to the API server; `code` is `None` without an answer.
    pub fn requested(&self, verb: &str, code: Option<u16>, took: Duration) {
        let (verb, code) = (verb.to_owned(), code.unwrap_or(0).to_string());
        self.request_durations
            .get_or_create(&Verb { verb: verb.clone() })
            .observe(took.as_secs_f64());
        self.requests.get_or_create(&VerbCode { verb, code }).inc();
    }

    pub fn interrupted(&self, kind: &str) {
        self.interruptions.get_or_create(&Kind { kind: kind.to_owned() }).inc();
    }

    pub fn attempt(&self, role: &str) {
        self.attempts.get_or_create(&Role { role: role.to_owned() }).inc();
    }

    pub fn pod_failed(&self, role: &str, cause: &str) {
        let (role, cause) = (role.to_owned(), cause.to_owned());
        self.failures.get_or_create(&RoleCause { role, cause }).inc();
    }

    /// All metrics as text, with current states.
    pub fn text(&self) -> String {
        // Held until all is written: two scrapes at a time would count everything twice, or write half of the counts.
        let looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        self.census.forget();
        for look in looks.iter() {
            look(&self.census);
        }
        self.waiting.clear();
        for (kind, waiting) in self.queue.lengths() {
            self.waiting.get_or_create(&Kind { kind: kind.to_owned() }).set(waiting);
        }
        if let Some(used) = process::used() {
            self.memory.set(used.memory);
            self.processor.inc_by((used.processor - self.processor.get()).max(0.0));
        }
        let mut text = String::new();
        if let Err(error) = encode(&mut text, &self.registry) {
            // The text written so far is still useful.
            let _ = writeln!(text, "# {error}");
        }
        text
    }
}
