//! `eval`: the text for the policy after a run of the task's tests.

use regex_lite::Regex;
use std::collections::HashSet;
use std::sync::LazyLock;

/// The start of pytest's summary.
const SUMMARY: &str = "short test summary info";
/// The number of last lines before the summary that are kept.
const MOST_LINES: usize = 20;

/// Output that differs between runs or between places, and its replacement.
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

/// Removes timing and places. Keeps each line before the summary once, and only the last of them.
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

/// The text in place of the output of a command that timed out.
pub fn timed_out(seconds: u64) -> String {
    format!(
        "Timeout expired after {seconds} seconds. The command took too long to execute. Please check your code for \
         infinite loops, long-running operations, or other performance issues."
    )
}

#[cfg(test)]
mod tests;
