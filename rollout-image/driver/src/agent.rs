//! Agents: what the policy is asked, what its answers mean, what it is told of what came of them.
//!
//! An agent that takes turns is a [`LoopAgent`]; [`crate::episode`] runs the turns, which are the same for all of them.

pub mod bash;

use self::bash::{BashAgent, Prompts};
use crate::fault::TerminalFault;
use crate::template::ChatMessage;
use grpo_records::{ExecSummary, TurnAction};
use serde_json::{Map, Value};

/// Which agent a run has, and what is particular to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentKind {
    Bash(Prompts),
}

impl AgentKind {
    /// The agent that `spec.agent` names.
    pub fn of(spec: &grpo_crds::agent::Agent) -> Result<Self, TerminalFault> {
        if let Some(bash) = &spec.bash {
            return Ok(Self::Bash(Prompts::of(bash)));
        }
        Err(TerminalFault::new(
            "AgentUnknown",
            "spec.agent names no agent that this driver has; give agent: {bash: {}}",
        ))
    }

    /// The agent, with its templates compiled. `limits` is what prompts may tell the policy of its limits.
    pub fn agent(&self, limits: Value) -> Result<Box<dyn LoopAgent>, TerminalFault> {
        let built = match self {
            Self::Bash(prompts) => BashAgent::new(prompts, limits).map(|agent| Box::new(agent) as Box<dyn LoopAgent>),
        };
        built.map_err(|error| TerminalFault::new("PromptUnusable", format!("a template of spec.agent: {error:#}")))
    }
}

/// What the policy is told after an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    pub text: String,
    /// The policy has submitted its work.
    pub submitted: bool,
}

/// An agent that takes turns: the policy answers, its action is carried out, it observes what came of that.
pub trait LoopAgent: Send + Sync {
    /// The messages before the first answer.
    fn opening(&self, task: &Map<String, Value>) -> Result<Vec<ChatMessage>, minijinja::Error>;

    /// What an answer means.
    fn parse(&self, answer: &str) -> TurnAction;

    /// The command that carries an action out; nothing where there is nothing to run.
    fn command<'a>(&self, action: &'a TurnAction) -> Option<&'a str>;

    /// What is said after an action. `ran`: what its command printed and how it ended, where there was one.
    fn observe(
        &self,
        action: &TurnAction,
        ran: Option<(&str, &ExecSummary)>,
        turns_left: u32,
    ) -> Result<Observation, minijinja::Error>;
}
