//! Comments of a readable width, and English that does not read as translated.

use regex::Regex;

use crate::tree::{files, hold};

const WIDEST: usize = 120;

/// Lines that use a phrase of the list below. New ones are refused.
const PHRASES: usize = 8;

#[test]
fn comments_are_wrapped_at_120_columns() {
    let mut wide = Vec::new();
    for file in files(&["rs"]) {
        for (number, line) in file.text.lines().enumerate() {
            let comment = line.trim_start();
            // A table's row cannot be wrapped.
            let is_table = comment.starts_with("//! |") || comment.starts_with("/// |");
            if comment.starts_with("//") && !is_table && line.chars().count() > WIDEST {
                wide.push(format!("{}:{}", file.path, number + 1));
            }
        }
    }
    hold("comment lines over 120 columns", 0, &wide);
}

#[test]
fn phrases_that_read_as_translated_only_become_fewer() {
    // `is None` is Python's.
    let phrase =
        Regex::new(r"\b(is none|(?i:nobody|whoever|whatever|goes on|is to be had|stands by itself))\b").unwrap();
    let mut found = Vec::new();
    for file in files(&["rs", "md", "yaml", "sh", "py", "toml", "jinja"]) {
        // This file names them.
        if file.path == "e2e/house/text.rs" {
            continue;
        }
        for (number, line) in file.text.lines().enumerate() {
            if phrase.is_match(line) {
                found.push(format!("{}:{}", file.path, number + 1));
            }
        }
    }
    hold("lines that read as translated", PHRASES, &found);
}
