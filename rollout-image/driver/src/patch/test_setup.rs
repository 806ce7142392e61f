//! Leaves out of a policy's patch what could decide test results: files by which a change turns failures into passes
//! ([`is_test_setup`]). The grader's tree has the task's own files. The policy's version of such a file counts only if
//! the task's fix changes it too.
//!
//! The same holds for files of the task's test patch. Its new files are never the policy's, even if the fix has them:
//! the evaluation adds them itself, and its patch does not apply to a tree that has one of them already. Files that the
//! task hides from the policy ([`Hidden`]) are never the policy's either.
//!
//! A policy can replace its sandbox's git and send any text. The name in the first line of a file's section decides,
//! but the program that applies the patch obeys other lines too. So a section that git would not write is left out.

use super::hidden::Hidden;
use bytes::Bytes;
use grpo_contracts::test_setup::is_test_setup;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

const BEGINS: &[u8] = b"diff --git ";
/// Beginnings of the other lines that git writes outside of hunks. It obeys no name in them.
const NAMELESS: [&str; 9] = [
    "index ",
    "old mode ",
    "new mode ",
    "new file mode ",
    "deleted file mode ",
    "GIT binary patch",
    "literal ",
    "delta ",
    "\\ ",
];
/// Beginnings of lines by which a test patch has a new file.
const ADDS: [&str; 4] = ["new file mode ", "--- /dev/null", "rename to ", "copy to "];

/// Paths that a note names, and characters of each.
const LISTED: usize = 20;
const LONGEST_PATH: usize = 200;

/// The applied part of a patch, and the paths left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    pub patch: Bytes,
    /// Paths left out, with their causes.
    pub left_out: Vec<(String, Cause)>,
}

/// Why a file of a patch is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    Hidden,
    TestSetup,
    TestPatch,
    NotOfGit,
}

impl Cause {
    const ALL: [Self; 4] = [Self::Hidden, Self::TestSetup, Self::TestPatch, Self::NotOfGit];

    fn words(self) -> &'static str {
        match self {
            Self::Hidden => "these files are hidden from the policy",
            Self::TestSetup => "these files decide how tests run",
            Self::TestPatch => "these files are of the task's test patch",
            Self::NotOfGit => "the changes of these files are not as git writes them",
        }
    }
}

impl Applied {
    /// Notes for the record of the grading, one for each cause.
    pub fn notes(&self) -> Vec<String> {
        let note = |cause: Cause| {
            let of_cause = self.left_out.iter().filter(|(_, of)| *of == cause);
            let paths: Vec<&str> = of_cause.map(|(path, _)| path.as_str()).collect();
            let words = cause.words();
            (!paths.is_empty()).then(|| format!("{words}, so the task's own are used: {}", listed(&paths)))
        };
        Cause::ALL.into_iter().filter_map(note).collect()
    }
}

/// Paths for a note. The policy chooses them, and notes are kept in memory for each verdict of a run.
fn listed(paths: &[&str]) -> String {
    let shown = |path: &&str| match path.char_indices().nth(LONGEST_PATH) {
        Some((end, _)) => format!("{}…", &path[..end]),
        None => (*path).to_owned(),
    };
    let mut words: Vec<String> = paths.iter().take(LISTED).map(shown).collect();
    if let more @ 1.. = paths.len().saturating_sub(LISTED) {
        words.push(format!("and {more} more"));
    }
    words.join(", ")
}

/// `patch`: from [`super::take`]; text before its first section is not git's, and is dropped. `row`: the task's, with
/// its fix, if it has one, and its evaluation script. `hidden`: of the same task. A fix makes no exception there: the
/// policy never saw these files.
pub fn without(patch: &Bytes, row: &Value, hidden: &Hidden) -> Applied {
    let fixed = row["patch"].as_str().map(changed).unwrap_or_default();
    let tests = row["eval_script"].as_str().map(tested).unwrap_or_default();
    let decides = |path: &str| match tests.get(path) {
        Some(Change::Adds) => Some(Cause::TestPatch),
        Some(Change::Changes) => (!fixed.contains(path)).then_some(Cause::TestPatch),
        None => (is_test_setup(path) && !fixed.contains(path)).then_some(Cause::TestSetup),
    };
    let mut starts: Vec<usize> = starts(patch);
    starts.push(patch.len());
    let mut kept = Vec::new();
    let mut left_out = Vec::new();
    for section in starts.windows(2).map(|ends| &patch[ends[0]..ends[1]]) {
        let header = header(section);
        let path = path(header);
        let cause = match hidden.covers(&path, header.starts_with(b"\"")) {
            true => Some(Cause::Hidden),
            false => decides(&path),
        };
        let cause = cause.or_else(|| (!is_of_git(section, &path)).then_some(Cause::NotOfGit));
        match cause {
            Some(cause) => left_out.push((path, cause)),
            None => kept.extend_from_slice(section),
        }
    }
    Applied {
        patch: kept.into(),
        left_out,
    }
}

/// Offsets of the sections of files. No other line of a patch begins this way: lines of hunks begin with a mark, and
/// lines of binary files have no space.
fn starts(patch: &[u8]) -> Vec<usize> {
    let lines = patch.split_inclusive(|byte| *byte == b'\n');
    let mut at = 0;
    let mut starts = Vec::new();
    for line in lines {
        if line.starts_with(BEGINS) {
            starts.push(at);
        }
        at += line.len();
    }
    starts
}

/// `a/x b/x`: both names are the same, because a rename is a deletion and a new file. Names with unusual bytes are in
/// quotes.
fn header(section: &[u8]) -> &[u8] {
    let line = section.split(|byte| *byte == b'\n').next().unwrap_or_default();
    line.strip_prefix(BEGINS).unwrap_or_default()
}

fn path(header: &[u8]) -> String {
    let first = &header[..header.len() / 2];
    let first = String::from_utf8_lossy(first).into_owned();
    let inner = first.strip_prefix('"').and_then(|quoted| quoted.strip_suffix('"'));
    let plain = inner.unwrap_or(&first);
    plain.strip_prefix("a/").unwrap_or(plain).to_owned()
}

/// Whether git would write a section so: then it changes the file of its first line, `path`, and no other.
fn is_of_git(section: &[u8], path: &str) -> bool {
    let text = String::from_utf8_lossy(section);
    let header = String::from_utf8_lossy(header(section));
    let quote = if header.starts_with('"') { "\"" } else { "" };
    let [old, new] = ["a", "b"].map(|side| format!("{quote}{side}/{path}{quote}"));
    let is_plain = |part: &str| !matches!(part, "" | "." | ".git");
    if header != format!("{old} {new}") || header.contains(char::is_control) || !path.split('/').all(is_plain) {
        return false;
    }
    if !quote.is_empty() && path.split('\\').skip(1).any(hides_a_letter) {
        return false;
    }
    let is_file = |name: &str, file: &str| {
        let name = name.strip_suffix('\t').unwrap_or(name);
        name == "/dev/null" || name == file
    };
    // Lines of the hunk that are still to come, of the old and of the new file.
    let mut rest = (0_usize, 0_usize);
    for line in text.split('\n').skip(1) {
        if rest != (0, 0) {
            let (of_old, of_new) = match line.as_bytes().first() {
                Some(b' ') => (1, 1),
                Some(b'-') => (1, 0),
                Some(b'+') => (0, 1),
                Some(b'\\') => (0, 0),
                _ => return false,
            };
            match (rest.0.checked_sub(of_old), rest.1.checked_sub(of_new)) {
                (Some(old), Some(new)) => rest = (old, new),
                _ => return false,
            }
        } else if line.starts_with("@@ ") {
            match counts(line) {
                Some(counts) => rest = counts,
                None => return false,
            }
        } else if let Some(name) = line.strip_prefix("--- ") {
            if !is_file(name, &old) {
                return false;
            }
        } else if let Some(name) = line.strip_prefix("+++ ") {
            if !is_file(name, &new) {
                return false;
            }
        } else if line.contains(' ') && !NAMELESS.iter().any(|begin| line.starts_with(begin)) {
            return false;
        }
    }
    rest == (0, 0)
}

/// What follows a backslash in a quoted name: git writes letters, digits and signs as they are.
fn hides_a_letter(escape: &str) -> bool {
    let byte = escape.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
    byte.is_some_and(|byte| (b' '..=b'~').contains(&byte))
}

/// Lines of a hunk, of the old and of the new file: `@@ -1,3 +1,4 @@`.
fn counts(line: &str) -> Option<(usize, usize)> {
    let (ranges, _) = line.strip_prefix("@@ -")?.split_once(" @@")?;
    let (old, new) = ranges.split_once(" +")?;
    let count = |range: &str| range.split_once(',').map_or(Some(1), |(_, count)| count.parse().ok());
    Some((count(old)?, count(new)?))
}

/// Paths that a publisher's patch changes.
fn changed(fix: &str) -> BTreeSet<String> {
    let named = |line: &str| {
        let path = line.strip_prefix("+++ b/").or_else(|| line.strip_prefix("--- a/"))?;
        Some(path.split('\t').next().unwrap_or(path).trim_end().to_owned())
    };
    fix.lines().filter_map(named).collect()
}

/// What a test patch does to a file.
#[derive(Clone, Copy)]
enum Change {
    Adds,
    Changes,
}

/// Files of the test patch that an evaluation script contains.
fn tested(script: &str) -> BTreeMap<String, Change> {
    let sections = script.split("\ndiff --git ").skip(1);
    let files = sections.flat_map(|section| {
        let header = section.lines().next().unwrap_or_default();
        let mut about = section.lines().skip(1).take_while(|line| !line.starts_with("@@"));
        let change = match about.any(|line| ADDS.iter().any(|begin| line.starts_with(begin))) {
            true => Change::Adds,
            false => Change::Changes,
        };
        // A rename has two names.
        let names = header.strip_prefix("a/").and_then(|names| names.split_once(" b/"));
        let names = names.map(|(old, new)| [old.to_owned(), new.to_owned()]);
        let names = names.into_iter().flatten().chain([path(header.as_bytes())]);
        names.map(move |name| (name, change))
    });
    files.collect()
}

#[cfg(test)]
mod tests;
