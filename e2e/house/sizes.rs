//! Limits the size of files, so that a person can understand each as a whole.

use crate::tree::{files, hold, is_test};

const MOST_LINES: usize = 500;
const MEDIAN: usize = 150;

/// Source files over [`MOST_LINES`] lines, except tests.
const LONG: usize = 0;

#[test]
fn no_source_file_is_longer_than_500_lines() {
    let long: Vec<String> = files(&["rs"])
        .iter()
        .filter(|file| !is_test(&file.path))
        .map(|file| (file.text.lines().count(), &file.path))
        .filter(|(lines, _)| *lines > MOST_LINES)
        .map(|(lines, path)| format!("{path}: {lines} lines"))
        .collect();
    hold("source files over 500 lines", LONG, &long);
}

#[test]
fn the_median_source_file_stays_short() {
    let mut lines: Vec<usize> = files(&["rs"])
        .iter()
        .filter(|file| !is_test(&file.path))
        .map(|file| file.text.lines().count())
        .collect();
    lines.sort_unstable();
    let median = lines[lines.len() / 2];
    println!("{} source files, median {median} lines", lines.len());
    assert!(
        median <= MEDIAN,
        "the median of {} source files is {median} lines",
        lines.len()
    );
}
