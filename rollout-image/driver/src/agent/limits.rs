//! What an agent may use up in one episode.

use serde_json::{Value, json};
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct AgentLimits {
    pub turns: u32,
    pub command_timeout: Duration,
    pub episode_timeout: Duration,
    /// Prompt and answers together.
    pub context_tokens: usize,
    /// The longest output of a command that is kept; head and tail.
    pub output_bytes: u64,
}

impl AgentLimits {
    /// What prompts may tell the policy of its limits.
    pub fn shown(&self) -> Value {
        json!({
            "turns": self.turns,
            "commandTimeout": self.command_timeout.as_secs(),
            "episodeTimeout": self.episode_timeout.as_secs(),
            "contextTokens": self.context_tokens,
        })
    }
}
