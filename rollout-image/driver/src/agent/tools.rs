//! The tool-calling loop, with the tools of SWE-PDB, including a debugger.
//!
//! An answer has calls, which [`crate::calls`] reads. They are carried out in order, and each is answered by a separate
//! message. The policy reads the original's texts, word for word; the modules name the few improvements. Schemas, texts
//! and parsing are pure; [`bench`] and [`debugger`] work in the sandbox.
//!
//! An episode ends when `eval` succeeds. That is not a verdict: the patch is graded in a fresh sandbox with fresh
//! tests.

pub mod arguments;
pub mod bench;
pub mod breakpoints;
pub mod debugger;
pub mod diff;
pub mod eval;
pub mod grep;
pub mod memory;
pub mod pdb;
pub mod prompts;
pub mod rewrite;
mod run;
pub mod tree;
pub mod view;

use self::bench::Bench;
use self::memory::Memory;
use self::run::{Answer, NO_NAME};
use super::observation::Observation;
use super::turns::LoopAgent;
use crate::calls;
use crate::episode::abort::Abort;
use crate::episode::live::{Acted, LiveEpisode, Ran};
use crate::episode::work::Halt;
use crate::fault::TerminalFault;
use crate::tasks::Task;
use futures::future::BoxFuture;
use grpo_chat_template::{ChatMessage, Role};
use grpo_contracts::reason::Reason;
use grpo_crds::agent::{CallFormat, Toolset};
use grpo_records::{CalledTool, TurnAction, TurnRecord, VoidReason};
use minijinja::{Environment, UndefinedBehavior, context};
use serde::Deserialize as _;
use serde_json::{Map, Value};

/// The longest answer of a tool, head and tail together, in bytes.
pub const LONGEST_ANSWER: u64 = 16 << 10;
/// The most calls of one answer that are carried out.
const MOST_CALLS: usize = 16;
const TOO_MANY: &str = "Not run: an answer has at most 16 tool calls.";
const NO_TIME: &str = "Not run: the time of the episode is over.";
const SOLVED: &str = "Not run: all tests have passed.";

/// The available tools, and their automatic actions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switches {
    pub toolset: Toolset,
    pub grep: bool,
    pub bash: bool,
    /// The system message ends with the files of the working directory.
    pub directory_tree: bool,
    /// A debugging session begins with the breakpoints of the last one.
    pub keep_breakpoints: bool,
    /// `eval` runs after each rewrite.
    pub eval_after_rewrite: bool,
    /// pdb lists the code around the place where `c` stopped.
    pub list_after_continue: bool,
}

/// The settings of `spec.agent.tools`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolsSpec {
    pub switches: Switches,
    pub format: CallFormat,
    pub system: String,
    pub task: String,
}

impl ToolsSpec {
    pub fn of(spec: &grpo_crds::agent::ToolsAgent) -> Self {
        let or = |given: &Option<String>, default: &str| given.clone().unwrap_or_else(|| default.to_owned());
        Self {
            switches: Switches {
                toolset: spec.toolset,
                grep: spec.grep,
                bash: spec.bash,
                directory_tree: spec.directory_tree,
                keep_breakpoints: spec.keep_breakpoints,
                eval_after_rewrite: spec.eval_after_rewrite,
                list_after_continue: spec.list_after_continue,
            },
            format: spec.call_format,
            system: or(&spec.system, prompts::system(spec.toolset)),
            task: or(&spec.task, prompts::TASK),
        }
    }
}

/// The agent, with its templates compiled.
#[derive(Debug)]
pub struct ToolsAgent {
    environment: Environment<'static>,
    switches: Switches,
    format: CallFormat,
    /// JSON text.
    tools: String,
}

impl ToolsAgent {
    /// Compiles the templates; an error names the wrong one. `limits`: those that prompts may show the policy.
    pub fn new(spec: &ToolsSpec, limits: Value) -> Result<Self, minijinja::Error> {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_keep_trailing_newline(true);
        environment.add_global("limits", minijinja::Value::from_serialize(&limits));
        environment.add_template_owned("system", spec.system.clone())?;
        environment.add_template_owned("task", spec.task.clone())?;
        Ok(Self {
            environment,
            switches: spec.switches.clone(),
            format: spec.format,
            tools: prompts::tools(&spec.switches),
        })
    }

    /// Carries out the calls of a turn, one after the other.
    async fn carry_out(
        &self,
        episode: &LiveEpisode<'_>,
        turn: &mut TurnRecord,
        calls: &[CalledTool],
    ) -> Result<Observation, Halt> {
        let last = episode.trajectory.turns.last();
        let memory = last
            .and_then(|last| Memory::deserialize(&last.memory).ok())
            .unwrap_or_default();
        let mut bench = Bench::new(episode, turn, &self.switches, memory, "c");
        let mut messages = Vec::new();
        let mut solved = false;
        for (number, call) in calls.iter().enumerate() {
            let text = if solved {
                SOLVED.to_owned()
            } else if number >= MOST_CALLS {
                TOO_MANY.to_owned()
            } else if episode.spent(bench.turn) >= episode.limits.episode_timeout {
                NO_TIME.to_owned()
            } else {
                let answer: Answer = run::call(&mut bench, &call.name, &call.arguments).await?;
                solved |= answer.solved;
                shortened(answer.text, episode.limits.output_bytes as usize)
            };
            messages.push(ChatMessage::tool(call.id.clone(), text));
        }
        let memory = bench.memory;
        turn.memory = serde_json::to_value(memory).unwrap_or_default();
        Ok(Observation {
            messages,
            submitted: solved,
        })
    }
}

/// Shortens a longer text to head and tail of `most` bytes together.
fn shortened(text: String, most: usize) -> String {
    if text.len() <= most {
        return text;
    }
    let is_between = |at: &usize| text.is_char_boundary(*at);
    let head = (0..=most / 2).rev().find(is_between).unwrap_or_default();
    let tail = (text.len() - most / 2..text.len())
        .find(is_between)
        .unwrap_or(text.len());
    format!(
        "{}\n... ({} characters left out) ...\n{}",
        &text[..head],
        text[head..tail].chars().count(),
        &text[tail..]
    )
}

impl LoopAgent for ToolsAgent {
    /// Observations are not templates.
    fn rehearse(&self) -> Result<(), minijinja::Error> {
        Ok(())
    }

    fn check(&self, task: &Task) -> Result<(), TerminalFault> {
        match &task.environment.test_command {
            Some(_) => Ok(()),
            None => Err(TerminalFault::new(
                Reason::NoTestCommand,
                format!(
                    "task {} has no test command, which the tool eval of agent.tools runs: add the field test_command \
                     to its row (rows of KodCode have one), or use agent.bash",
                    task.instance
                ),
            )),
        }
    }

    fn tools(&self) -> &str {
        &self.tools
    }

    fn look<'a>(&'a self, episode: &'a LiveEpisode<'_>) -> BoxFuture<'a, Result<String, Abort>> {
        Box::pin(async move {
            if !self.switches.directory_tree {
                return Ok(String::new());
            }
            let mut turn = episode.blank_turn(0);
            let mut bench = Bench::new(episode, &mut turn, &self.switches, Memory::default(), "look");
            match run::draw(&mut bench, ".", 1).await {
                Ok(tree) => Ok(prompts::files(bench.directory(), &tree)),
                Err(Halt::Abort(abort)) => Err(abort),
                // The policy has done nothing yet.
                Err(Halt::Exhausted) => Err(Abort::Void {
                    reason: VoidReason::SandboxLost,
                    message: "the sandbox was lost before the first answer".to_owned(),
                }),
            }
        })
    }

    fn opening(&self, task: &Map<String, Value>, seen: &str) -> Result<Vec<ChatMessage>, minijinja::Error> {
        let render = |name: &str| self.environment.get_template(name)?.render(context! { task });
        let system = format!("{}{seen}", render("system")?);
        let mut messages = Vec::new();
        if !system.is_empty() {
            messages.push(ChatMessage::new(Role::System, system));
        }
        messages.push(ChatMessage::new(Role::User, render("task")?));
        Ok(messages)
    }

    fn parse(&self, turn: u32, answer: &str) -> TurnAction {
        let parsed = calls::parse(self.format, answer, &self.tools);
        if let Some(why) = parsed.malformed {
            return TurnAction::malformed_call(why);
        }
        if parsed.calls.is_empty() {
            return TurnAction::malformed_call("the answer has no call");
        }
        let called = parsed.calls.into_iter().enumerate().map(|(at, call)| CalledTool {
            id: format!("call-{turn}-{at}"),
            name: call.name,
            arguments: call.arguments,
        });
        TurnAction::calls(&called.collect::<Vec<_>>())
    }

    fn content(&self, answer: &str) -> Option<String> {
        Some(calls::parse(self.format, answer, &self.tools).content)
    }

    fn act<'a>(
        &'a self,
        episode: &'a LiveEpisode<'_>,
        turn: &'a mut TurnRecord,
    ) -> BoxFuture<'a, Result<Acted, Abort>> {
        Box::pin(async move {
            let Some(calls) = turn.action.as_calls() else {
                // The tools' memory survives an answer without a call.
                turn.memory = episode
                    .trajectory
                    .turns
                    .last()
                    .map_or(Value::Null, |last| last.memory.clone());
                return Ok(Acted::Nothing);
            };
            match self.carry_out(episode, turn, &calls).await {
                Ok(observed) => Ok(Acted::Told(observed)),
                Err(Halt::Exhausted) => Ok(Acted::Exhausted),
                Err(Halt::Abort(abort)) => Err(abort),
            }
        })
    }

    /// The observation after an answer without a readable call.
    fn observe(&self, _: &TurnAction, _: Option<&Ran>, _: u32) -> Result<Observation, minijinja::Error> {
        Ok(Observation {
            messages: vec![ChatMessage::new(Role::Tool, NO_NAME)],
            submitted: false,
        })
    }
}

#[cfg(test)]
mod tests;
