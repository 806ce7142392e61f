//! Agents: the interface between an episode and the program that works on its task.
//!
//! An [`Agent`] works on a [`LiveEpisode`] until it ends. An agent that takes turns is a [`turns::LoopAgent`];
//! [`turns`] has the common loop.

pub mod bash;
pub mod cli;
pub mod commands;
pub mod history;
pub mod limits;
pub mod observation;
pub mod tools;
pub mod turns;

use self::bash::{BashAgent, Prompts};
use self::cli::CliLoop;
use self::history::HistoryRule;
use self::limits::AgentLimits;
use self::tools::{ToolsAgent, ToolsSpec};
use self::turns::TurnLoop;
use crate::episode::abort::Abort;
use crate::episode::live::LiveEpisode;
use crate::fault::TerminalFault;
use crate::tasks::Task;
use futures::future::BoxFuture;
use grpo_chat_template::ChatTemplate;
use grpo_contracts::reason::Reason;
use grpo_crds::agent::{CliAgent, SideConversations};
use grpo_records::{EpisodeEnd, RunAgent};

/// Works on episodes.
pub trait Agent: Send + Sync {
    /// The number of tokens of a task's first prompt, if known before the episode.
    fn first_prompt(&self, template: &ChatTemplate, task: &Task) -> Result<Option<usize>, TerminalFault>;

    /// Refuses, before anything is sampled, errors that only some episodes would meet: the prompt of one task, or a
    /// template that fails for one kind of observation.
    fn rehearse(&self, template: &ChatTemplate, limits: &AgentLimits, tasks: &[Task]) -> Result<(), TerminalFault>;

    /// Works on the episode's task from its last recorded turn until the episode ends. Each turn is durable before the
    /// next one begins.
    fn run<'a>(&'a self, episode: &'a mut LiveEpisode<'_>) -> BoxFuture<'a, Result<EpisodeEnd, Abort>>;
}

/// The agent of a run, with its own settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentKind {
    Bash(Prompts),
    Tools(ToolsSpec),
    Cli(Box<CliAgent>),
}

impl AgentKind {
    /// The agent that `spec.agent` names.
    pub fn of(spec: &grpo_crds::agent::Agent) -> Result<Self, TerminalFault> {
        // Every field is named, so that the compiler names an agent that is missing here.
        let grpo_crds::agent::Agent {
            bash,
            tools,
            cli,
            limits: _,
            env: _,
            context: _,
        } = spec;
        let bash = bash.as_ref().map(|bash| Self::Bash(Prompts::of(bash)));
        let tools = tools.as_ref().map(|tools| Self::Tools(ToolsSpec::of(tools)));
        let cli = cli.as_ref().map(|cli| Self::Cli(Box::new(cli.clone())));
        bash.or(tools).or(cli).ok_or_else(|| {
            TerminalFault::new(
                Reason::AgentUnknown,
                "spec.agent names no agent that this driver has; give agent: {bash: {}}",
            )
        })
    }

    /// Whether its policy has the edit tool.
    pub fn has_edit_tool(&self) -> bool {
        match self {
            Self::Bash(prompts) => prompts.edit_tool,
            Self::Tools(_) | Self::Cli(_) => false,
        }
    }

    /// The longest output of a command that is kept for it, head and tail together, in bytes.
    pub fn output_bytes(&self) -> u64 {
        match self {
            Self::Bash(prompts) => prompts.output_bytes,
            Self::Tools(_) => tools::LONGEST_ANSWER,
            Self::Cli(_) => cli::LOG_BYTES,
        }
    }

    /// The format of its answers, for the run's journal.
    pub fn recorded(&self) -> RunAgent {
        match self {
            Self::Bash(_) => RunAgent::Bash,
            Self::Tools(spec) => RunAgent::Tools {
                format: format!("{:?}", spec.format),
            },
            Self::Cli(cli) => RunAgent::Cli {
                format: format!("{:?}", cli.call_format),
                skips_side_conversations: cli.side_conversations == SideConversations::Skip,
            },
        }
    }

    /// The agent, with its templates compiled. `thinking`: as in [`grpo_chat_template::PromptShape`]. `history`: the
    /// part of it that agents with turns see.
    pub fn agent(
        &self,
        limits: &AgentLimits,
        thinking: bool,
        history: &HistoryRule,
    ) -> Result<Box<dyn Agent>, TerminalFault> {
        let history = history.clone();
        match self {
            Self::Bash(prompts) => {
                let bash = BashAgent::new(prompts, limits.shown()).map_err(turns::unusable)?;
                Ok(Box::new(TurnLoop {
                    agent: bash,
                    thinking,
                    history,
                }))
            }
            Self::Tools(spec) => {
                let tools = ToolsAgent::new(spec, limits.shown()).map_err(turns::unusable)?;
                Ok(Box::new(TurnLoop {
                    agent: tools,
                    thinking,
                    history,
                }))
            }
            Self::Cli(cli) => Ok(Box::new(CliLoop::new(cli, limits, thinking).map_err(turns::unusable)?)),
        }
    }
}
