//! The commands of the agents of `agent.cli.preset`: command line, environment and standard input. Pure: texts and
//! limits in, a command out.
//!
//! The caller adds the endpoint's variables (`OPENAI_BASE_URL`, `OPENAI_API_KEY`, `OPENAI_MODEL`), then
//! `agent.cli.env`, and runs the command in the repository. The paths are those of the images in `docs/images`.
//!
//! A text shares one argument with its option (`--system=...`), so that a text that begins with a dash is not an
//! option.
//!
//! qwen-code reads its prompt from standard input: with a prompt among its arguments it sometimes loses the output of
//! commands. `docs/images/mini-swe-agent/run.py` uses mini-swe-agent as a library, because its own model classes would
//! bring 700 MB of packages.

use super::super::limits::AgentLimits;
use grpo_contracts::names::AGENT_FOLDER;
use grpo_crds::agent::{CliAgent, CliPreset};

/// The folder of an agent's own files: outside the repository, so that no patch contains them.
pub const HOME: &str = "/tmp/grpo-agent";

/// Tools of qwen-code's bare mode that have nothing to do with a repository.
const NEEDLESS_TOOLS: [&str; 3] = ["get_goal", "update_goal", "notebook_edit"];

/// The texts of one episode for the agent: the run's templates, rendered.
#[derive(Clone, Copy, Debug)]
pub struct Words<'a> {
    /// `agent.cli.system`. `None`: the agent's own system text.
    pub system: Option<&'a str>,
    /// `agent.cli.task`.
    pub prompt: &'a str,
}

/// A command that is run without a shell. The first argument is an absolute path below [`AGENT_FOLDER`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandLine {
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub stdin: Vec<u8>,
}

/// The command of a preset. `answer_tokens`: the run's limit of one answer. An agent with a higher limit would retry a
/// truncated answer with more tokens.
pub fn command_line(
    preset: CliPreset,
    cli: &CliAgent,
    words: Words<'_>,
    limits: &AgentLimits,
    answer_tokens: u32,
) -> CommandLine {
    let (argv, env) = match preset {
        CliPreset::QwenCode => qwen_code(cli.bare, words.system, limits.turns, answer_tokens),
        CliPreset::MiniSweAgent => mini_swe_agent("text", words.system, limits),
        CliPreset::MiniSweAgentTools => mini_swe_agent("tools", words.system, limits),
    };
    CommandLine {
        argv,
        env: env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        stdin: words.prompt.as_bytes().to_vec(),
    }
}

type Variables = Vec<(&'static str, String)>;

/// qwen-code 0.24.4. Without `bare` it reads settings, so its image has a settings file beside the program.
fn qwen_code(bare: bool, system: Option<&str>, turns: u32, answer_tokens: u32) -> (Vec<String>, Variables) {
    let mut argv = vec![
        in_image("bin/node"),
        "--expose-gc".to_owned(),
        in_image("qwen/cli.js"),
        "--auth-type".to_owned(),
        "openai".to_owned(),
        "-y".to_owned(),
    ];
    if bare {
        argv.push("--bare".to_owned());
    }
    if let Some(system) = system {
        argv.push(format!("--system-prompt={system}"));
    }
    if bare {
        argv.push("--exclude-tools".to_owned());
        argv.extend(NEEDLESS_TOOLS.map(str::to_owned));
    }
    argv.extend(["--output-format".to_owned(), "stream-json".to_owned()]);
    argv.extend(["--max-session-turns".to_owned(), turns.to_string()]);
    let env = vec![
        ("QWEN_HOME", HOME.to_owned()),
        ("QWEN_CODE_SYSTEM_SETTINGS_PATH", in_image("qwen/settings.json")),
        ("QWEN_CODE_MAX_OUTPUT_TOKENS", answer_tokens.to_string()),
        ("QWEN_USAGE_STATISTICS_ENABLED", "false".to_owned()),
        ("QWEN_CODE_SUPPRESS_YOLO_WARNING", "1".to_owned()),
        ("QWEN_CODE_DISABLE_PRECONNECT", "1".to_owned()),
        ("NO_BROWSER", "1".to_owned()),
    ];
    (argv, env)
}

/// mini-swe-agent 2.4.6. `class`: how the policy writes a command, `text` or `tools`. Python is isolated (`-I`):
/// nothing of the task's own Python is read.
fn mini_swe_agent(class: &str, system: Option<&str>, limits: &AgentLimits) -> (Vec<String>, Variables) {
    let mut argv = vec![
        in_image("bin/python3"),
        "-I".to_owned(),
        "-B".to_owned(),
        in_image("mini/run.py"),
        class.to_owned(),
        "--turns".to_owned(),
        limits.turns.to_string(),
        "--command-timeout".to_owned(),
        limits.command_timeout.as_secs().max(1).to_string(),
    ];
    if let Some(system) = system {
        argv.push(format!("--system={system}"));
    }
    let env = vec![
        ("MSWEA_GLOBAL_CONFIG_DIR", HOME.to_owned()),
        ("MSWEA_SILENT_STARTUP", "1".to_owned()),
    ];
    (argv, env)
}

/// A path of the agent's image.
fn in_image(path: &str) -> String {
    format!("{AGENT_FOLDER}/{path}")
}

#[cfg(test)]
mod tests;
