//! The input of an engine's command line, for every engine: the model, the pod's place in the replica, and the
//! adapters.
//!
//! Both builders ([`super::vllm`], [`super::sglang`]) are pure functions of a [`Launch`] and the engine's part of the
//! spec.

use grpo_crds::{InferencePoolSpec, inference_pool::LoraLimits};

/// Names of a pod's containers, and of the volume to which the agent pulls versions of the weights.
pub const AGENT: &str = "agent";
pub const ENGINE: &str = "engine";
pub const WEIGHTS_VOLUME: &str = "cache";

/// The engine listens here, on loopback: the agent in its pod is the only client.
pub const ENGINE_PORT: u16 = 8001;

/// Rendezvous port of a replica's first pod, for its other pods; open to the pods of the pool only.
pub const RENDEZVOUS_PORT: u16 = 29500;

/// The engine serves its start model under this name. Requests say `policy` for every version; the agent knows which
/// version serves.
pub const SERVED_NAME: &str = "policy";

/// The input of a command line besides the engine's own settings.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    /// Folder of the model's files.
    pub model: String,
    pub lora: Option<&'a LoraLimits>,
    /// Whether the engine reports the experts of tokens.
    pub routed_experts: bool,
    /// Whether the engine takes turns with a trainer: then it can give its memory back and take it again.
    pub sleeps: bool,
    /// The pod's index within the replica.
    pub node: u32,
    pub nodes: u32,
    /// A name of the replica's first pod that its other pods can resolve.
    pub leader: String,
}

impl<'a> Launch<'a> {
    pub fn of(spec: &'a InferencePoolSpec, node: u32, leader: String) -> Self {
        Self {
            model: spec.model.directory(),
            lora: spec.lora.as_ref(),
            routed_experts: spec.routed_experts == Some(true),
            sleeps: spec.colocated.is_some(),
            node,
            nodes: spec.engine.nodes(),
            leader,
        }
    }
}

/// A command line under construction: flags with values, in the order of the calls.
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
