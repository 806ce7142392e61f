//! The agent's `/metrics`.

use grpo_engine_protocol::{AgentState, AgentStatus, ErrorBody};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge};
use prometheus_client::registry::Registry;

#[derive(Debug, Default)]
pub struct Metrics {
    passed: Counter,
    refused: Family<[(&'static str, String); 1], Counter>,
    pub pulled: Pulled,
}

/// Bytes of weights that were pulled, and the use of deltas.
#[derive(Clone, Debug, Default)]
pub struct Pulled {
    /// From drivers.
    pub source: Counter,
    /// From other agents.
    pub agents: Counter,
    /// Files that were made from a delta, and those that had to be fetched whole after all.
    pub made: Counter,
    pub not_made: Counter,
}

impl Metrics {
    /// Counts a forwarded or refused completion.
    pub fn count(&self, refused: Option<&ErrorBody>) {
        match refused {
            None => self.passed.inc(),
            Some(error) => self
                .refused
                .get_or_create(&[("code", format!("{:?}", error.code))])
                .inc(),
        };
    }

    /// The metrics as Prometheus text, with the current status.
    pub fn text(&self, status: &AgentStatus) -> Result<String, std::fmt::Error> {
        let serves: Gauge = Gauge::default();
        serves.set(i64::from(status.serving.is_some()));
        let behind: Gauge = Gauge::default();
        // An engine that sleeps by order is not behind.
        let serves_another = status.wanted.is_some() && status.wanted != status.serving;
        behind.set(i64::from(serves_another && status.state != AgentState::Asleep));
        let failed: Gauge = Gauge::default();
        failed.set(i64::from(status.state == AgentState::Failed));
        let mut registry = Registry::with_prefix("grpo_agent");
        registry.register(
            "completions_passed",
            "Completions answered by the engine",
            self.passed.clone(),
        );
        registry.register(
            "completions_refused",
            "Completions refused, by code",
            self.refused.clone(),
        );
        registry.register(
            "pulled_source_bytes",
            "Bytes of weights from the run's driver",
            self.pulled.source.clone(),
        );
        registry.register(
            "pulled_agents_bytes",
            "Bytes of weights that other replicas passed on",
            self.pulled.agents.clone(),
        );
        registry.register(
            "made_files",
            "Files of weights made from an earlier version and a delta",
            self.pulled.made.clone(),
        );
        registry.register(
            "unmade_files",
            "Files of weights with a delta that could not be used",
            self.pulled.not_made.clone(),
        );
        registry.register("serves", "1 if the engine serves some version", serves);
        registry.register("behind", "1 if it serves another version than was ordered", behind);
        registry.register("failed", "1 if the last attempt to load a version failed", failed);
        let mut text = String::new();
        encode(&mut text, &registry)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests;
