//! The possible flips of a shown function: the list of `demo/tasks/flips.py`, by text alone.
//!
//! That module also requires that the flipped code is valid Python, and other code than before. Here two rules on texts
//! replace this: flips in comments and in the heads of `for` loops are left out. A few impossible flips remain, such as
//! of `while` before an assignment expression; they fail like wrong ones.

/// Pairs of texts; each counts in both directions.
const PAIRS: [(&str, &str); 20] = [
    (" < ", " <= "),
    (" > ", " >= "),
    (" == ", " != "),
    (" + ", " - "),
    (" += ", " -= "),
    (" and ", " or "),
    (" is None", " is not None"),
    (" is ", " is not "),
    (" in ", " not in "),
    (" True", " False"),
    ("=True", "=False"),
    (" 0", " 1"),
    ("0]", "1]"),
    ("0)", "1)"),
    (" min(", " max("),
    (" any(", " all("),
    (" break", " continue"),
    (" if ", " if not "),
    (" elif ", " elif not "),
    (" while ", " while not "),
];

/// An edit of an excerpt: `old` stands on line `line` (from 0) only, and becomes `new`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flip {
    pub old: &'static str,
    pub new: &'static str,
    pub line: usize,
}

impl Flip {
    /// The line with the flip.
    pub fn applied(&self, line: &str) -> String {
        line.replacen(self.old, self.new, 1)
    }
}

/// Every flip of an excerpt.
pub fn possible(lines: &[&str]) -> Vec<Flip> {
    let directed = PAIRS.into_iter().flat_map(|(one, other)| [(one, other), (other, one)]);
    directed.filter_map(|(old, new)| flip(lines, old, new)).collect()
}

fn flip(lines: &[&str], old: &'static str, new: &'static str) -> Option<Flip> {
    let mut with_it = lines.iter().enumerate().filter(|(_, line)| line.contains(old));
    let (at, line) = with_it.next()?;
    let is_only = with_it.next().is_none() && line.matches(old).count() == 1;
    let (before, after) = line.split_once(old)?;
    (is_only && is_meant(old, before, after)).then_some(Flip { old, new, line: at })
}

/// False where the match only looks like the flip's: `1` in `1.5`, ` is ` in ` is not `.
fn is_meant(old: &str, before: &str, after: &str) -> bool {
    let is_word = |char: char| char.is_alphanumeric() || char == '_';
    let continues = |char: char| is_word(char) || char == '.';
    let clean = match old {
        " 0" | " 1" | " True" | " False" | "=True" | "=False" | " break" | " continue" => !after.starts_with(continues),
        "0]" | "1]" | "0)" | "1)" => !before.ends_with(continues),
        " is None" | " is not None" => !after.starts_with(is_word),
        " is " => !after.starts_with("not ") && !after.starts_with("None"),
        " is not " => !after.starts_with("None"),
        " if " | " elif " | " while " => !after.starts_with("not "),
        " in " => !before.ends_with(" not") && !before.contains("for "),
        _ => true,
    };
    clean && !before.contains('#')
}

#[cfg(test)]
mod tests;
