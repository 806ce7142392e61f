//! `view`: lines of a file, numbered, with marks at breakpoints.

use super::breakpoints::Breakpoints;

/// The most lines that one call shows.
const MOST_LINES: usize = 110;

/// The requested lines, from 1, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub start: Option<i64>,
    pub end: Option<i64>,
    pub numbered: bool,
}

/// The lines of a text, without their ends. A text that ends with a newline has no empty line after it.
///
/// Lines end where Python's own tokenizer ends them, so that `view`, `rewrite` and pdb count alike; the original also
/// ended lines at form feeds and similar characters.
pub fn lines(text: &str) -> Vec<&str> {
    text.lines().collect()
}

/// The answer. `path`: as the policy wrote it; `file`: in full, as breakpoints have it.
pub fn shown(path: &str, file: &str, text: &str, wanted: Wanted, breakpoints: &Breakpoints) -> String {
    let all = lines(text);
    if all.is_empty() {
        return format!("The file `{path}` is empty.");
    }
    let total = all.len() as i64;
    let word = |number: Option<i64>| number.map_or("None".to_owned(), |number| number.to_string());
    let from = wanted.start.unwrap_or(1);
    let to = wanted.end.map_or(total, |end| end.min(total));
    if from < 1 || from > total {
        return format!(
            "Invalid start index: `{}`. It should be between 1 and {total}.",
            word(wanted.start)
        );
    }
    if to < 0 {
        return format!(
            "Invalid end index: `{}`. It should be between 1 and {total}.",
            word(wanted.end)
        );
    }
    if from > to {
        return format!(
            "Invalid range: start index `{}` is greater than end index `{}`.",
            word(wanted.start),
            word(wanted.end)
        );
    }
    let selected = &all[from as usize - 1..to as usize];
    let kept = &selected[..selected.len().min(MOST_LINES)];
    let from = from as usize;
    let (content, legend) = match wanted.numbered {
        true => (
            numbered(kept, from, |line| breakpoints.has(file, line)),
            if breakpoints.is_empty() {
                ""
            } else {
                " B indicates breakpoint before a certain line of code."
            },
        ),
        false => (kept.join("\n"), ""),
    };
    let note = match kept.len() < selected.len() {
        true => format!("\n\n... (truncated, showing first {MOST_LINES} lines of the selected range)"),
        false => String::new(),
    };
    format!(
        "Viewing `{path}`, lines {from}-{} of {total} total lines.{legend}\n\n```\n{content}\n```\n{note}\n",
        from + kept.len() - 1
    )
}

fn numbered(lines: &[&str], from: usize, is_marked: impl Fn(usize) -> bool) -> String {
    let digits = (from + lines.len() + 1).to_string().len();
    // A column has four, eight or twelve digits.
    let width = digits.div_ceil(4) * 4;
    let shown = lines.iter().enumerate().map(|(at, line)| {
        let number = from + at;
        let mark = if is_marked(number) { "B" } else { "" };
        format!("{mark:<2}{number:>width$} {line}")
    });
    shown.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests;
