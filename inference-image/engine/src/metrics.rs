//! The engine's `/metrics`.

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::{counter::Counter, gauge::Gauge};
use prometheus_client::registry::Registry;

#[derive(Debug, Default)]
pub struct Metrics {
    pub running: Gauge,
    pub waiting: Gauge,
    pub kv_bytes: Gauge,
    pub kv_limit_bytes: Gauge,
    pub requests: Counter,
    pub refused: Counter,
    pub prompt_tokens: Counter,
    pub prefix_tokens: Counter,
    pub generation_tokens: Counter,
    pub passes: Counter,
    pub loads: Counter,
}

impl Metrics {
    /// The metrics as Prometheus text.
    pub fn text(&self) -> Result<String, std::fmt::Error> {
        let mut registry = Registry::with_prefix("grpo_engine");
        registry.register("rows_running", "Rows in the current pass", self.running.clone());
        registry.register(
            "kv_bytes",
            "Bytes of keys and values that running rows may come to need",
            self.kv_bytes.clone(),
        );
        registry.register(
            "kv_limit_bytes",
            "Bytes of keys and values up to which rows are admitted",
            self.kv_limit_bytes.clone(),
        );
        registry.register("requests_waiting", "Requests not yet taken in", self.waiting.clone());
        registry.register("requests", "Completion requests taken", self.requests.clone());
        registry.register("requests_refused", "Completion requests refused", self.refused.clone());
        registry.register(
            "prompt_tokens",
            "Prompt tokens of finished rows",
            self.prompt_tokens.clone(),
        );
        registry.register(
            "prefix_tokens",
            "Prompt tokens taken over from other rows",
            self.prefix_tokens.clone(),
        );
        registry.register("generation_tokens", "Tokens sampled", self.generation_tokens.clone());
        registry.register("passes", "Forward passes", self.passes.clone());
        registry.register("loads", "Weights versions loaded after the first", self.loads.clone());
        let mut text = String::new();
        encode(&mut text, &registry)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests;
