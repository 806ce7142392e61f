//! The files that the rules apply to.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

/// A text file of the repository.
pub struct SourceFile {
    /// Relative to the repository's root, with `/`.
    pub path: String,
    pub text: String,
}

/// The root of the checkout.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap()
        .to_owned()
}

/// Build outputs and installed packages.
const NOT_OURS: [&str; 4] = ["target", "out", "docs/book", "operator/viewer/node_modules"];

/// Every file with one of these extensions, except hidden folders, build outputs and the built book.
pub fn files(extensions: &[&str]) -> Vec<SourceFile> {
    let root = repository();
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let relative = path.strip_prefix(&root).unwrap().display().to_string();
            if path.is_symlink() || name.starts_with('.') || NOT_OURS.contains(&relative.as_str()) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if extensions
                .iter()
                .any(|extension| name.ends_with(&format!(".{extension}")))
            {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push(SourceFile { path: relative, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(!found.is_empty(), "no files below {}", root.display());
    found
}

/// The output of `cargo metadata` about our own packages.
pub fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(repository())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Whether a Rust file holds only tests: in a folder `tests`, named `tests.rs`, or a whole crate of tests.
pub fn is_test(path: &str) -> bool {
    let folders = ["e2e/tests/", "e2e/house/"];
    path.contains("/tests/")
        || path.ends_with("/tests.rs")
        || path.ends_with("_tests.rs")
        || folders.iter().any(|folder| path.starts_with(folder))
}

/// Fails above the limit, and far below it: an edit that removes a few lines needs no change here, and the gain of a
/// larger one is kept.
pub fn hold(what: &str, limit: usize, found: &[String]) {
    let shown = found.iter().take(60).cloned().collect::<Vec<_>>().join("\n  ");
    assert!(
        found.len() <= limit,
        "{what}: {} found, at most {limit} may be:\n  {shown}",
        found.len()
    );
    assert!(
        found.len() >= limit - limit / 20,
        "{what}: only {} are left; lower the limit of this test from {limit} to that",
        found.len()
    );
}
