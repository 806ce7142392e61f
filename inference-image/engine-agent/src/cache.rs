//! Versions on local disk: one folder each. The serving version, the next one and those from which rows are still
//! sampled are kept; all others are removed before the next version is pulled, so that no third one needs space.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

/// Suffix of an incomplete file.
pub const PARTIAL: &str = ".partial";

/// Written last into a version's folder: with it, the version is complete.
pub const MANIFEST: &str = "manifest.json";

/// A file beside `whole` while that is not complete: the copy that grows from its beginning (`kind` is empty), or one
/// of another kind, such as ".chunks".
pub fn partial(whole: &Path, kind: &str) -> PathBuf {
    let mut name = whole.as_os_str().to_owned();
    name.push(kind);
    name.push(PARTIAL);
    name.into()
}

#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// A file or version name that would lead out of its folder.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0:?} is not a name: letters, digits, '.', '_' and '-' only, not beginning with '.', at most 200 characters")]
pub struct BadName(pub String);

/// Accepts only safe file names.
pub fn checked_name(name: &str) -> Result<&str, BadName> {
    let plain = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    match plain && !name.is_empty() && name.len() <= 200 && !name.starts_with('.') && !name.ends_with(PARTIAL) {
        true => Ok(name),
        false => Err(BadName(name.to_owned())),
    }
}

impl Cache {
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// The folder of a version, which may not exist yet.
    pub fn folder(&self, version: &str) -> Result<PathBuf, BadName> {
        Ok(self.root.join(checked_name(version)?))
    }

    /// Removes all but these versions.
    pub fn keep_only(&self, versions: &BTreeSet<String>) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.root)? {
            let entry = entry?;
            let kept = entry.file_name().to_str().is_some_and(|name| versions.contains(name));
            if entry.metadata()?.is_dir() && !kept {
                std::fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }

    pub fn root(&self) -> &Path {
        &self.root
    }
}

#[cfg(test)]
mod tests;
