//! `rewrite`: replaces lines of a file, and shows the policy the diff.

/// The replaced lines, from 1, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    Whole,
    Lines { start: i64, end: i64 },
}

impl Range {
    /// From the call's arguments: a start alone is one line, no start is the whole file.
    pub fn of(start: Option<i64>, end: Option<i64>) -> Result<Self, &'static str> {
        let Some(start) = start else {
            return Ok(Self::Whole);
        };
        let end = end.filter(|end| *end != 0).unwrap_or(start);
        if start > end {
            return Err("Invalid line number range, start should be less than or equal to end.");
        }
        if start <= 0 || end <= 0 {
            return Err("Invalid line number, line numbers are 1-based.");
        }
        Ok(Self::Lines { start, end })
    }

    /// The text with these lines replaced. A start after the end of the text appends.
    pub fn replaced(self, original: &str, code: &str) -> String {
        let Self::Lines { start, end } = self else {
            return code.to_owned();
        };
        let mut lines: Vec<&str> = original.split('\n').collect();
        let count = lines.len();
        let from = usize::try_from(start - 1).unwrap_or(usize::MAX).min(count);
        let to = usize::try_from(end).unwrap_or(usize::MAX).min(count);
        lines.splice(from..to.max(from), code.split('\n'));
        lines.join("\n")
    }
}

/// How many lines the code has.
pub fn lines_of(code: &str) -> i64 {
    code.split('\n').count() as i64
}

pub fn done(path: &str, diff: &str) -> String {
    format!("The file `{path}` has been updated successfully.\n\nDiff:\n\n{diff}")
}

pub fn failed(why: &str) -> String {
    format!("Rewrite failed. Error message:\n{why}\n")
}

#[cfg(test)]
mod tests;
