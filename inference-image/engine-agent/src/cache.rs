//! Versions on local disk: one folder each, of which the last two are kept (what serves, and what comes next), and
//! those still sampled from.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Versions kept: the one that serves and the one that will.
const KEPT: usize = 2;

/// Ends the name of what is not yet whole.
pub const PARTIAL: &str = ".partial";

#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// A file or version name that would lead out of its folder.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0:?} is not a name: letters, digits, '.', '_' and '-' only, not beginning with '.', at most 200 characters")]
pub struct BadName(pub String);

/// Lets through what is safe as a name of a file.
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

    /// Where a version lies, or will.
    pub fn folder(&self, version: &str) -> Result<PathBuf, BadName> {
        Ok(self.root.join(checked_name(version)?))
    }

    /// Removes all but the most recently touched versions. `version` always stays, and so do those `in_use`.
    pub fn keep_newest_and(&self, version: &str, in_use: &BTreeSet<String>) -> io::Result<()> {
        let mut folders: Vec<(bool, SystemTime, PathBuf)> = Vec::new();
        for entry in std::fs::read_dir(&self.root)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                let current = entry.file_name().to_str() == Some(version);
                folders.push((
                    current,
                    metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                    entry.path(),
                ));
            }
        }
        folders.sort_by(|a, b| b.cmp(a));
        let used = |folder: &Path| {
            folder
                .file_name()
                .and_then(|name| name.to_str())
                .is_some_and(|name| in_use.contains(name))
        };
        for (_, _, folder) in folders.iter().skip(KEPT).filter(|(_, _, folder)| !used(folder)) {
            std::fs::remove_dir_all(folder)?;
        }
        Ok(())
    }

    pub fn root(&self) -> &Path {
        &self.root
    }
}

#[cfg(test)]
mod tests;
