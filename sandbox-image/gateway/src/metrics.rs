//! What `/metrics` tells about the gateway. Labels are states, kinds and causes, never names.

use std::time::Duration;

use grpo_sandbox_protocol::{ErrorBody, ErrorCode, Fault, SandboxCause};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::index::Index;

type Label = (&'static str, String);

/// What is counted as it happens; everything else is read from the index.
pub struct Metrics {
    lease_wait: Family<[Label; 1], Histogram>,
    exec: Histogram,
    faults: Family<[Label; 2], Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            // 5 ms to 11 minutes.
            lease_wait: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.005, 2.0, 18))),
            // 10 ms to 44 minutes.
            exec: Histogram::new(exponential_buckets(0.01, 2.0, 19)),
            faults: Family::default(),
        }
    }
}

impl Metrics {
    /// A lease was promised to somebody who had waited so long.
    pub fn leased(&self, warm: bool, waited: Duration) {
        let path = if warm { "warm" } else { "cold" };
        self.lease_wait
            .get_or_create(&[("path", path.to_owned())])
            .observe(waited.as_secs_f64());
    }

    pub fn executed(&self, took: Duration) {
        self.exec.observe(took.as_secs_f64());
    }

    /// A holder has lost a sandbox.
    pub fn lost(&self, cause: SandboxCause) {
        self.fault(format!("{cause:?}"), cause.fault());
    }

    /// A caller was refused. That its sandbox is lost was counted when it was, once.
    pub fn refused(&self, error: &ErrorBody) {
        if error.code != ErrorCode::SandboxLost {
            self.fault(format!("{:?}", error.code), error.fault);
        }
    }

    fn fault(&self, kind: String, fault: Fault) {
        let labels = [("kind", kind), ("fault", format!("{fault:?}"))];
        self.faults.get_or_create(&labels).inc();
    }

    /// The metrics as Prometheus text, with the pool as it is now.
    pub fn text(&self, index: &Index) -> Result<String, std::fmt::Error> {
        let mut registry = Registry::with_prefix("grpo_gateway");
        self.register_events(&mut registry);
        register_pool(&mut registry, index);
        let mut text = String::new();
        encode(&mut text, &registry)?;
        Ok(text)
    }

    fn register_events(&self, registry: &mut Registry) {
        registry.register_with_unit(
            "lease_wait",
            "From asking for a lease to having it, by whether its pod was ready before",
            Unit::Seconds,
            self.lease_wait.clone(),
        );
        registry.register_with_unit(
            "exec",
            "Duration of commands, as the gateway sees it",
            Unit::Seconds,
            self.exec.clone(),
        );
        registry.register(
            "faults",
            "Lost sandboxes by cause and refusals by code, with whose fault they were",
            self.faults.clone(),
        );
    }
}

fn register_pool(registry: &mut Registry, index: &Index) {
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
    let waiting: Gauge = Gauge::default();
    waiting.set(index.queue.len() as i64);
    registry.register("leases_waiting", "Leases in the queue", waiting);
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
mod tests {
    use super::*;
    use crate::index::Bounds;

    #[test]
    fn what_happened_and_what_there_is_can_be_read() {
        let metrics = Metrics::default();
        metrics.leased(true, Duration::from_millis(7));
        metrics.executed(Duration::from_secs(2));
        metrics.lost(SandboxCause::OutOfMemory);
        let lost = ErrorBody::lost("a", SandboxCause::OutOfMemory);
        metrics.refused(&lost);
        let full = ErrorBody::new(ErrorCode::QueueDeadline, Fault::Infrastructure, "full");
        metrics.refused(&full);
        let bounds = Bounds {
            max: 4,
            reserved: 1,
            warm_max: 4,
            per_node: None,
            max_ttl_millis: 1000,
            idle_millis: 1000,
        };
        let text = metrics.text(&Index::new(bounds)).unwrap();
        for line in [
            "grpo_gateway_lease_wait_seconds_count{path=\"warm\"} 1",
            "grpo_gateway_exec_seconds_sum 2.0",
            "grpo_gateway_faults_total{kind=\"OutOfMemory\",fault=\"Workload\"} 1",
            "grpo_gateway_faults_total{kind=\"QueueDeadline\",fault=\"Infrastructure\"} 1",
            "grpo_gateway_sandboxes{state=\"ending\"} 0",
            "grpo_gateway_leases_waiting 0",
            "grpo_gateway_leases_cold_total 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
        assert!(!text.contains("SandboxLost"));
    }
}
