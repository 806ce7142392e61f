//! The limits of an agent in one episode.

use grpo_records::EpisodeEnd;
use serde_json::{Value, json};
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct AgentLimits {
    pub turns: u32,
    pub command_timeout: Duration,
    pub episode_timeout: Duration,
    /// Prompt and answers together.
    pub context_tokens: usize,
    /// The first prompt. A task with a longer one is left out.
    pub prompt_tokens: Option<usize>,
    /// Everything after the first prompt, answers and observations together.
    pub episode_tokens: Option<usize>,
    /// The longest output of a command that is kept, head and tail together, in bytes.
    pub output_bytes: u64,
}

impl AgentLimits {
    /// The limits that prompts may show the policy.
    pub fn shown(&self) -> Value {
        json!({
            "turns": self.turns,
            "commandTimeout": self.command_timeout.as_secs(),
            "episodeTimeout": self.episode_timeout.as_secs(),
            "contextTokens": self.context_tokens,
        })
    }

    /// The most tokens of an answer. `context`: the tokens before it. `grown`: the tokens of the episode so far,
    /// without its first prompt.
    pub fn room(&self, context: usize, grown: usize) -> usize {
        let room = self.context_tokens.saturating_sub(context);
        match self.episode_tokens {
            Some(tokens) => room.min(tokens.saturating_sub(grown)),
            None => room,
        }
    }

    /// The limit that leaves no room for an answer, in the terms of [`AgentLimits::room`].
    pub fn full(&self, context: usize, grown: usize) -> Option<EpisodeEnd> {
        if context >= self.context_tokens {
            return Some(EpisodeEnd::ContextFull);
        }
        (self.room(context, grown) == 0).then_some(EpisodeEnd::TokenLimit)
    }
}

#[cfg(test)]
mod tests;
