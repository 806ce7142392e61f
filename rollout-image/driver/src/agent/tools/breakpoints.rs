//! Breakpoints: their list, the lines where they are allowed, and their moves after a rewrite. Pure.

use regex_lite::Regex;
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

/// The number of lines, from a definition on, that are searched for a better place.
const NEAR: usize = 5;

static LISTED: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"^\s*\d+\s+breakpoint\s+keep\s+yes\s+at\s+(.+):(\d+)$").ok());
static DEFINITION: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"^\s*(async\s+)?def\s+\w+\s*\([^)]*\)\s*(->\s*[^:]+)?\s*:").ok());
static CLASS: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^\s*class\s+\w+.*:\s*$").ok());

/// One breakpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Breakpoint {
    /// The full path.
    pub file: String,
    /// From 1.
    pub line: i64,
    /// The condition of a stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
}

/// The breakpoints of an episode, in the order in which pdb lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Breakpoints(pub Vec<Breakpoint>);

impl Breakpoint {
    /// The command that sets it.
    pub fn command(&self) -> String {
        match &self.condition {
            Some(condition) => format!("b {}:{}, {condition}", self.file, self.line),
            None => format!("b {}:{}", self.file, self.line),
        }
    }
}

impl Breakpoints {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn has(&self, file: &str, line: usize) -> bool {
        self.0.iter().any(|one| one.file == file && one.line == line as i64)
    }

    /// The breakpoints that pdb's `b` lists.
    pub fn listed(output: &str) -> Self {
        let mut found: Vec<Breakpoint> = Vec::new();
        for line in output.lines() {
            if let Some(at) = LISTED.as_ref().and_then(|listed| listed.captures(line)) {
                let (file, number) = (at[1].to_owned(), at[2].parse());
                found.extend(number.ok().map(|line| Breakpoint {
                    file,
                    line,
                    condition: None,
                }));
            } else if let (Some(condition), Some(last)) = (line.strip_prefix("\tstop only if "), found.last_mut()) {
                last.condition = Some(condition.to_owned());
            }
        }
        Self(found)
    }

    /// The text for people and the policy, sorted by file and line.
    pub fn text(&self) -> String {
        if self.is_empty() {
            return "No breakpoints are set.".to_owned();
        }
        let mut places: Vec<(&str, i64)> = self.0.iter().map(|one| (one.file.as_str(), one.line)).collect();
        places.sort_unstable();
        let lines = places.iter().map(|(file, line)| format!("line {line} in {file}"));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// After lines `first` to `last` of a file became `lines` lines: removes breakpoints inside, moves those below.
    /// Without a range, removes all of the file.
    pub fn shift(&mut self, file: &str, range: Option<(i64, i64)>, lines: i64) {
        let here = |one: &Breakpoint| one.file == file;
        let Some((first, last)) = range else {
            self.0.retain(|one| !here(one));
            return;
        };
        self.0.retain(|one| !here(one) || !(first..=last).contains(&one.line));
        for one in self.0.iter_mut().filter(|one| here(one) && one.line > last) {
            // The policy may forge pdb's list of breakpoints.
            one.line = one.line.saturating_add(lines - (last - first + 1));
        }
    }
}

/// Why a breakpoint on this line of a file is refused, if it is. pdb is not asked: it would set a breakpoint that
/// nothing ever reaches.
pub fn refusal(text: &str, number: i64) -> Option<String> {
    let lines: Vec<&str> = text.lines().collect();
    let is = |pattern: &LazyLock<Option<Regex>>, line: &str| pattern.as_ref().is_some_and(|p| p.is_match(line));
    // The policy chooses any number.
    let place = number.checked_sub(1).and_then(|at| usize::try_from(at).ok());
    let Some(line) = place.and_then(|at| lines.get(at)) else {
        return Some(format!(
            "Line {number} is out of range (file has {} lines).",
            lines.len()
        ));
    };
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Some(format!("Line {number} is a blank line or comment: '{line}'"));
    }
    if is(&DEFINITION, line) {
        let near = lines.iter().enumerate().skip(number as usize - 1).take(NEAR);
        let better = near.map(|(at, line)| (at + 1, line.trim())).find(|(_, line)| {
            !line.is_empty() && !line.starts_with('#') && !is(&DEFINITION, line) && !is(&CLASS, line)
        });
        let better = better.map_or(String::new(), |(at, _)| {
            format!(" Try line {at} instead (first executable line inside the function).")
        });
        return Some(format!(
            "Line {number} is a function definition line: '{line}'\nBreakpoints on function definition lines will NEVER \
             be hit because Python doesn't execute the 'def' statement itself, only the function body.{better}"
        ));
    }
    is(&CLASS, line).then(|| {
        format!(
            "Line {number} is a class definition line: '{line}'\nBreakpoints on class definition lines will NEVER be \
             hit. Set breakpoints inside class methods instead."
        )
    })
}

/// The text of a refusal for the policy.
pub fn refused(file: &str, number: i64, refusal: &str) -> String {
    let better = refusal
        .split_once("Try line ")
        .and_then(|(_, rest)| rest.split_once(" instead"));
    let advice = match better {
        Some((better, _)) => format!(
            "\n\n**Suggested fix:**\n  ❌ Wrong: b {file}:{number}  (function definition line)\n  ✅ Correct: b \
             {file}:{better}  (first executable line inside function)"
        ),
        None => format!(
            "\n\n**Please set the breakpoint on an executable line inside the function body, not on the function \
             definition line.**\n  ❌ Wrong: b {file}:{number}  (function definition line)\n  ✅ Correct: b \
             {file}:{}  (try the next line, or first executable line inside function)",
            number.saturating_add(1)
        ),
    };
    format!("❌ BREAKPOINT SETTING FAILED:\n{refusal}{advice}")
}

#[cfg(test)]
mod tests;
