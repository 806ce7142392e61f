//! The agent of a run: what it is told, what it may do and for how long. The driver renders the templates.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::Period;

/// The agent whose episodes are trained on: exactly one kind of agent, and its limits.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.bash)").message("give the agent: bash"))]
pub struct Agent {
    /// Built-in loop: every turn the policy writes text with one bash block, which is run in the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bash: Option<BashAgent>,
    /// Where an episode ends at the latest.
    #[serde(default)]
    pub limits: Limits,
}

/// Texts of the bash loop. Templates are minijinja (Jinja2 syntax).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BashAgent {
    /// Template of the system message. Variables: `task` (the task's row), `submitSentinel`, `limits`. Empty: no system message.
    #[serde(default = "default_system")]
    #[schemars(length(max = 16384))]
    pub system: String,
    /// Template of the first user message. Variables: `task` (the task's row, for example `task.problem_statement`), `submitSentinel`, `limits`.
    #[serde(default = "default_task")]
    #[schemars(length(min = 1, max = 16384))]
    pub task: String,
    /// Template of what the policy sees of a command. Variables: `output`, `exitCode` (none when it was killed), `timedOut`, `omittedBytes`,
    /// `seconds`, `turnsLeft`.
    #[serde(default = "default_observation")]
    #[schemars(length(min = 1, max = 16384))]
    pub observation: String,
    /// Template of the answer to a turn without exactly one bash block. Variables: `blocks` (how many there were), `turnsLeft`.
    #[serde(default = "default_format_error")]
    #[schemars(length(min = 1, max = 16384))]
    pub format_error: String,
    /// First line of a command's output that ends the episode and submits the repository as it is then.
    #[serde(default = "default_submit_sentinel")]
    #[schemars(length(min = 1, max = 256))]
    pub submit_sentinel: String,
    /// Gives the policy an exact-match edit command besides bash.
    #[serde(default)]
    pub edit_tool: bool,
}

impl Default for BashAgent {
    fn default() -> Self {
        Self {
            system: default_system(),
            task: default_task(),
            observation: default_observation(),
            format_error: default_format_error(),
            submit_sentinel: default_submit_sentinel(),
            edit_tool: false,
        }
    }
}

fn default_system() -> String {
    "You are a software engineer working in a shell. Every reply contains exactly one bash block:\n\n\
     ```bash\n<command>\n```\n\n\
     The command is run in the repository; you then see its output."
        .into()
}

fn default_task() -> String {
    "{{ task.problem_statement }}\n\n\
     Change the repository so that this is solved; do not change its tests. When you are done, run `echo {{ submitSentinel }}`."
        .into()
}

fn default_observation() -> String {
    "{% if timedOut %}The command was stopped: it ran for more than {{ seconds }} seconds.\n{% elif exitCode != 0 %}Exit code: {{ exitCode }}\n\
     {% endif %}{{ output }}"
        .into()
}

fn default_format_error() -> String {
    "Your reply has {{ blocks }} bash blocks. Reply with exactly one:\n\n```bash\n<command>\n```".into()
}

fn default_submit_sentinel() -> String {
    "COMPLETE_TASK_AND_SUBMIT".into()
}

/// Where an episode ends at the latest. Hitting a limit is a result of the policy, not a fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// Turns of one episode.
    #[serde(default = "default_turns")]
    #[schemars(range(min = 1, max = 10000))]
    pub turns: u32,
    /// Time of one command; its processes are killed then and the episode goes on.
    #[serde(default = "default_command_timeout")]
    pub command_timeout: Period,
    /// Time of one episode, without grading.
    #[serde(default = "default_episode_timeout")]
    pub episode_timeout: Period,
    /// Tokens of prompt and answer together. Default: what the model's `config.json` allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 64, max = 10000000))]
    pub context_tokens: Option<u32>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            turns: default_turns(),
            command_timeout: default_command_timeout(),
            episode_timeout: default_episode_timeout(),
            context_tokens: None,
        }
    }
}

fn default_turns() -> u32 {
    50
}

fn default_command_timeout() -> Period {
    Period::from_secs(120)
}

fn default_episode_timeout() -> Period {
    Period::from_minutes(30)
}
