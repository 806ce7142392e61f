//! The book holds together: every page is in its summary, every link and every include leads somewhere, every example
//! has a page.
//!
//! `make book` builds it; mdBook itself complains of neither a dead link nor a missing anchor.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use regex::Regex;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

fn source() -> PathBuf {
    root().join("docs/src")
}

/// All pages, with their texts.
fn pages() -> Vec<(PathBuf, String)> {
    let mut folders = vec![source()];
    let mut pages = vec![root().join("README.md")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            match entry.extension() {
                None if entry.is_dir() => folders.push(entry),
                Some(extension) if extension == "md" => pages.push(entry),
                _ => {}
            }
        }
    }
    pages
        .into_iter()
        .map(|page| (page.clone(), fs::read_to_string(page).unwrap()))
        .collect()
}

/// The text without blocks and words of code, in which nothing is a link.
fn prose(text: &str) -> String {
    let fenced = Regex::new(r"(?ms)^ *```.*?^ *```").unwrap().replace_all(text, "");
    Regex::new(r"`[^`\n]*`")
        .unwrap()
        .replace_all(&fenced, "code")
        .into_owned()
}

/// Where the links of a page lead: path and anchor, those to the web left out.
fn links(text: &str) -> Vec<(String, Option<String>)> {
    let link = Regex::new(r"\]\(([^)\s]+)\)").unwrap();
    link.captures_iter(&prose(text))
        .map(|found| found[1].to_owned())
        .filter(|target| !target.contains("://"))
        .map(|target| match target.split_once('#') {
            Some((path, anchor)) => (path.to_owned(), Some(anchor.to_owned())),
            None => (target, None),
        })
        .collect()
}

/// Anchors of headings, as mdBook makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let fenced = Regex::new(r"(?ms)^ *```.*?^ *```")
        .unwrap()
        .replace_all(text, "")
        .into_owned();
    let headings = fenced.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let words = line.trim_start_matches('#').trim().to_lowercase();
            let kept = words
                .chars()
                .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

#[test]
fn every_link_leads_to_a_page_and_every_anchor_to_a_heading() {
    let mut dead = Vec::new();
    for (page, text) in pages() {
        for (path, anchor) in links(&text) {
            let target = if path.is_empty() {
                page.clone()
            } else {
                page.parent().unwrap().join(&path)
            };
            let there = target.exists();
            let found = match &anchor {
                Some(anchor) if there => anchors(&fs::read_to_string(&target).unwrap()).contains(anchor),
                _ => there,
            };
            if !found {
                dead.push(format!("{}: {path}#{}", page.display(), anchor.unwrap_or_default()));
            }
        }
    }
    assert!(dead.is_empty(), "links that lead nowhere: {dead:#?}");
}

#[test]
fn every_page_is_in_the_summary_once() {
    let summary = fs::read_to_string(source().join("SUMMARY.md")).unwrap();
    let mut listed: Vec<PathBuf> = links(&summary)
        .into_iter()
        .map(|(path, _)| source().join(path))
        .collect();
    listed.sort();
    let own = [source().join("SUMMARY.md"), root().join("README.md")];
    let mut there: Vec<PathBuf> = pages()
        .into_iter()
        .map(|(page, _)| page)
        .filter(|page| !own.contains(page))
        .collect();
    there.sort();
    assert_eq!(listed, there);
}

#[test]
fn every_include_finds_its_file_and_its_section() {
    let include = Regex::new(r"\{\{#include ([^:}\s]+)(?::([a-z-]+))?\}\}").unwrap();
    let (mut seen, mut missing) = (0, Vec::new());
    for (page, text) in pages() {
        for found in include.captures_iter(&text) {
            seen += 1;
            let file = page.parent().unwrap().join(&found[1]);
            let content = fs::read_to_string(&file).unwrap_or_default();
            let section = found.get(2).map(|section| section.as_str());
            let begins = |section: &str| content.lines().any(|line| line == format!("# ANCHOR: {section}"));
            if content.is_empty() || !section.is_none_or(begins) {
                missing.push(format!("{}: {}", page.display(), &found[0]));
            }
        }
    }
    assert!(
        seen > 0 && missing.is_empty(),
        "includes of what is not there: {missing:#?}"
    );
}

#[test]
fn every_example_has_a_page_that_shows_it_and_what_becomes_of_it() {
    let files = fs::read_dir(root().join("docs/examples"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let examples: Vec<PathBuf> = files
        .filter(|file| file.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    assert!(!examples.is_empty());
    let index = fs::read_to_string(source().join("examples/index.md")).unwrap();
    for example in examples {
        let name = example.file_stem().unwrap().to_str().unwrap();
        let page = fs::read_to_string(source().join(format!("examples/{name}.md"))).unwrap_or_default();
        let sections =
            ["not-executed", "summary", "objects"].map(|section| format!("golden/{name}.yaml:{section}}}}}"));
        for wanted in sections
            .iter()
            .map(String::as_str)
            .chain([format!("examples/{name}.yaml}}}}").as_str()])
        {
            assert!(page.contains(wanted), "the page of {name} does not include {wanted}");
        }
        assert!(
            index.contains(&format!("({name}.md)")),
            "examples/index.md does not list {name}"
        );
    }
}
