//! What the driver, the engine agent and the engine say to each other.
//!
//! Four conversations, one module each, and what one of them carries:
//!
//! * [`completion`]: sampling. OpenAI's completion shape with vLLM's extensions, snake_case, token ids in and out. The
//!   driver speaks it to the agent and the agent passes it on to whichever engine it guards.
//! * [`chat`]: a conversation in text, for answers that are only read.
//! * [`experts`]: of each token, the experts of a mixture it went through; a part of sampling.
//! * [`agent`]: which weights a replica should serve (an order) and which it does serve (a status).
//! * [`admin`]: how an agent makes the embedded engine load a directory. Loopback only.
//!
//! Every refusal, from either process, is an [`ErrorBody`].

pub mod admin;
pub mod agent;
pub mod chat;
pub mod completion;
mod error;
pub mod experts;
mod penalties;

pub use admin::{EngineState, LoadRequest, LoadResponse};
pub use agent::{AgentState, AgentStatus, WeightsOrder};
pub use chat::{ChatAnswer, ChatChoice, ChatRequest, ChatResponse, ChatRole, ChatText};
pub use completion::{
    ChoiceLogprobs, CompletionChoice, CompletionRequest, CompletionResponse, FinishReason, ModelCard, ModelList,
    Prompt, TokenIds, Usage,
};
pub use error::{ErrorBody, ErrorCode, ErrorOrigin};
pub use experts::{ExpertsFault, RoutedExperts};
pub use penalties::Penalties;

/// The request header that names the weights version an answer must be sampled from.
pub const WEIGHTS_HEADER: &str = "x-grpo-weights";

/// The version name under which an engine serves the model image it booted with.
pub const BASE_VERSION: &str = "base";
