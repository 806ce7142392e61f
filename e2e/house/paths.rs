//! Files and make targets that the pages name must exist: finds moves that forgot the pages.

use std::collections::BTreeSet;

use regex::{Captures, Regex};

use crate::tree::{SourceFile, files, repository};

/// The book, the README, and CONTRIBUTING.md without its list of removed folders.
fn pages() -> Vec<SourceFile> {
    let mut pages: Vec<_> = files(&["md"])
        .into_iter()
        .filter(|page| page.path.starts_with("docs/") || ["README.md", "CONTRIBUTING.md"].contains(&page.path.as_str()))
        .collect();
    for page in &mut pages {
        let sections = page.text.split("\n## ");
        let kept: Vec<_> = sections
            .filter(|section| !section.starts_with("Where the old folders are"))
            .collect();
        page.text = kept.join("\n## ");
    }
    pages
}

/// The matches of a pattern in the pages, with their places.
fn named<'a>(pages: &'a [SourceFile], pattern: &str) -> BTreeSet<(&'a str, &'a str)> {
    let pattern = Regex::new(pattern).unwrap();
    let of_page = |page: &'a SourceFile| {
        let found = pattern.captures_iter(&page.text).map(|found| found.extract::<1>().1[0]);
        found.map(|name| (name, page.path.as_str())).collect::<Vec<_>>()
    };
    pages.iter().flat_map(of_page).collect()
}

#[test]
fn every_file_that_a_page_names_exists() {
    let folders = "crds|libs|operator|sandbox-image|rollout-image|inference-image|trainer-image|demo|bench|e2e|charts";
    let pages = pages();
    let named = named(&pages, &format!(r"`((?:{folders})/[A-Za-z0-9_./-]+\.[a-z]+)`"));
    assert!(named.len() > 20, "only {} paths were found", named.len());
    // NAME is a placeholder for the reader.
    let missing: Vec<String> = named
        .iter()
        .filter(|(file, _)| !file.contains("NAME") && !repository().join(file).exists())
        .map(|(file, page)| format!("{page} names {file}"))
        .collect();
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn every_target_of_make_that_a_page_names_exists() {
    let makefile = std::fs::read_to_string(repository().join("Makefile")).unwrap();
    let targets: BTreeSet<&str> = makefile
        .lines()
        .filter_map(|line| Some(line.split_once(':')?.0))
        .collect();
    let mut pages = pages();
    // In code: a word in backticks, or a line of an indented block; fenced blocks are indented for this.
    let fence = Regex::new(r"(?s)```sh\n(.*?)```").unwrap();
    let indented = |block: &Captures<'_>| format!("    {}", block[1].replace('\n', "\n    "));
    for page in &mut pages {
        page.text = fence.replace_all(&page.text, indented).into_owned();
    }
    let named = named(&pages, r"(?m)(?:`|^    )(?:[A-Z_]+=\S+ )*make ([a-z][a-z0-9-]*)");
    assert!(named.len() > 20, "only {} targets were found", named.len());
    let missing: Vec<String> = named
        .iter()
        .filter(|(target, _)| !targets.contains(target))
        .map(|(target, page)| format!("{page} names make {target}"))
        .collect();
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}
