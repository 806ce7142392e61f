//! The bash loop: exactly one bash block in each answer. Its texts and its parser are pure.
//!
//! The *output* of a successful command submits, never the command's text: a command that merely mentions the sentinel
//! does not submit.

mod presets;

use self::presets::{EDIT_TOOL, Preset};
use super::observation::Observation;
use super::turns::LoopAgent;
use crate::episode::abort::Abort;
use crate::episode::live::{Acted, LiveEpisode, Ran};
use futures::future::BoxFuture;
use grpo_chat_template::{ChatMessage, Role};
use grpo_records::chat::{THINK, reasoning_of};
use grpo_records::{ExecSummary, TurnAction, TurnRecord};
use minijinja::{Environment, ErrorKind, UndefinedBehavior, context};
use serde_json::{Map, Value};

/// The names that the template of an observation may use besides globals.
const OBSERVATION_NAMES: [&str; 10] = [
    "command",
    "output",
    "rawOutput",
    "exitCode",
    "signal",
    "timedOut",
    "killed",
    "omittedBytes",
    "seconds",
    "turnsLeft",
];
/// The names that the template of a format error may use besides globals.
const FORMAT_ERROR_NAMES: [&str; 3] = ["blocks", "truncated", "turnsLeft"];

/// The templates of the agent's texts, and the sentinel of a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompts {
    pub system: String,
    pub task: String,
    pub observation: String,
    pub format_error: String,
    pub sentinel: String,
    /// The policy is told of the edit tool.
    pub edit_tool: bool,
    /// The longest output of a command that an observation needs, head and tail together, in bytes.
    pub output_bytes: u64,
}

impl Prompts {
    /// From `spec.agent.bash`: its fields, and the preset's texts for the others.
    pub fn of(spec: &grpo_crds::agent::BashAgent) -> Self {
        let preset = Preset::of(spec.preset);
        let given = |field: &Option<String>, preset: &str| field.clone().unwrap_or_else(|| preset.to_owned());
        Self {
            system: given(&spec.system, preset.system),
            task: given(&spec.task, preset.task),
            observation: given(&spec.observation, preset.observation),
            format_error: given(&spec.format_error, preset.format_error),
            sentinel: given(&spec.submit_sentinel, preset.sentinel),
            edit_tool: spec.edit_tool.unwrap_or(preset.edit_tool),
            output_bytes: preset.output_bytes,
        }
    }
}

impl Default for Prompts {
    fn default() -> Self {
        Self {
            system: "Fix the bug. One bash block per turn.".into(),
            task: "{{ task.problem_statement }}".into(),
            observation: "{{ output }}".into(),
            format_error: "One bash block per turn.".into(),
            sentinel: "SUBMIT".into(),
            edit_tool: false,
            output_bytes: 4096,
        }
    }
}

/// The agent, with its templates compiled.
#[derive(Debug)]
pub struct BashAgent {
    environment: Environment<'static>,
    sentinel: String,
    has_system: bool,
}

impl BashAgent {
    /// Compiles the templates; an error names the wrong one. `limits`: those that prompts may show the policy.
    pub fn new(prompts: &Prompts, limits: Value) -> Result<Self, minijinja::Error> {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.add_global("submitSentinel", prompts.sentinel.clone());
        environment.add_global("limits", minijinja::Value::from_serialize(&limits));
        let edit_tool = if prompts.edit_tool { EDIT_TOOL.trim_end() } else { "" };
        environment.add_global("editTool", edit_tool);
        for (name, template) in [
            ("system", &prompts.system),
            ("task", &prompts.task),
            ("observation", &prompts.observation),
            ("formatError", &prompts.format_error),
        ] {
            environment.add_template_owned(name, template.clone())?;
        }
        Ok(Self {
            environment,
            sentinel: prompts.sentinel.clone(),
            has_system: !prompts.system.is_empty(),
        })
    }

    /// The text after a command.
    fn observation(
        &self,
        command: &str,
        output: &str,
        exec: &ExecSummary,
        turns_left: u32,
    ) -> Result<String, minijinja::Error> {
        self.environment.get_template("observation")?.render(context! {
            command => command.trim(),
            output => output.trim_end_matches('\n'),
            rawOutput => output,
            exitCode => exec.exit_code,
            signal => exec.signal,
            timedOut => exec.timed_out,
            killed => exec.killed,
            omittedBytes => exec.omitted_bytes,
            seconds => exec.duration_millis / 1000,
            turnsLeft => turns_left,
        })
    }

    /// The text if there was no command to run.
    fn format_error(&self, action: &TurnAction, turns_left: u32) -> Result<String, minijinja::Error> {
        let (blocks, truncated) = match action.blocks() {
            Some(blocks) => (blocks, false),
            None => (0, true),
        };
        self.environment
            .get_template("formatError")?
            .render(context! { blocks, truncated, turnsLeft => turns_left })
    }

    /// Refuses an undefined name in any branch of a template.
    fn check_names(&self, template: &str, known: &[&str]) -> Result<(), minijinja::Error> {
        let used = self.environment.get_template(template)?.undeclared_variables(false);
        let globals: Vec<&str> = self.environment.globals().map(|(name, _)| name).collect();
        let mut unknown: Vec<String> = used
            .into_iter()
            .filter(|name| !known.contains(&name.as_str()) && !globals.contains(&name.as_str()))
            .collect();
        unknown.sort();
        match unknown.is_empty() {
            true => Ok(()),
            false => Err(minijinja::Error::new(
                ErrorKind::UndefinedError,
                format!(
                    "{template} uses {}; it may use {}",
                    unknown.join(", "),
                    known.join(", ")
                ),
            )),
        }
    }

    /// Whether a successful command printed the sentinel as its first line that is not blank.
    fn is_submission(&self, output: &str, exec: &ExecSummary) -> bool {
        exec.exit_code == Some(0)
            && !exec.timed_out
            && output.lines().map(str::trim).find(|line| !line.is_empty()) == Some(self.sentinel.as_str())
    }
}

impl LoopAgent for BashAgent {
    /// Renders killed commands, silent ones and truncated answers, in every combination that can occur.
    fn rehearse(&self) -> Result<(), minijinja::Error> {
        self.check_names("observation", &OBSERVATION_NAMES)?;
        self.check_names("formatError", &FORMAT_ERROR_NAMES)?;
        for (exit_code, timed_out, killed) in [
            (Some(0), false, None),
            (Some(1), false, None),
            (Some(126), false, None),
            (None, true, None),
            (None, true, Some("Timeout")),
            (None, false, Some("OutOfMemory")),
            (None, false, None),
        ] {
            for (output, omitted_bytes, turns_left) in [("", 0, 0), ("some\n", 0, 1), ("some\n", 1, 0), ("", 1, 1)] {
                let exec = ExecSummary {
                    exec: "rehearsal".into(),
                    exit_code,
                    signal: exit_code.is_none().then_some(9),
                    timed_out,
                    killed: killed.map(str::to_owned),
                    output_bytes: output.len() as u64,
                    omitted_bytes,
                    duration_millis: 1500,
                };
                self.observation("true", output, &exec, turns_left)?;
            }
        }
        for turns_left in [0, 1] {
            self.format_error(&TurnAction::format_error(0), turns_left)?;
            self.format_error(&TurnAction::format_error(2), turns_left)?;
            self.format_error(&TurnAction::truncated(), turns_left)?;
        }
        Ok(())
    }

    fn opening(&self, task: &Map<String, Value>, _seen: &str) -> Result<Vec<ChatMessage>, minijinja::Error> {
        let render = |name: &str| self.environment.get_template(name)?.render(context! { task });
        let mut messages = Vec::new();
        if self.has_system {
            messages.push(ChatMessage::new(Role::System, render("system")?));
        }
        messages.push(ChatMessage::new(Role::User, render("task")?));
        Ok(messages)
    }

    fn parse(&self, _turn: u32, answer: &str) -> TurnAction {
        action_of(answer)
    }

    fn act<'a>(
        &'a self,
        episode: &'a LiveEpisode<'_>,
        turn: &'a mut TurnRecord,
    ) -> BoxFuture<'a, Result<Acted, Abort>> {
        Box::pin(async move {
            match turn.action.as_command().map(str::to_owned) {
                Some(command) => episode.run_command(turn, &command).await,
                None => Ok(Acted::Nothing),
            }
        })
    }

    fn observe(
        &self,
        action: &TurnAction,
        ran: Option<&Ran>,
        turns_left: u32,
    ) -> Result<Observation, minijinja::Error> {
        Ok(match ran {
            Some(Ran { output, exec }) => Observation::said(
                self.observation(action.as_command().unwrap_or_default(), output, exec, turns_left)?,
                self.is_submission(output, exec),
            ),
            None => Observation::said(self.format_error(action, turns_left)?, false),
        })
    }
}

/// Exactly one ```` ```bash ```` block, or a format error that says how many there were.
fn action_of(answer: &str) -> TurnAction {
    let mut blocks = blocks_of(without_reasoning(answer));
    match (blocks.pop(), blocks.len()) {
        (Some(command), 0) => TurnAction::command(command),
        (last, others) => TurnAction::format_error((others + usize::from(last.is_some())) as u32),
    }
}

/// The answer behind its reasoning. Blocks in the reasoning are drafts: a history without reasoning would show their
/// output, but not their command. A `</think>` within a line of a block belongs to the command, unless the answer
/// itself has opened its reasoning; one that begins a line ends the reasoning, whose drafts need not be closed.
fn without_reasoning(answer: &str) -> &str {
    let (reasoning, said) = reasoning_of(answer);
    let opens = answer.trim_start().starts_with(THINK);
    let begins_a_line = |reasoning: &str| reasoning.trim_end_matches([' ', '\t']).ends_with('\n');
    let is_in_a_block =
        |reasoning: &str| !opens && !begins_a_line(reasoning) && reasoning.matches("```").count() % 2 == 1;
    match reasoning.is_some_and(is_in_a_block) {
        true => answer,
        false => said,
    }
}

/// Every closed block, in order. An unclosed block does not count: the answer may have been cut off inside it.
fn blocks_of(answer: &str) -> Vec<String> {
    const OPEN: &str = "```bash";
    let mut blocks = Vec::new();
    let mut rest = answer;
    while let Some(at) = rest.find(OPEN) {
        let after = &rest[at + OPEN.len()..];
        let Some((blank, body)) = after.split_once('\n').filter(|(blank, _)| blank.trim().is_empty()) else {
            rest = after;
            continue;
        };
        debug_assert!(blank.trim().is_empty());
        match body.find("\n```") {
            Some(end) => {
                blocks.push(body[..end].to_owned());
                rest = &body[end + "\n```".len()..];
            }
            None => break,
        }
    }
    blocks
}

#[cfg(test)]
mod tests;
