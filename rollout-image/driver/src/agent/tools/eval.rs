//! `eval`: what the policy sees of a run of the task's tests.

use regex_lite::Regex;
use std::collections::HashSet;
use std::sync::LazyLock;

/// Where pytest's summary begins.
const SUMMARY: &str = "short test summary info";
/// Lines before the summary that are kept, the last ones.
const MOST_LINES: usize = 20;

/// What differs from run to run, or from place to place, and what it becomes.
static NOISE: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let patterns = [
        (r"(?m)^Ran \d+ tests? in \d+\.\d+s$", ""),
        (r"(?m)^====*$", "===="),
        (r"(?m)^----*$", "----"),
        (r"(?m)^platform .*\n", ""),
        (r"(?m)^rootdir: .*\n", ""),
        (r"(?m)^plugins: .*\n", ""),
        (r"(?m)^cachedir: .*\n", ""),
    ];
    let compiled = patterns
        .into_iter()
        .filter_map(|(pattern, with)| Some((Regex::new(pattern).ok()?, with)));
    compiled.collect()
});

/// Timing and places removed; before the summary each line once, and of these the last ones.
pub fn cleaned(output: &str) -> String {
    let mut text = output.trim_matches(['\r', '\n']).to_owned();
    for (pattern, with) in NOISE.iter() {
        text = pattern.replace_all(&text, *with).into_owned();
    }
    let (before, summary) = match text.find(SUMMARY) {
        Some(at) => (&text[..at], Some(&text[at..])),
        None => (text.as_str(), None),
    };
    let mut seen = HashSet::new();
    let lines: Vec<&str> = before.split('\n').filter(|line| seen.insert(*line)).collect();
    let kept = lines[lines.len().saturating_sub(MOST_LINES)..].join("\n");
    match summary {
        Some(summary) => format!("{kept}\n{summary}"),
        None => kept,
    }
}

/// What stands in place of the output of a command that ran for too long.
pub fn timed_out(seconds: u64) -> String {
    format!(
        "Timeout expired after {seconds} seconds. The command took too long to execute. Please check your code for \
         infinite loops, long-running operations, or other performance issues."
    )
}

#[cfg(test)]
mod tests;
