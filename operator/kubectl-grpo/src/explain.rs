//! `kubectl grpo explain`: the meaning of a reason, its cause and the next step. Works offline: the book's page
//! "Troubleshooting" is part of the program, and its sections are the answers.
//!
//! A test compares the page's sections with every reason of conditions, events, faults, voids and dropped groups, so
//! that each has one.

use crate::error::Error;

const PAGE: &str = include_str!("../../../docs/src/troubleshooting.md");
/// The section with the table of reasons that need no action.
const HEALTHY: &str = "Reasons that need no action";

/// A reason, and the page's text about it in Markdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    pub reason: &'a str,
    /// The heading of the part of the page with this entry.
    pub part: &'a str,
    pub text: &'a str,
}

/// All entries, in the order of the page.
pub fn entries() -> Vec<Entry<'static>> {
    PAGE.split("\n## ").skip(1).flat_map(of_part).collect()
}

fn of_part(part: &'static str) -> Vec<Entry<'static>> {
    let (title, body) = part.split_once('\n').unwrap_or((part, ""));
    if title == HEALTHY {
        let rows = body.lines().filter_map(|row| row.strip_prefix("| `"));
        let cells = rows.filter_map(|row| row.split_once("` | "));
        return cells
            .map(|(reason, text)| Entry {
                reason,
                part: title,
                text: text.trim_end_matches(" |"),
            })
            .collect();
    }
    let sections = body.split("\n### ").skip(1);
    let split = sections.map(|section| section.split_once('\n').unwrap_or((section, "")));
    split
        .map(|(reason, text)| Entry {
            reason,
            part: title,
            text: text.trim(),
        })
        .collect()
}

/// The answer for a reason, or the list of all reasons.
pub fn explain(reason: Option<&str>) -> Result<String, Error> {
    let entries = entries();
    let Some(reason) = reason else {
        return Ok(list(&entries));
    };
    let same = |entry: &&Entry<'_>| entry.reason.eq_ignore_ascii_case(reason);
    match entries.iter().find(same) {
        Some(entry) => Ok(in_words(entry)),
        None => Err(Error::NoReason {
            reason: reason.to_owned(),
            similar: similar(&entries, reason),
        }),
    }
}

/// Reasons that contain the word, or whose name the word contains.
fn similar(entries: &[Entry<'_>], word: &str) -> Vec<String> {
    let word = word.to_ascii_lowercase();
    let is_near = |entry: &&Entry<'_>| {
        let reason = entry.reason.to_ascii_lowercase();
        reason.contains(&word) || word.contains(&reason)
    };
    let near = entries.iter().filter(is_near).take(6);
    near.map(|entry| entry.reason.to_owned()).collect()
}

fn list(entries: &[Entry<'_>]) -> String {
    let mut out = String::new();
    let mut part = "";
    for entry in entries {
        if entry.part != part {
            part = entry.part;
            let blank = if out.is_empty() { "" } else { "\n" };
            out += &format!("{blank}{part}\n");
        }
        out += &format!("  {}\n", entry.reason);
    }
    out
}

/// An entry for a terminal: without Markdown marks, and with indented commands.
fn in_words(entry: &Entry<'_>) -> String {
    let mut out = format!("{} ({})\n\n", entry.reason, entry.part);
    let mut is_command = false;
    for line in entry.text.lines() {
        match line.trim_start().strip_prefix("```") {
            Some(_) => is_command = !is_command,
            None if is_command => out += &format!("    {line}\n"),
            None => out += &format!("{}\n", plain(line)),
        }
    }
    out
}

/// A line without bold marks and link targets: `[Quota](quota.md)` becomes `Quota`.
fn plain(line: &str) -> String {
    let line = line.replace("**", "");
    let mut out = String::new();
    let mut rest = line.as_str();
    while let Some((before, after)) = rest.split_once("](") {
        let (words, target) = (before.rfind('['), after.find(')'));
        let (Some(words), Some(target)) = (words, target) else {
            break;
        };
        out += &before[..words];
        out += &before[words + 1..];
        rest = &after[target + 1..];
    }
    out + rest
}

#[cfg(test)]
mod tests;
