//! The content of `/metrics`. Labels are states, kinds and causes, never names.

use std::time::Duration;

use grpo_sandbox_protocol::{ErrorBody, ErrorCode, FaultOrigin, Priority, SandboxCause};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::index::{ActiveLease, Index};
use crate::ledger::Counters;

type Label = (&'static str, String);

/// Values from outside of the index.
#[derive(Clone, Copy, Debug, Default)]
pub struct Around {
    /// Gateways that have held the pool's ledger, this one included.
    pub starts: u64,
    pub relays: usize,
    pub egress_blocked: bool,
    /// Number of prefetched images, and how many of them a node has.
    pub images: (usize, usize),
}

/// Metrics that are counted as events happen. All others are read from the index.
pub struct Metrics {
    lease_wait: Family<[Label; 2], Histogram>,
    commit: Histogram,
    bind: Histogram,
    exec: Family<[Label; 1], Histogram>,
    faults: Family<[Label; 2], Counter>,
    pod_writes: Family<[Label; 1], Counter>,
    pods_refused: Counter,
    ledger: Counters,
}

impl Metrics {
    pub fn new(ledger: Counters) -> Self {
        Self {
            // 1 ms to 17 minutes.
            lease_wait: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 2.0, 21))),
            // 1 ms to 32 s.
            commit: Histogram::new(exponential_buckets(0.001, 2.0, 16)),
            bind: Histogram::new(exponential_buckets(0.001, 2.0, 16)),
            // 1 ms to 70 minutes.
            exec: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 2.0, 23))),
            faults: Family::default(),
            pod_writes: Family::default(),
            pods_refused: Counter::default(),
            ledger,
        }
    }

    /// A lease was granted after this wait.
    pub fn leased(&self, held: &ActiveLease, waited: Duration) {
        let path = match (held.queued, held.warm) {
            (true, _) => "queued",
            (false, true) => "warm",
            (false, false) => "cold",
        };
        let labels = [
            ("path", path.to_owned()),
            ("priority", format!("{:?}", held.entry.priority)),
        ];
        self.lease_wait.get_or_create(&labels).observe(waited.as_secs_f64());
    }

    /// A lease is durable, this long after its decision.
    pub fn committed(&self, took: Duration) {
        self.commit.observe(took.as_secs_f64());
    }

    /// A sandbox is bound to its lease, this long after the lease was durable.
    pub fn bound(&self, took: Duration) {
        self.bind.observe(took.as_secs_f64());
    }

    /// A command was forwarded to sandboxd. `is_done`: sandboxd returned its outcome.
    pub fn executed(&self, is_done: bool, took: Duration) {
        let answer = if is_done { "outcome" } else { "error" };
        self.exec
            .get_or_create(&[("answer", answer.to_owned())])
            .observe(took.as_secs_f64());
    }

    /// The API server accepted an order about a pod.
    pub fn wrote(&self, verb: &'static str) {
        self.pod_writes.get_or_create(&[("verb", verb.to_owned())]).inc();
    }

    /// The API server refused to create a pod.
    pub fn api_refused(&self) {
        self.pods_refused.inc();
    }

    /// A holder has lost a sandbox.
    pub fn lost(&self, cause: SandboxCause) {
        self.fault(format!("{cause:?}"), cause.fault());
    }

    /// A caller was refused. A lost sandbox does not count here: it was counted when it was lost.
    pub fn refused(&self, error: &ErrorBody) {
        if error.code != ErrorCode::SandboxLost {
            self.fault(format!("{:?}", error.code), error.fault);
        }
    }

    fn fault(&self, kind: String, fault: FaultOrigin) {
        let labels = [("kind", kind), ("fault", format!("{fault:?}"))];
        self.faults.get_or_create(&labels).inc();
    }

    /// The metrics as Prometheus text, with the pool as it is now.
    pub fn text(&self, index: &Index, around: Around, now: i64) -> Result<String, std::fmt::Error> {
        let mut registry = Registry::with_prefix("grpo_gateway");
        self.register_events(&mut registry);
        register_pool(&mut registry, index, now);
        register_around(&mut registry, around);
        let mut text = String::new();
        encode(&mut text, &registry)?;
        Ok(text)
    }

    fn register_events(&self, registry: &mut Registry) {
        registry.register_with_unit(
            "lease_wait",
            "From asking for a lease to having it: from a pod that was ready (warm), one made for it (cold), or after there was no room (queued)",
            Unit::Seconds,
            self.lease_wait.clone(),
        );
        registry.register_with_unit(
            "ledger_commit",
            "From the decision on a lease until it is durable",
            Unit::Seconds,
            self.commit.clone(),
        );
        registry.register_with_unit(
            "bind",
            "From a durable lease until its sandbox is bound to it",
            Unit::Seconds,
            self.bind.clone(),
        );
        registry.register_with_unit(
            "exec",
            "Duration of commands, as the gateway sees it, by whether sandboxd answered their outcome",
            Unit::Seconds,
            self.exec.clone(),
        );
        registry.register(
            "faults",
            "Lost sandboxes by cause and refusals by code, with whose fault they were",
            self.faults.clone(),
        );
        registry.register(
            "pod_writes",
            "Orders about pods that the API server took",
            self.pod_writes.clone(),
        );
        registry.register(
            "pods_refused",
            "Pods that the API server refused to create, by a quota or a rule",
            self.pods_refused.clone(),
        );
        registry.register(
            "ledger_writes",
            "Updates of the ledger that the API server took",
            self.ledger.writes.clone(),
        );
        registry.register(
            "ledger_leases",
            "Leases that updates of the ledger made durable",
            self.ledger.leases.clone(),
        );
        registry.register(
            "ledger_retries",
            "Updates of the ledger that failed and were tried again",
            self.ledger.retries.clone(),
        );
    }
}

fn register_around(registry: &mut Registry, around: Around) {
    let starts: Counter = Counter::default();
    starts.inc_by(around.starts);
    registry.register(
        "starts",
        "Gateways that the pool has had, as its ledger counts them: a restart is one more",
        starts,
    );
    let relays: Gauge = Gauge::default();
    relays.set(around.relays as i64);
    registry.register("relays", "Ports of sandboxes that lead to a service", relays);
    let images: Family<[Label; 1], Gauge> = Family::default();
    let (held, there) = around.images;
    for (state, count) in [("pulling", held.saturating_sub(there)), ("there", there)] {
        let labels = [("state", state.to_owned())];
        images.get_or_create(&labels).set(count as i64);
    }
    registry.register(
        "images_prefetched",
        "Images that nodes pull or have for sandboxes that the pool has no room for yet",
        images,
    );
    let blocked: Gauge = Gauge::default();
    blocked.set(i64::from(around.egress_blocked));
    registry.register(
        "egress_blocked",
        "Whether a probe has shown that sandboxes reach nothing",
        blocked,
    );
}

fn register_pool(registry: &mut Registry, index: &Index, now: i64) {
    let state = index.state();
    let sandboxes: Family<[Label; 1], Gauge> = Family::default();
    for (name, count) in [
        ("ready", i64::from(state.ready)),
        ("leased", i64::from(state.leased)),
        ("starting", i64::from(state.pending)),
        ("ending", index.ending.len() as i64),
    ] {
        sandboxes.get_or_create(&[("state", name.to_owned())]).set(count);
    }
    registry.register("sandboxes", "Sandbox pods by state", sandboxes);
    let waiting: Family<[Label; 1], Gauge> = Family::default();
    for priority in [Priority::Agent, Priority::Grader] {
        let queue = index.queue.iter().filter(|waiter| waiter.request.priority == priority);
        let labels = [("priority", format!("{priority:?}"))];
        waiting.get_or_create(&labels).set(queue.count() as i64);
    }
    registry.register("leases_waiting", "Leases in the queue", waiting);
    let left_alone: Gauge = Gauge::default();
    left_alone.set(index.troubles(now).len() as i64);
    registry.register(
        "images_left_alone",
        "Images that could not be pulled and are not tried now",
        left_alone,
    );
    for (name, help, count) in [
        ("leases_warm", "Leases served from a warm pod", state.warm_hits),
        ("leases_cold", "Leases a pod was started for", state.cold_leases),
        (
            "leases_lost_to_infrastructure",
            "Leases that ended by no fault of theirs",
            state.voided,
        ),
    ] {
        let counter: Counter = Counter::default();
        counter.inc_by(count);
        registry.register(name, help, counter);
    }
}

#[cfg(test)]
mod tests;
