//! Files that the book names exist: a move that forgets its pages is found.

use std::collections::BTreeSet;

use regex::Regex;

use crate::tree::{files, repository};

#[test]
fn every_file_that_the_book_names_exists() {
    let folders = "crds|libs|operator|sandbox-image|rollout-image|inference-image|trainer-image|demo|bench|e2e|charts";
    let path = Regex::new(&format!(r"`((?:{folders})/[A-Za-z0-9_./-]+\.[a-z]+)`")).unwrap();
    let pages: Vec<_> = files(&["md"])
        .into_iter()
        .filter(|page| page.path.starts_with("docs/") || page.path == "README.md")
        .collect();
    let named: BTreeSet<(&str, &str)> = pages
        .iter()
        .flat_map(|page| {
            let paths = path.captures_iter(&page.text);
            paths.map(|found| (found.extract::<1>().1[0], page.path.as_str()))
        })
        .collect();
    assert!(named.len() > 20, "only {} paths were found", named.len());
    let missing: Vec<String> = named
        .iter()
        .filter(|(file, _)| !repository().join(file).exists())
        .map(|(file, page)| format!("{page} names {file}"))
        .collect();
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}
