//! Files by which a patch could decide test results: pytest and Python load them automatically, or the evaluation's
//! command starts them, and a change in one of them turns failures into passes. A patch's changes to them are not
//! applied before an evaluation, so the grader's tree has the task's own files. The policy's version of such a file
//! counts only if the task's fix changes it too.

use bytes::Bytes;
use std::collections::BTreeSet;

/// In any folder.
const NAMES: [&str; 10] = [
    "conftest.py",
    "pytest.ini",
    "pytest.toml",
    ".pytest.toml",
    ".pytest.ini",
    "tox.ini",
    "setup.cfg",
    "pyproject.toml",
    "sitecustomize.py",
    "usercustomize.py",
];
/// From the root of the tree: programs that the evaluations of SWE-bench, SWE-Gym and SWE-rebench start instead of
/// pytest, of Django and of SymPy, with the modules that SymPy's needs.
const PATHS: [&str; 4] = [
    "bin/test",
    "sympy/testing/runtests.py",
    "sympy/utilities/runtests.py",
    "tests/runtests.py",
];
const BEGINS: &[u8] = b"diff --git ";

/// The applied part of a patch, and the paths left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    pub patch: Bytes,
    pub left_out: Vec<String>,
}

impl Applied {
    /// A note for the record of the grading.
    pub fn note(&self) -> Option<String> {
        let paths = self.left_out.join(", ");
        (!paths.is_empty()).then(|| format!("these files decide how tests run, so the task's own are used: {paths}"))
    }
}

/// `patch`: from [`super::take`]. `fix`: the task's own, if its row has one.
pub fn without(patch: &Bytes, fix: Option<&str>) -> Applied {
    let mut starts: Vec<usize> = starts(patch);
    let all = !starts.iter().any(|at| is_setup(header(&patch[*at..])));
    if all {
        return Applied {
            patch: patch.clone(),
            left_out: Vec::new(),
        };
    }
    let fixed = fix.map(changed).unwrap_or_default();
    let mut kept = patch[..starts[0]].to_vec();
    let mut left_out = Vec::new();
    starts.push(patch.len());
    for section in starts.windows(2).map(|ends| &patch[ends[0]..ends[1]]) {
        let header = header(section);
        let path = path(header);
        match is_setup(header) && !fixed.contains(&path) {
            true => left_out.push(path),
            false => kept.extend_from_slice(section),
        }
    }
    Applied {
        patch: kept.into(),
        left_out,
    }
}

/// Offsets of the sections of files. No other line of a patch begins this way: lines of hunks begin with a mark, and
/// lines of binary files have no space.
fn starts(patch: &[u8]) -> Vec<usize> {
    let lines = patch.split_inclusive(|byte| *byte == b'\n');
    let mut at = 0;
    let mut starts = Vec::new();
    for line in lines {
        if line.starts_with(BEGINS) {
            starts.push(at);
        }
        at += line.len();
    }
    starts
}

/// `a/x b/x`: both names are the same, because a rename is a deletion and a new file. Names with unusual bytes are in
/// quotes.
fn header(section: &[u8]) -> &[u8] {
    let line = section.split(|byte| *byte == b'\n').next().unwrap_or_default();
    line.strip_prefix(BEGINS).unwrap_or_default()
}

fn is_setup(header: &[u8]) -> bool {
    let name = header.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let name = name.strip_suffix(b"\"").unwrap_or(name);
    NAMES.iter().any(|setup| setup.as_bytes() == name) || PATHS.contains(&path(header).as_str())
}

fn path(header: &[u8]) -> String {
    let first = &header[..header.len() / 2];
    let first = String::from_utf8_lossy(first).into_owned();
    let plain = first.trim_matches('"');
    plain.strip_prefix("a/").unwrap_or(plain).to_owned()
}

/// Paths that a publisher's patch changes.
fn changed(fix: &str) -> BTreeSet<String> {
    let named = |line: &str| {
        let path = line.strip_prefix("+++ b/").or_else(|| line.strip_prefix("--- a/"))?;
        Some(path.split('\t').next().unwrap_or(path).trim_end().to_owned())
    };
    fix.lines().filter_map(named).collect()
}

#[cfg(test)]
mod tests;
