//! What a command line is made from, whichever the engine: where the model is, which part of the replica this is, which
//! adapters are held.
//!
//! Both builders ([`super::vllm`], [`super::sglang`]) are pure functions of a [`Launch`] and the engine's part of the
//! spec.

use grpo_crds::{InferencePoolSpec, inference_pool::LoraLimits};

/// The engine listens here, on loopback: the agent beside it is the only door.
pub const ENGINE_PORT: u16 = 8001;

/// Where the first pod of a replica takes the others' processes, open to the pods of the pool only.
pub const RENDEZVOUS_PORT: u16 = 29500;

/// The engine serves the model it booted with under this name. Requests say `policy` for every version; the agent
/// knows which version serves.
pub const SERVED_NAME: &str = "policy";

/// What a command line is made from besides the engine's own settings.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    /// The folder with the model's files.
    pub model: String,
    pub lora: Option<&'a LoraLimits>,
    /// The engine reports the experts of tokens.
    pub routed_experts: bool,
    /// Which pod of the replica this is.
    pub node: u32,
    pub nodes: u32,
    /// A name of the replica's first pod that its other pods resolve.
    pub leader: String,
}

impl<'a> Launch<'a> {
    pub fn of(spec: &'a InferencePoolSpec, node: u32, leader: String) -> Self {
        Self {
            model: spec.model.directory(),
            lora: spec.lora.as_ref(),
            routed_experts: spec.routed_experts == Some(true),
            node,
            nodes: spec.engine.nodes(),
            leader,
        }
    }
}

/// A command line under construction: flags with values, in the order they were given.
#[derive(Debug, Default)]
pub struct Arguments(Vec<String>);

impl Arguments {
    pub fn of(first: impl IntoIterator<Item = String>) -> Self {
        Self(first.into_iter().collect())
    }

    pub fn flag(&mut self, name: &str) -> &mut Self {
        self.0.push(name.to_owned());
        self
    }

    pub fn set(&mut self, name: &str, value: impl ToString) -> &mut Self {
        self.0.extend([name.to_owned(), value.to_string()]);
        self
    }

    pub fn maybe(&mut self, name: &str, value: Option<impl ToString>) -> &mut Self {
        if let Some(value) = value {
            self.set(name, value);
        }
        self
    }

    pub fn extend(&mut self, more: &[String]) -> &mut Self {
        self.0.extend_from_slice(more);
        self
    }

    pub fn done(&mut self) -> Vec<String> {
        std::mem::take(&mut self.0)
    }
}
