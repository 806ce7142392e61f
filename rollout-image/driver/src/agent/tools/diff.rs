//! The unified diff that `rewrite` answers with, hunk for hunk as Python's `difflib.unified_diff` writes it.
//!
//! Three lines of context, files `original` and `current`. One improvement: a last line without a newline does not run
//! into the line after it.

use std::collections::HashMap;
use std::fmt::Write as _;

const CONTEXT: usize = 3;
/// From this many lines on, lines that make up more than one in a hundred begin no match, as in difflib.
const POPULAR_FROM: usize = 200;
/// Texts with more lines are compared only by their common beginning and end: matching costs the square of the lines,
/// and the policy chooses them.
const MOST_LINES: usize = 2000;

/// `a[alo..ahi]` became `b[blo..bhi]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    equal: bool,
    a: (usize, usize),
    b: (usize, usize),
}

/// The diff between two texts; empty if they are the same.
pub fn unified(original: &str, current: &str) -> String {
    let a: Vec<&str> = original.split_inclusive('\n').collect();
    let b: Vec<&str> = current.split_inclusive('\n').collect();
    let mut out = String::new();
    for group in grouped(changes(&a, &b)) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else {
            continue;
        };
        if out.is_empty() {
            out.push_str("--- original\n+++ current\n");
        }
        let (old, new) = (range(first.a.0, last.a.1), range(first.b.0, last.b.1));
        // Writing to a `String` cannot fail.
        let _ = writeln!(out, "@@ -{old} +{new} @@");
        for change in &group {
            if change.equal {
                lines(&mut out, ' ', &a[change.a.0..change.a.1]);
            } else {
                lines(&mut out, '-', &a[change.a.0..change.a.1]);
                lines(&mut out, '+', &b[change.b.0..change.b.1]);
            }
        }
    }
    out
}

fn lines(out: &mut String, sign: char, lines: &[&str]) {
    for line in lines {
        out.push(sign);
        out.push_str(line);
        if !line.ends_with('\n') {
            out.push('\n');
        }
    }
}

/// A range of lines from 1: a single line without its length, an empty range by the line before it.
fn range(from: usize, to: usize) -> String {
    match to - from {
        1 => (from + 1).to_string(),
        0 => format!("{from},0"),
        length => format!("{},{length}", from + 1),
    }
}

/// The equal and the changed parts, in order.
fn changes(a: &[&str], b: &[&str]) -> Vec<Change> {
    let matches = match a.len().max(b.len()) > MOST_LINES {
        true => ends_in_common(a, b),
        false => Matcher::new(a, b).matches(),
    };
    let (mut i, mut j) = (0, 0);
    let mut changes = Vec::new();
    for (at_a, at_b, size) in matches.into_iter().chain([(a.len(), b.len(), 0)]) {
        if i < at_a || j < at_b {
            changes.push(Change {
                equal: false,
                a: (i, at_a),
                b: (j, at_b),
            });
        }
        (i, j) = (at_a + size, at_b + size);
        if size > 0 {
            changes.push(Change {
                equal: true,
                a: (at_a, i),
                b: (at_b, j),
            });
        }
    }
    changes
}

fn ends_in_common(a: &[&str], b: &[&str]) -> Vec<(usize, usize, usize)> {
    let same = |(x, y): &(&&str, &&str)| x == y;
    let head = a.iter().zip(b).take_while(same).count();
    let rest = a.len().min(b.len()) - head;
    let tail = a.iter().rev().zip(b.iter().rev()).take(rest).take_while(same).count();
    vec![(0, 0, head), (a.len() - tail, b.len() - tail, tail)]
}

/// Hunks: changes with their context; those that touch share a hunk.
fn grouped(mut changes: Vec<Change>) -> Vec<Vec<Change>> {
    if let Some(first) = changes.first_mut().filter(|first| first.equal) {
        first.a.0 = first.a.0.max(first.a.1.saturating_sub(CONTEXT));
        first.b.0 = first.b.0.max(first.b.1.saturating_sub(CONTEXT));
    }
    if let Some(last) = changes.last_mut().filter(|last| last.equal) {
        last.a.1 = last.a.1.min(last.a.0 + CONTEXT);
        last.b.1 = last.b.1.min(last.b.0 + CONTEXT);
    }
    let (mut groups, mut group) = (Vec::new(), Vec::new());
    for mut change in changes {
        if change.equal && change.a.1 - change.a.0 > 2 * CONTEXT {
            group.push(Change {
                equal: true,
                a: (change.a.0, change.a.0 + CONTEXT),
                b: (change.b.0, change.b.0 + CONTEXT),
            });
            groups.push(std::mem::take(&mut group));
            change.a.0 = change.a.1 - CONTEXT;
            change.b.0 = change.b.1 - CONTEXT;
        }
        group.push(change);
    }
    groups.push(group);
    groups.retain(|group| group.iter().any(|change| !change.equal));
    groups
}

/// Ratcliff and Obershelp's matching: the longest common block, then the same on either side of it.
struct Matcher<'a> {
    a: &'a [&'a str],
    b: &'a [&'a str],
    /// The places of each line in `b`, without lines that are too frequent.
    places: HashMap<&'a str, Vec<usize>>,
}

impl<'a> Matcher<'a> {
    fn new(a: &'a [&'a str], b: &'a [&'a str]) -> Self {
        let mut places: HashMap<&str, Vec<usize>> = HashMap::new();
        for (at, line) in b.iter().enumerate() {
            places.entry(line).or_default().push(at);
        }
        if b.len() >= POPULAR_FROM {
            let most = b.len() / 100 + 1;
            places.retain(|_, places| places.len() <= most);
        }
        Self { a, b, places }
    }

    /// `(in a, in b, lines)`, in order, adjacent ones joined.
    fn matches(&self) -> Vec<(usize, usize, usize)> {
        let mut open = vec![(0, self.a.len(), 0, self.b.len())];
        let mut found = Vec::new();
        while let Some((alo, ahi, blo, bhi)) = open.pop() {
            let (i, j, size) = self.longest(alo, ahi, blo, bhi);
            if size > 0 {
                found.push((i, j, size));
                if alo < i && blo < j {
                    open.push((alo, i, blo, j));
                }
                if i + size < ahi && j + size < bhi {
                    open.push((i + size, ahi, j + size, bhi));
                }
            }
        }
        found.sort_unstable();
        let mut joined: Vec<(usize, usize, usize)> = Vec::new();
        for (i, j, size) in found {
            match joined.last_mut() {
                Some(last) if last.0 + last.2 == i && last.1 + last.2 == j => last.2 += size,
                _ => joined.push((i, j, size)),
            }
        }
        joined
    }

    /// The longest common block; of equally long ones the first in `a`, then the first in `b`.
    fn longest(&self, alo: usize, ahi: usize, blo: usize, bhi: usize) -> (usize, usize, usize) {
        let (mut i, mut j, mut size) = (alo, blo, 0);
        let mut lengths: HashMap<usize, usize> = HashMap::new();
        for at in alo..ahi {
            let mut next = HashMap::new();
            let places = self.places.get(self.a[at]).map_or(&[][..], Vec::as_slice);
            for &place in places.iter().filter(|place| (blo..bhi).contains(*place)) {
                let length = 1 + place
                    .checked_sub(1)
                    .and_then(|before| lengths.get(&before))
                    .unwrap_or(&0);
                next.insert(place, length);
                if length > size {
                    (i, j, size) = (at + 1 - length, place + 1 - length, length);
                }
            }
            lengths = next;
        }
        // Frequent lines begin no match, but join a match that they touch.
        while i > alo && j > blo && self.a[i - 1] == self.b[j - 1] {
            (i, j, size) = (i - 1, j - 1, size + 1);
        }
        while i + size < ahi && j + size < bhi && self.a[i + size] == self.b[j + size] {
            size += 1;
        }
        (i, j, size)
    }
}

#[cfg(test)]
mod tests;
