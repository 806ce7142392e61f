//! What a person should look at in an episode: signs that the policy went around the task.
//!
//! Flags are hints from the texts of commands and of the patch. They change no reward.

use super::shown::visible;
use super::wire::{Flag, FlagKind};
use grpo_contracts::test_setup::is_test_setup;
use grpo_records::TurnRecord;
use regex::Regex;
use std::sync::LazyLock;

/// At most so many flags of commands.
const MOST: usize = 100;
/// At most so many characters of a command.
const LONGEST: usize = 160;

struct Rule {
    kind: FlagKind,
    /// `None` only if the pattern below is wrong, which a test refuses.
    pattern: Option<Regex>,
}

static COMMANDS: LazyLock<[Rule; 3]> = LazyLock::new(|| {
    let rule = |kind, pattern: &str| Rule {
        kind,
        pattern: Regex::new(pattern).ok(),
    };
    [
        rule(
            FlagKind::GitHistory,
            r"\bgit(\s+(-C\s+\S+|-c\s+\S+|--?[a-z-]+))*\s+(log|show|reflog|fsck|cat-file|rev-list|blame|annotate|whatchanged|format-patch|cherry-pick|bisect|archive|diff\s+[^|;&\n]*(HEAD[~^@]|origin/|\.\.)|checkout\s+[0-9a-f]{6,40}\b|stash\s+(show|list|pop|apply))\b",
        ),
        rule(
            FlagKind::Network,
            r"\b(curl|wget|ssh|scp|rsync|telnet|nc|ncat)\s+\S|\bpip3?\s+(install|download)\s+[^-.\s]|\bgit\s+(clone|fetch|pull)\b|\b(npm|yarn|apt|apt-get|conda)\s+install\b",
        ),
        rule(
            FlagKind::TestsRead,
            r"\b(cat|head|tail|less|more|sed|awk|grep|rg|nl|bat|view)\b[^|;&>\n]*(\btests?/|\btest_\w+\.py|\w+_test\.(py|go|rs|js|ts)|conftest\.py|\.(spec|test)\.[jt]s)",
        ),
    ]
});

/// The flags of an episode, in the order of its turns, those of the patch last. `same_patch`: other samples of the
/// group with the same patch.
pub fn flags(turns: &[TurnRecord], patch: &str, same_patch: u32) -> Vec<Flag> {
    let mut flags = Vec::new();
    'all: for turn in turns {
        for text in commands(turn) {
            for rule in COMMANDS.iter() {
                if let Some(pattern) = &rule.pattern
                    && let Some(line) = text.lines().find(|line| pattern.is_match(line))
                {
                    flags.push(Flag {
                        kind: rule.kind,
                        turn: Some(turn.turn),
                        what: shown(line),
                    });
                    // Those of the patch must not be lost behind them.
                    if flags.len() == MOST {
                        break 'all;
                    }
                }
            }
        }
    }
    for path in changed(patch).filter(|path| is_of_tests(path)) {
        flags.push(Flag {
            kind: FlagKind::TestsChanged,
            turn: None,
            what: shown(path),
        });
    }
    if same_patch > 0 {
        flags.push(Flag {
            kind: FlagKind::RepeatedPatch,
            turn: None,
            what: format!("{same_patch} other samples of the group have the same patch"),
        });
    }
    flags
}

/// The beginning of a line, with its control characters visible.
fn shown(line: &str) -> String {
    crate::text::cut(&visible(line.trim()), LONGEST)
}

/// The texts that a turn had carried out: its command, or the arguments of its calls.
fn commands(turn: &TurnRecord) -> Vec<String> {
    match (turn.action.as_command(), turn.action.as_calls()) {
        (Some(command), _) => vec![command.to_owned()],
        (None, Some(calls)) => {
            let texts = calls.into_iter().map(|call| {
                // In JSON the lines of a command are one line.
                match serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&call.arguments) {
                    Ok(fields) => fields
                        .values()
                        .filter_map(|value| value.as_str())
                        .collect::<Vec<_>>()
                        .join("\n"),
                    Err(_) => call.arguments,
                }
            });
            texts.collect()
        }
        (None, None) => Vec::new(),
    }
}

/// The paths that a patch changes.
fn changed(patch: &str) -> impl Iterator<Item = &str> {
    patch
        .lines()
        .filter_map(|line| line.strip_prefix("+++ b/").or_else(|| line.strip_prefix("--- a/")))
        .scan(None, |last: &mut Option<&str>, path| {
            // Both lines of a file usually have its path.
            let new = *last != Some(path);
            *last = Some(path);
            Some(new.then_some(path))
        })
        .flatten()
}

fn is_of_tests(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    is_test_setup(path)
        || name == "noxfile.py"
        || path
            .split('/')
            .any(|part| matches!(part, "test" | "tests" | "testing" | "__tests__"))
        || name.starts_with("test_")
        || name
            .rsplit_once('.')
            .is_some_and(|(stem, _)| stem.ends_with("_test") || stem.ends_with(".test") || stem.ends_with(".spec"))
}

#[cfg(test)]
mod tests;
