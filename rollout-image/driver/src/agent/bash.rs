//! The built-in agent: text with exactly one bash block a turn. Pure: text in, decision out.
//!
//! What ends an episode by submission is the *output* of a command that succeeded, never the text of the command: one
//! that merely mentions the sentinel does not submit.

use super::{LoopAgent, Observation};
use crate::template::ChatMessage;
use grpo_records::{ExecSummary, TurnAction};
use minijinja::{Environment, UndefinedBehavior, context};
use serde_json::{Map, Value};

/// The templates of the agent's words and what it takes for a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompts {
    pub system: String,
    pub task: String,
    pub observation: String,
    pub format_error: String,
    pub sentinel: String,
}

impl Prompts {
    /// As `spec.agent.bash` has them.
    pub fn of(spec: &grpo_crds::agent::BashAgent) -> Self {
        Self {
            system: spec.system.clone(),
            task: spec.task.clone(),
            observation: spec.observation.clone(),
            format_error: spec.format_error.clone(),
            sentinel: spec.submit_sentinel.clone(),
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
        }
    }
}

/// The agent, ready to speak.
#[derive(Debug)]
pub struct BashAgent {
    environment: Environment<'static>,
    sentinel: String,
    has_system: bool,
}

impl BashAgent {
    /// Compiles the templates; an error names the one that is wrong. `limits` is what prompts may tell the policy of
    /// its limits.
    pub fn new(prompts: &Prompts, limits: Value) -> Result<Self, minijinja::Error> {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.add_global("submitSentinel", prompts.sentinel.clone());
        environment.add_global("limits", minijinja::Value::from_serialize(&limits));
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

    /// What is said after a command ran.
    fn observation(&self, output: &str, exec: &ExecSummary, turns_left: u32) -> Result<String, minijinja::Error> {
        self.environment.get_template("observation")?.render(context! {
            output => output.trim_end_matches('\n'),
            exitCode => exec.exit_code,
            timedOut => exec.timed_out,
            killed => exec.killed,
            omittedBytes => exec.omitted_bytes,
            seconds => exec.duration_millis / 1000,
            turnsLeft => turns_left,
        })
    }

    /// What is said when there was nothing to run.
    fn format_error(&self, action: &TurnAction, turns_left: u32) -> Result<String, minijinja::Error> {
        let (blocks, truncated) = match action {
            TurnAction::FormatError { blocks } => (*blocks, false),
            _ => (0, true),
        };
        self.environment
            .get_template("formatError")?
            .render(context! { blocks, truncated, turnsLeft => turns_left })
    }

    /// Renders what only some commands bring about: killed ones, silent ones, cut off answers. The policy decides which
    /// of these happen, so none of them may be an error later.
    pub fn rehearse(&self) -> Result<(), minijinja::Error> {
        let exec = |exit_code: Option<i32>, timed_out: bool, killed: Option<&str>| ExecSummary {
            exec: "rehearsal".into(),
            exit_code,
            signal: exit_code.is_none().then_some(9),
            timed_out,
            killed: killed.map(str::to_owned),
            output_bytes: 0,
            omitted_bytes: 1,
            duration_millis: 1500,
        };
        let ends = [
            exec(Some(0), false, None),
            exec(Some(1), false, None),
            exec(None, true, Some("Timeout")),
            exec(None, false, Some("OutOfMemory")),
            exec(None, false, None),
        ];
        for end in ends {
            for output in ["", "some\n"] {
                self.observation(output, &end, 0)?;
            }
        }
        self.format_error(&TurnAction::FormatError { blocks: 2 }, 1)?;
        self.format_error(&TurnAction::Truncated, 0)?;
        Ok(())
    }

    /// True when a command that succeeded printed the sentinel as the first line that is not blank.
    fn is_submission(&self, output: &str, exec: &ExecSummary) -> bool {
        exec.exit_code == Some(0)
            && !exec.timed_out
            && output.lines().map(str::trim).find(|line| !line.is_empty()) == Some(self.sentinel.as_str())
    }
}

impl LoopAgent for BashAgent {
    fn opening(&self, task: &Map<String, Value>) -> Result<Vec<ChatMessage>, minijinja::Error> {
        let render = |name: &str| self.environment.get_template(name)?.render(context! { task });
        let mut messages = Vec::new();
        if self.has_system {
            messages.push(ChatMessage::new("system", render("system")?));
        }
        messages.push(ChatMessage::new("user", render("task")?));
        Ok(messages)
    }

    fn parse(&self, answer: &str) -> TurnAction {
        action_of(answer)
    }

    fn command<'a>(&self, action: &'a TurnAction) -> Option<&'a str> {
        match action {
            TurnAction::Command { command } => Some(command),
            TurnAction::FormatError { .. } | TurnAction::Truncated => None,
        }
    }

    fn observe(
        &self,
        action: &TurnAction,
        ran: Option<(&str, &ExecSummary)>,
        turns_left: u32,
    ) -> Result<Observation, minijinja::Error> {
        Ok(match ran {
            Some((output, exec)) => Observation {
                text: self.observation(output, exec, turns_left)?,
                submitted: self.is_submission(output, exec),
            },
            None => Observation {
                text: self.format_error(action, turns_left)?,
                submitted: false,
            },
        })
    }
}

/// Exactly one ```` ```bash ```` block, or a format error that says how many there were.
fn action_of(answer: &str) -> TurnAction {
    let mut blocks = blocks_of(answer);
    match (blocks.pop(), blocks.len()) {
        (Some(command), 0) => TurnAction::Command { command },
        (last, others) => TurnAction::FormatError {
            blocks: (others + usize::from(last.is_some())) as u32,
        },
    }
}

/// Every closed block, in order. One that is not closed is none: the answer may have been about to go on.
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
