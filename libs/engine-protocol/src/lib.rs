//! The messages between the driver, the engine agent and the engine.
//!
//! Five conversations, one module each, and the type that one of them carries:
//!
//! * [`completion`]: sampling. OpenAI's completion shape with vLLM's extensions, snake_case, token ids in and out. The
//!   driver calls the agent, and the agent forwards to its engine.
//! * [`chat`]: a conversation in text, for answers that are read and not trained on.
//! * [`text`]: an answer of a server that speaks only text, with tools, for episodes that are not trained on.
//! * [`experts`]: the experts of a mixture that each token was routed to; a part of sampling.
//! * [`agent`]: the weights version that a replica should serve and whether it should sleep (orders), and the version
//!   that it serves (a status).
//! * [`admin`]: how an agent makes the embedded engine load a directory, sleep and wake. Loopback only.
//!
//! Every refusal, by the agent or the engine, is an [`ErrorBody`].

pub mod admin;
pub mod agent;
pub mod chat;
pub mod completion;
mod error;
pub mod experts;
mod penalties;
pub mod text;

pub use admin::{EngineState, LoadRequest, LoadResponse};
pub use agent::{AgentState, AgentStatus, Relay, SleepOrder, WeightsOrder};
pub use chat::{ChatAnswer, ChatChoice, ChatRequest, ChatResponse, ChatRole, ChatText};
pub use completion::{
    ChoiceLogprobs, CompletionChoice, CompletionRequest, CompletionResponse, FinishReason, ModelCard, ModelList,
    Prompt, TokenIds, Usage,
};
pub use error::{ErrorBody, ErrorCode, ErrorOrigin};
pub use experts::{ExpertsFault, RoutedExperts};
pub use penalties::Penalties;
pub use text::{TEXT_PATH, TextCall, TextChoice, TextFunction, TextMessage, TextRequest, TextResponse};

/// The request header that names the weights version that must sample the answer.
pub const WEIGHTS_HEADER: &str = "x-grpo-weights";

/// The version name of the model image that an engine booted with.
pub const BASE_VERSION: &str = "base";
