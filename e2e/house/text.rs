//! Comments of a readable width, and English that does not read as translated.

use regex::Regex;

use crate::tree::{files, hold};

const WIDEST: usize = 120;

/// Lines that use a phrase of the list below. New ones are refused.
const PHRASES: usize = 8;

const LONGEST: usize = 40;
/// Longer markdown sentences. New ones are refused: split them.
const LONG: usize = 0;

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

/// Sentences of prose: without code blocks, and with each table cell separate.
fn sentences(page: &str) -> Vec<String> {
    let fences = Regex::new(r"(?s)```.*?```").unwrap();
    let page = fences.replace_all(page, "");
    let item = Regex::new(r"^\s*([*-]|\d+\.)\s").unwrap();
    let mut parts: Vec<String> = vec![String::new()];
    for line in page.lines() {
        if line.trim_start().starts_with('|') {
            parts.extend(line.split('|').map(str::to_owned));
        } else if line.trim().is_empty() || line.starts_with("    ") || line.starts_with('#') {
            parts.push(String::new());
        } else {
            if item.is_match(line) {
                parts.push(String::new());
            }
            let last = parts.len() - 1;
            parts[last].push_str(line);
            parts[last].push(' ');
        }
    }
    let mut sentences = Vec::new();
    for part in &parts {
        let mut sentence: Vec<&str> = Vec::new();
        for word in part.split_whitespace() {
            sentence.push(word);
            if word.ends_with(['.', '!', '?']) {
                sentences.push(std::mem::take(&mut sentence).join(" "));
            }
        }
        sentences.push(sentence.join(" "));
    }
    sentences
}

#[test]
fn a_sentence_ends_at_its_full_stop_its_cell_or_its_item() {
    let page = "One two.\nThree\nfour.\n* five\n* six\n\n| seven | eight. nine |\n\n```\nten\n```\n";
    let found: Vec<String> = sentences(page).into_iter().filter(|one| !one.is_empty()).collect();
    assert_eq!(
        found,
        ["One two.", "Three four.", "* five", "* six", "seven", "eight.", "nine"]
    );
}

#[test]
fn sentences_of_more_than_40_words_only_become_fewer() {
    let mut found = Vec::new();
    for file in files(&["md"]) {
        // Generated from the types' own comments.
        if file.path == "docs/src/reference.md" {
            continue;
        }
        for sentence in sentences(&file.text) {
            let words = sentence.split(' ').count();
            if words > LONGEST {
                let begins: String = sentence.chars().take(60).collect();
                found.push(format!("{}: {words} words: {begins}", file.path));
            }
        }
    }
    hold("sentences of more than 40 words", LONG, &found);
}
