//! The judge's prompt for a turn: the problem, the steps before it, the turn and its output.
//!
//! The default texts are those of OpenClaw-RL's swe-rl (`swe-rl/swe_prm.py` of Gen-Verse/OpenClaw-RL at 0d034dd, MIT
//! License, copyright 2026 Princeton-AI), character by character, and long outputs are cut in the same way. Four
//! things differ: a step has the number of its turn, also after a turn that ran nothing, where the original shows the
//! wrong result; answers and earlier commands are cut at `lengths.response`; an output is shown as the policy saw it;
//! and a space breaks text that spells a control token. A server reads text with such tokens, so the policy could close
//! the judge's prompt and open a turn of its own.

use grpo_crds::grpo_run::{JudgeLengths, ProcessReward};
use grpo_records::store::sha256_hex;
use grpo_records::{TurnAction, TurnRecord};
use minijinja::{Environment, UndefinedBehavior, context};
use serde_json::{Map, Value};

const SYSTEM: &str = include_str!("texts/system.txt");
const PROMPT: &str = include_str!("texts/prompt.txt");
/// In characters. An output of up to twice this length is shown whole; of a longer one, this much of its beginning and
/// end.
const HALF: usize = 2000;
/// Control tokens of the families whose tokens are not spelt `<|…|>`.
const CONTROL: [&str; 14] = [
    "<start_of_turn>",
    "<end_of_turn>",
    "<bos>",
    "<eos>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[AVAILABLE_TOOLS]",
    "[TOOL_CALLS]",
    "[TOOL_RESULTS]",
    "[gMASK]",
];
/// The longest name of a control token, in characters.
const LONGEST_NAME: usize = 64;

/// The templates, compiled, and how much of a trajectory is shown.
pub struct JudgePrompt {
    environment: Environment<'static>,
    history_steps: usize,
    lengths: JudgeLengths,
}

/// The judge's system message and prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// If empty, there is no system message.
    pub system: String,
    pub prompt: String,
}

impl Asked {
    /// The checksum in records.
    pub fn sha256(&self) -> String {
        sha256_hex(format!("{}\0{}", self.system, self.prompt).as_bytes())
    }
}

impl JudgePrompt {
    /// Compiles and renders the templates; an error names the wrong one.
    pub fn new(spec: &ProcessReward) -> Result<Self, minijinja::Error> {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_keep_trailing_newline(true);
        let given = |text: &Option<String>, default: &str| text.clone().unwrap_or_else(|| default.to_owned());
        environment.add_template_owned("system", given(&spec.system, SYSTEM))?;
        environment.add_template_owned("prompt", given(&spec.prompt, PROMPT))?;
        let this = Self {
            environment,
            history_steps: spec.history_steps as usize,
            lengths: spec.lengths.clone(),
        };
        this.render("", &Shown::default(), 0, "", 1)?;
        Ok(this)
    }

    /// The prompt about turn `at` of `turns`. `task`: the variables of the episode's task.
    pub fn of_turn(
        &self,
        task: &Map<String, Value>,
        turns: &[TurnRecord],
        at: usize,
    ) -> Result<Asked, minijinja::Error> {
        let problem = task
            .get("problem_statement")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let before: Vec<&TurnRecord> = turns[..at].iter().filter(|turn| ran(turn)).collect();
        let shown = &before[before.len().saturating_sub(self.history_steps)..];
        let steps = shown.iter().map(|turn| {
            let Shown {
                action, code, output, ..
            } = Shown::of(turn, self.lengths.history_output);
            let action = cut(&action, self.lengths.response, "\n... (truncated)");
            format!(
                "Step {}: $ {action}\n  returncode={code}\n  output:\n{output}",
                turn.turn + 1
            )
        });
        let steps: Vec<String> = steps.collect();
        let history = match steps.is_empty() {
            true => "None (this is the first step)".to_owned(),
            false => steps.join("\n\n"),
        };
        let mut step = Shown::of(&turns[at], self.lengths.output);
        step.response = cut(&turns[at].text, self.lengths.response, "\n... (truncated)");
        let problem = cut(problem, self.lengths.problem, "\n... (truncated)");
        self.render(&problem, &step, steps.len(), &history, turns[at].turn + 1)
    }

    fn render(
        &self,
        problem: &str,
        step: &Shown,
        history_steps: usize,
        history: &str,
        number: u32,
    ) -> Result<Asked, minijinja::Error> {
        let prompt = self.environment.get_template("prompt")?.render(context! {
            problemStatement => inert(problem),
            historySteps => history_steps,
            history => inert(history),
            step => number,
            response => inert(&step.response),
            returnCode => step.code,
            output => inert(&step.output),
        })?;
        Ok(Asked {
            system: self.environment.get_template("system")?.render(())?,
            prompt,
        })
    }
}

/// Whether a turn ran something: the judge scores no other turns.
pub fn ran(turn: &TurnRecord) -> bool {
    turn.action.is_action() && turn.action.kind != TurnAction::ANSWER
}

/// A turn as the judge sees it.
#[derive(Clone, Debug, Default)]
struct Shown {
    action: String,
    code: String,
    output: String,
    response: String,
}

impl Shown {
    fn of(turn: &TurnRecord, longest: u32) -> Self {
        let calls = || {
            let calls = turn.action.as_calls().unwrap_or_default();
            let calls = calls.iter().map(|call| format!("{}({})", call.name, call.arguments));
            calls.collect::<Vec<_>>().join("; ")
        };
        let exec = turn.exec.as_ref();
        let code = exec.and_then(|exec| exec.exit_code.or(exec.signal.map(|signal| -signal)));
        Self {
            action: turn.action.as_command().map_or_else(calls, str::to_owned),
            code: code.map_or_else(|| "?".to_owned(), |code| code.to_string()),
            output: output(&turn.observation_text, longest),
            response: String::new(),
        }
    }
}

/// The whole output, or its beginning and end with the size of the gap; then cut to `longest`.
fn output(text: &str, longest: u32) -> String {
    let length = text.chars().count();
    let shown = match length.checked_sub(2 * HALF) {
        None | Some(0) => text.to_owned(),
        Some(gap) => {
            let head: String = text.chars().take(HALF).collect();
            let tail: String = text.chars().skip(length - HALF).collect();
            format!("{head}\n... ({gap} characters omitted) ...\n{tail}")
        }
    };
    cut(&shown, longest, &format!("\n... (truncated to {longest} chars)"))
}

/// The first `longest` characters, followed by `mark` if the text was longer.
fn cut(text: &str, longest: u32, mark: &str) -> String {
    match text.char_indices().nth(longest as usize) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}{mark}", &text[..end]),
    }
}

/// The text, with a space behind the first character of each control token.
fn inert(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['<', '[']) {
        let (before, from) = rest.split_at(at + 1);
        out.push_str(before);
        if is_control(&rest[at..]) {
            out.push(' ');
        }
        rest = from;
    }
    out.push_str(rest);
    out
}

/// Whether a text begins with a control token.
fn is_control(text: &str) -> bool {
    let is_spelt = |(open, close): (&str, &str)| {
        let Some(name) = text.strip_prefix(open) else {
            return false;
        };
        let mut letters = name.char_indices().take(LONGEST_NAME);
        letters
            .find(|(at, letter)| letter.is_whitespace() || name[*at..].starts_with(close))
            .is_some_and(|(at, letter)| at > 0 && !letter.is_whitespace())
    };
    [("<|", "|>"), ("<｜", "｜>")].into_iter().any(is_spelt) || CONTROL.iter().any(|token| text.starts_with(token))
}

#[cfg(test)]
mod tests;
