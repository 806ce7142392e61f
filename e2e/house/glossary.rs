//! The book's glossary: one term for one thing. The words of its column "not" occur neither in the book, nor in
//! README.md, nor in the descriptions and messages of the API.
//!
//! A word with a note in brackets, such as "claim (on a volume)", is for readers: its other meaning has a term, so no
//! program can find its wrong uses.

use std::collections::BTreeMap;

use regex::{Captures, Regex};

use crate::tree::{files, hold, repository};

const GLOSSARY: &str = "docs/src/glossary.md";

/// Generated from the API's types, and from other systems' scripts with their own words.
const GENERATED: [&str; 2] = ["docs/src/reference.md", "docs/src/values.md"];

/// Uses of a word of the column "not". New ones are refused.
const USES: usize = 0;

/// A row of the glossary.
struct Entry {
    term: String,
    /// Words that must not replace it.
    not: Vec<String>,
}

fn glossary() -> Vec<Entry> {
    entries(&std::fs::read_to_string(repository().join(GLOSSARY)).unwrap())
}

/// The rows of the page's table, without its head.
fn entries(page: &str) -> Vec<Entry> {
    let mut entries = Vec::new();
    for line in page.lines() {
        let Some(row) = line.strip_prefix("| ").and_then(|row| row.trim_end().strip_suffix('|')) else {
            continue;
        };
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let &[term, _, not] = cells.as_slice() else {
            panic!("{GLOSSARY}: a row has three cells: {line}");
        };
        if term != "term" {
            let not = not.split(',').map(str::trim).filter(|word| !word.is_empty());
            entries.push(Entry {
                term: term.to_owned(),
                not: not.map(str::to_owned).collect(),
            });
        }
    }
    entries
}

/// Whether a word has a note in brackets.
fn is_qualified(word: &str) -> bool {
    word.contains('(')
}

/// A page without code and without the targets of its links; its lines keep their numbers.
fn prose(page: &str) -> String {
    let mut text = String::new();
    let mut is_fenced = false;
    for line in page.lines() {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        if !is_fence && !is_fenced && !line.starts_with("    ") {
            text.push_str(line);
        }
        text.push('\n');
    }
    let targets = Regex::new(r"\]\([^)\s]*\)").unwrap();
    targets.replace_all(&without_code(&text), "]").into_owned()
}

/// A file of the API without comments that are not published; its lines keep their numbers.
fn published(rust: &str) -> String {
    let mut text = String::new();
    for line in rust.lines() {
        let code = line.trim_start();
        match code.strip_prefix("///") {
            Some(comment) => text.push_str(comment),
            None if code.starts_with("//") => {}
            None => text.push_str(line),
        }
        text.push('\n');
    }
    without_code(&text)
}

/// Inline code becomes a blank. It may end on a later line, not in a later paragraph.
fn without_code(text: &str) -> String {
    let code = Regex::new(r"`(?:[^`\n]|\n[^`\n])*`").unwrap();
    let blank = |found: &Captures<'_>| " ".to_owned() + &"\n".repeat(found[0].matches('\n').count());
    code.replace_all(text, blank).into_owned()
}

/// Finds these words, and their plurals, as whole words in any case and over the ends of lines.
fn any_of<'a>(words: impl Iterator<Item = &'a str>) -> Regex {
    let mut patterns: Vec<String> = words
        .map(|word| {
            let parts: Vec<String> = word.split_whitespace().map(regex::escape).collect();
            parts.join(r"\s+")
        })
        .collect();
    // The longest first, because the regex takes the first of two alternatives with the same beginning.
    patterns.sort_by_key(|pattern| std::cmp::Reverse(pattern.len()));
    Regex::new(&format!(r"(?i)\b(?:{})s?\b", patterns.join("|"))).unwrap()
}

/// Lower case, one blank between words.
fn normal(word: &str) -> String {
    word.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Line and text of each match.
fn uses<'a>(words: &Regex, text: &'a str) -> Vec<(usize, &'a str)> {
    let line_of = |at: usize| text[..at].matches('\n').count() + 1;
    let found = words.find_iter(text);
    found.map(|found| (line_of(found.start()), found.as_str())).collect()
}

#[test]
fn every_term_is_defined_once_and_in_order() {
    let entries = glossary();
    assert!(entries.len() > 100, "only {} terms were found", entries.len());
    for pair in entries.windows(2) {
        let [first, second] = [&pair[0].term, &pair[1].term];
        assert!(
            first.to_lowercase() < second.to_lowercase(),
            "{GLOSSARY}: \"{second}\" does not come after \"{first}\""
        );
    }
}

#[test]
fn no_term_is_refused_by_another_unless_for_another_meaning() {
    let entries = glossary();
    for entry in &entries {
        for word in &entry.not {
            let is_term = entries.iter().any(|other| normal(&other.term) == normal(word));
            assert!(
                !is_term,
                "{GLOSSARY}: \"{word}\" is a term, and \"{}\" refuses it: add its meaning in brackets",
                entry.term
            );
        }
    }
}

#[test]
fn words_that_the_glossary_refuses_only_become_fewer() {
    let entries = glossary();
    let mut terms = BTreeMap::new();
    for entry in &entries {
        for word in entry.not.iter().filter(|word| !is_qualified(word)) {
            terms.insert(normal(word), entry.term.as_str());
        }
    }
    let words = any_of(terms.keys().map(String::as_str));
    let is_page = |path: &str| path.starts_with("docs/src/") || path == "README.md";
    let is_excluded = |path: &str| path == GLOSSARY || GENERATED.contains(&path);
    let pages = files(&["md"])
        .into_iter()
        .filter(|file| is_page(&file.path) && !is_excluded(&file.path))
        .map(|file| (file.path, prose(&file.text)));
    let api = files(&["rs"])
        .into_iter()
        .filter(|file| file.path.starts_with("crds/src/"))
        .map(|file| (file.path, published(&file.text)));
    let mut found = Vec::new();
    for (path, text) in pages.chain(api) {
        for (line, word) in uses(&words, &text) {
            let word = normal(word);
            let term = terms.get(&word).or_else(|| terms.get(word.trim_end_matches('s')));
            let term = term.copied().unwrap_or("another word");
            found.push(format!("{path}:{line}: \"{word}\": the term is \"{term}\""));
        }
    }
    hold("words that the glossary refuses", USES, &found);
}

#[test]
fn words_are_found_in_prose_and_not_in_code() {
    let page = "A model\nserver.\n\n```yaml\nmodel server\n```\n\n    model server\n\n\
                `model\nserver` [x](model/server.md), Model servers, models serve.\n";
    let words = any_of(["server", "model server"].into_iter());
    assert_eq!(
        uses(&words, &prose(page)),
        [(1, "model\nserver"), (11, "Model servers")]
    );
    let api = "//! model server\n/// A model server of `model server`.\nfn serve() { \"model server\" } // no\n";
    assert_eq!(
        uses(&words, &published(api)),
        [(2, "model server"), (3, "model server")]
    );
}

#[test]
fn a_row_has_a_term_and_the_words_that_it_refuses() {
    let page = "# Glossary\n\n| term | meaning | not |\n|---|---|---|\n\
                | lease | a right | booking, claim (on a pool) |\n| run | one | |\n";
    let entries = entries(page);
    let found: Vec<(&str, usize)> = entries
        .iter()
        .map(|entry| (entry.term.as_str(), entry.not.len()))
        .collect();
    assert_eq!(found, [("lease", 2), ("run", 0)]);
    assert!(!is_qualified(&entries[0].not[0]) && is_qualified(&entries[0].not[1]));
}
