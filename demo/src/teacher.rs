//! The recorded script that warms a policy up for `grpo-learning --agent`: a repairer that plays one of three agents.
//!
//! It looks at the function, makes one of its possible flips and runs the tests. After a failure it mostly gives up;
//! otherwise it undoes the edit and makes another flip. The first flip is nearly a uniform choice. So a policy that was
//! trained on the recording resolves some tasks and not others, and GRPO has two things to reinforce: persistence after
//! a failed test, and the choice of the flip.
//!
//! [`Teacher`] answers a request by its messages and its seed alone: the earlier attempts are read from the messages,
//! and the seed decides the rest. The driver derives the seed from task, sample and turn, so two samples of a task
//! differ, and a request that is sent again has the same answer. [`server`] answers over HTTP. [`conversation`] has the
//! messages, [`flips`] the possible edits, and one module for each agent its calls and the texts that it shows.

pub mod conversation;
pub mod edit_tool;
pub mod flips;
pub mod pdb;
pub mod qwen_code;
pub mod server;
pub mod shell;

use self::conversation::{Answer, Asked, Excerpt, Function, turns};
use self::flips::Flip;
use crate::tasks::{Repair, Tasks};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use std::collections::BTreeMap;

/// Share of the attempts that make the repairing flip for no visible reason; the others are chosen at random. Small:
/// the policy is trained on the same tasks, so it learns this share by heart.
pub const BEYOND_CHANCE: f64 = 0.05;
/// Share of the failed attempts after which the script gives up.
pub const GIVE_UP: f64 = 0.75;

const SPLIT: &str = "train";
/// The answer to a request about no training task, such as a pool's probe.
const READY: &str = "Ready.";

/// The agents through which a policy is improved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum Agent {
    /// The bash loop with the edit tool.
    EditTool,
    /// The tool-calling loop with view, rewrite, eval and pdb.
    Pdb,
    /// Unmodified qwen-code.
    QwenCode,
}

impl Agent {
    /// In names of runs and volumes.
    pub fn slug(self) -> &'static str {
        match self {
            Self::EditTool => "edit-tool",
            Self::Pdb => "pdb",
            Self::QwenCode => "qwen-code",
        }
    }

    /// `spec.agent` without limits.
    pub fn spec(self) -> Value {
        match self {
            Self::EditTool => edit_tool::agent(),
            Self::Pdb => pdb::agent(),
            Self::QwenCode => qwen_code::agent(),
        }
    }

    /// The command that the agent needs in each task's row.
    pub fn test_command(self) -> Option<&'static str> {
        (self == Self::Pdb).then_some(pdb::TEST_COMMAND)
    }

    /// The problem as the agent's prompt has it.
    fn problem(self, statement: &str, function: &Function) -> String {
        match self {
            Self::Pdb => pdb::problem(statement, function),
            Self::EditTool | Self::QwenCode => statement.to_owned(),
        }
    }

    fn look(self, function: &Function) -> Answer {
        match self {
            Self::EditTool => edit_tool::look(function),
            Self::Pdb => pdb::look(function),
            Self::QwenCode => qwen_code::look(function),
        }
    }

    /// The function in the text after [`Self::look`].
    fn excerpt<'a>(self, function: &'a Function, shown: &'a str) -> Option<Excerpt<'a>> {
        match self {
            Self::EditTool => Excerpt::of(function, shown, shell::code_of),
            Self::Pdb => Excerpt::of(function, shown, pdb::code_of),
            Self::QwenCode => Excerpt::of(function, shown, qwen_code::code_of),
        }
    }

    /// Makes a flip and runs the tests. `undo`: the earlier edit.
    fn attempt(self, excerpt: &Excerpt<'_>, flip: &Flip, undo: Option<&Flip>) -> Answer {
        match self {
            Self::EditTool => edit_tool::attempt(excerpt, flip, undo),
            Self::Pdb => pdb::attempt(excerpt, flip, undo),
            Self::QwenCode => qwen_code::attempt(excerpt, flip, undo),
        }
    }

    fn give_up(self) -> Answer {
        match self {
            Self::EditTool => edit_tool::give_up(),
            Self::Pdb => pdb::give_up(),
            Self::QwenCode => qwen_code::give_up(),
        }
    }
}

/// The script for one agent.
#[derive(Clone, Debug)]
pub struct Teacher {
    agent: Agent,
    /// The training tasks by the problem that a prompt shows: a request has no instance id.
    functions: BTreeMap<String, Function>,
}

impl Teacher {
    pub fn of(agent: Agent, tasks: &Tasks) -> Self {
        let known = |(_, row): (&str, &Value)| {
            let function = Function::of(row)?;
            let problem = agent.problem(row["problem_statement"].as_str()?, &function);
            (row["split"] == SPLIT).then_some((problem, function))
        };
        Self {
            agent,
            functions: tasks.rows.iter().filter_map(known).collect(),
        }
    }

    pub fn answer(&self, asked: &Asked) -> Answer {
        // An agent may put its own words around the problem.
        let is_about = |problem: &String| {
            asked
                .messages
                .iter()
                .any(|message| message.text().contains(problem.as_str()))
        };
        match self.functions.iter().find(|(problem, _)| is_about(problem)) {
            Some((_, function)) => self.next(function, asked),
            None => Answer::text(READY),
        }
    }

    fn next(&self, function: &Function, asked: &Asked) -> Answer {
        let agent = self.agent;
        let turns = turns(&asked.messages);
        let Some((look, later)) = turns.split_first() else {
            return agent.look(function);
        };
        let Some(excerpt) = agent.excerpt(function, &look.shown) else {
            return agent.give_up();
        };
        let possible = flips::possible(&excerpt.lines);
        let mut tried: Vec<&Flip> = Vec::new();
        for turn in later {
            let undo = tried.last().copied();
            let made = |flip: &&Flip| turn.answer.is(&agent.attempt(&excerpt, flip, undo));
            match possible.iter().find(made) {
                Some(flip) => tried.push(flip),
                // Any other answer gave up.
                None => return agent.give_up(),
            }
        }
        let passed = later.last().is_some_and(|turn| turn.shown.contains(shell::PASSED));
        let left: Vec<&Flip> = possible.iter().filter(|flip| !tried.contains(flip)).collect();
        let mut draws = StdRng::seed_from_u64(asked.seed);
        let is_tired = !tried.is_empty() && draws.random_bool(GIVE_UP);
        if passed || is_tired || left.is_empty() {
            return agent.give_up();
        }
        let Repair { old, new, .. } = &function.repair;
        let repair = left.iter().copied().find(|flip| flip.old == old && flip.new == new);
        let flip = match repair.filter(|_| draws.random_bool(BEYOND_CHANCE)) {
            Some(repair) => repair,
            None => left[draws.random_range(0..left.len())],
        };
        agent.attempt(&excerpt, flip, tried.last().copied())
    }
}

#[cfg(test)]
mod tests;
