//! The agent of a run: what it is told, what it may do and for how long. The driver renders the templates.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    cel,
    common::{EnvVariable, Period},
};

/// The agent whose episodes are trained on: at most one kind of agent (modes Train and Evaluate need it), and its
/// limits.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = cel::at_most_one(&["bash", "tools", "cli"]))]
pub struct Agent {
    /// Built-in loop: every turn the policy writes text with one bash block, which is run in the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bash: Option<BashAgent>,
    /// Built-in loop: every turn the policy calls tools of a set. Its tasks need a test command (`test_command` in
    /// their rows; rows of KodCode have one).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<ToolsAgent>,
    /// A command-line agent, run unchanged in the sandbox against an endpoint that records what it samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cli: Option<CliAgent>,
    /// Where an episode ends at the latest.
    #[serde(default)]
    pub limits: Limits,
    /// Variables of the policy's commands. A task's own stand above them. They stand above those that every run has:
    /// `PAGER=cat`, `MANPAGER=cat`, `LESS=-R`, `PIP_PROGRESS_BAR=off`, `TQDM_DISABLE=1`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub env: Vec<EnvVariable>,
    /// What of its history the policy sees.
    #[serde(default)]
    pub context: Context,
}

/// Texts of the bash loop. Templates are minijinja (Jinja2 syntax). A text that is left out is that of the preset.
/// Every template has the variables `submitSentinel`, `limits`, and `editTool`: what the policy is told of the edit
/// tool, empty without it.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BashAgent {
    /// Whose texts the policy reads. Plain: short ones of our own, submitted with `COMPLETE_TASK_AND_SUBMIT`.
    /// MiniSweAgent1: those of mini-swe-agent 1.12.0 for SWE-bench. MiniSweAgentPlus: those of mini-swe-agent-plus,
    /// with its edit tool.
    #[serde(default)]
    pub preset: BashPreset,
    /// Template of the system message. Variables: `task` (the task's row, and the folder of its repository as
    /// `task.working_dir`). Empty: no system message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16384))]
    pub system: Option<String>,
    /// Template of the first user message. Variables: `task` (the task's row, for example `task.problem_statement`, and
    /// the folder of its repository as `task.working_dir`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16384))]
    pub task: Option<String>,
    /// Template of what the policy sees of a command. Variables: `command`, `output` (without line ends behind it),
    /// `rawOutput`, `exitCode` (none when it was killed), `signal`, `timedOut`, `killed`, `omittedBytes` (left out in
    /// the middle of more than 16 kB, with the presets of mini-swe-agent of 64 kB), `seconds`, `turnsLeft`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16384))]
    pub observation: Option<String>,
    /// Template of the answer to a turn without exactly one bash block. Variables: `blocks` (how many there were),
    /// `truncated`, `turnsLeft`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16384))]
    pub format_error: Option<String>,
    /// The episode ends, and the repository as it is then is submitted, when a command succeeds whose output begins
    /// with this line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub submit_sentinel: Option<String>,
    /// Gives the policy the command `edit_via_str_replace`, which replaces a text that a file has exactly once; also as
    /// `python edit_via_str_replace`. It lies outside the repository. Default: true with MiniSweAgentPlus, else false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edit_tool: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum BashPreset {
    #[default]
    Plain,
    MiniSweAgent1,
    MiniSweAgentPlus,
}

/// The tool-calling loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolsAgent {
    /// Pdb: view, listdir, eval, rewrite, pdb and grep. Rewrite: the same without pdb. An episode ends when eval runs
    /// the task's tests and all pass; its patch is then graded in a fresh sandbox.
    #[serde(default)]
    pub toolset: Toolset,
    /// Offers grep.
    #[serde(default = "yes")]
    pub grep: bool,
    /// Offers a bash tool too.
    #[serde(default)]
    pub bash: bool,
    /// Ends the system message with the files of the repository's folder.
    #[serde(default = "yes")]
    pub directory_tree: bool,
    /// A debugging session begins with the breakpoints of the last one. Rewritten code moves them.
    #[serde(default = "yes")]
    pub keep_breakpoints: bool,
    /// Runs eval after each rewrite, and shows its output behind the diff.
    #[serde(default)]
    pub eval_after_rewrite: bool,
    /// Lists the code around the place where pdb's `c` has stopped.
    #[serde(default)]
    pub list_after_continue: bool,
    /// How a call is written. Hermes: JSON between `<tool_call>` tags. Qwen3Coder: XML, one tag per argument.
    #[serde(default)]
    pub call_format: CallFormat,
    /// Template of the system message (minijinja). Variables: `task`, `limits`. Default: the toolset's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16384))]
    pub system: Option<String>,
    /// Template of the first user message (minijinja). Variables: `task`, `limits`. Default: the task's problem
    /// statement; for rows of KodCode an instruction to find and mend the bug.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16384))]
    pub task: Option<String>,
}

fn yes() -> bool {
    true
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Toolset {
    #[default]
    Pdb,
    Rewrite,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum CallFormat {
    #[default]
    Hermes,
    Qwen3Coder,
}

/// A command-line agent. It reaches nothing but the recording endpoint, whose URL and key are in its environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = cel::exactly_one(&["preset", "command"]),
    validation = cel::rule("!self.bare || (has(self.preset) && self.preset == 'QwenCode')", "agent.cli.bare is true, but only preset QwenCode has a short prompt: leave bare out")
)]
pub struct CliAgent {
    /// An agent whose command line and environment are known. QwenCode: qwen-code. MiniSweAgent: mini-swe-agent, one
    /// bash block in each answer. MiniSweAgentTools: mini-swe-agent with its tool `bash`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<CliPreset>,
    /// Image that holds the agent and what it needs to run. It is mounted at `/opt/agent` of every sandbox, read-only,
    /// beside the task's own files, which stay as they are. A pool in `sandboxes.poolRef` has it as `agentImage`.
    #[schemars(length(min = 1, max = 512))]
    pub image: String,
    /// How the policy writes a tool call, and how its chat template shows one. Hermes: JSON between `<tool_call>` tags.
    /// Qwen3Coder: XML, one tag per argument.
    #[serde(default)]
    pub call_format: CallFormat,
    /// The shortest prompt that QwenCode has: 3 tools instead of 14 and no settings file. A first request has 33 kB
    /// instead of 78, and 13 with a short `system`.
    #[serde(default)]
    pub bare: bool,
    /// Template of the agent's system text (minijinja), `system` in `command`. Variables: `task`, `limits`. Default:
    /// the agent's own text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16384))]
    pub system: Option<String>,
    /// Command of an agent that is no preset, as templates (minijinja). Variables: `task`, `prompt`, `system`,
    /// `baseUrl`, `model`, `limits`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 16384)))]
    pub command: Option<Vec<String>>,
    /// Template of the prompt (minijinja), `prompt` in `command`. Default: the task's problem statement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16384))]
    pub task: Option<String>,
    /// What it asks while another of its conversations waits, as a sub-agent does. Train: it is trained on like the
    /// rest of the episode. Skip: it is recorded, and not trained on.
    #[serde(default)]
    pub side_conversations: SideConversations,
    /// Added to its environment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub env: Vec<EnvVariable>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum SideConversations {
    #[default]
    Train,
    Skip,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CliPreset {
    QwenCode,
    MiniSweAgent,
    MiniSweAgentTools,
}

/// What of its history the policy sees at every turn, and how turns become rows that are trained on.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = cel::rule("self.thinking != 'Strip' || !has(self.rows) || self.rows == 'PerTurn'", "agent.context.rows is {self.rows}, but thinking: Strip shows every turn another history: set rows: PerTurn or leave it out"),
    validation = cel::rule("!has(self.trim) || !has(self.rows) || self.rows == 'PerTurn'", "agent.context.rows is {self.rows}, but trim shows turns another history: set rows: PerTurn or leave it out")
)]
pub struct Context {
    /// Reasoning of earlier turns. Keep: it stays in the history. Strip: later turns do not see it. Off: the chat
    /// template is told to switch reasoning off (`enable_thinking=false`); a run whose model's template has no such
    /// switch ends when it begins. Refused: Strip with `cli`; use Keep or Off: a command-line agent keeps its own
    /// history.
    #[serde(default)]
    pub thinking: Thinking,
    /// Leaves out turns in the middle where history and answer do not fit together; the newest turn always stays. A
    /// user message says how many are missing. Left out: the episode ends there. Refused: with `cli`; leave it out: a
    /// command-line agent keeps its own history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trim: Option<Trim>,
    /// PerEpisode: turns whose history only grows are one row. PerTurn: each turn is a row of its own, with the history
    /// it saw; `algorithm.denominator` says whether a row or an episode counts. Default: PerTurn with `trim` or
    /// `thinking: Strip`, else PerEpisode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<Rows>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum Thinking {
    #[default]
    Keep,
    Strip,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Rows {
    PerEpisode,
    PerTurn,
}

/// What is kept of a history that does not fit, as shares of the room that the first messages leave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = cel::rule("self.head + self.tail <= 1.0", "agent.context.trim keeps head {self.head} and tail {self.tail} of the room, more than all of it: together they are at most 1"))]
pub struct Trim {
    /// Share for the first turns.
    #[serde(default = "default_head")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub head: f64,
    /// Share for the last turns.
    #[serde(default = "default_tail")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub tail: f64,
}

fn default_head() -> f64 {
    0.3
}

fn default_tail() -> f64 {
    0.7
}

/// Where an episode ends at the latest. Hitting a limit is a result of the policy, not a fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = cel::rule("duration(self.commandTimeout) <= duration(self.episodeTimeout)", "agent.limits.commandTimeout is {self.commandTimeout}, longer than episodeTimeout {self.episodeTimeout}: no command could run so long; lower the one or raise the other"),
    validation = cel::rule("!has(self.promptTokens) || !has(self.contextTokens) || self.promptTokens < self.contextTokens", "agent.limits.promptTokens is {self.promptTokens}, but contextTokens only {self.contextTokens}: the answers need room beside the prompt")
)]
pub struct Limits {
    /// Turns of one episode: answers of the policy.
    #[serde(default = "default_turns")]
    #[schemars(range(min = 1, max = 10000))]
    pub turns: u32,
    /// Time limit of one command. At the limit, its processes are killed and the episode continues.
    #[serde(default = "default_command_timeout")]
    pub command_timeout: Period,
    /// Time of one episode, without grading.
    #[serde(default = "default_episode_timeout")]
    pub episode_timeout: Period,
    /// Tokens of prompt and answer together. Default: what the model's `config.json` allows and the engine takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 64, max = 10000000))]
    pub context_tokens: Option<u32>,
    /// Tokens of the first prompt. A selected task whose prompt is longer is left out of its set, and the run's message
    /// counts it. Default: no limit but the context's. Refused: with `cli`; use `contextTokens`: what a command-line
    /// agent asks first is known when it asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000000))]
    pub prompt_tokens: Option<u32>,
    /// Tokens of one episode after its first prompt, answers and observations together. The episode ends there with
    /// `TokenLimit`, and its patch is graded. Default: no limit but the context's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100000000))]
    pub episode_tokens: Option<u32>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            turns: default_turns(),
            command_timeout: default_command_timeout(),
            episode_timeout: default_episode_timeout(),
            context_tokens: None,
            prompt_tokens: None,
            episode_tokens: None,
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
