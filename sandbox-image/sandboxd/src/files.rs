//! Files in and out, whole, bounded, by absolute path.

use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use grpo_sandbox_protocol::MAX_FILE_BYTES;

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("path {0:?} is not an absolute path without `..`")]
    BadPath(String),
    #[error("mode {0:?} is not octal permissions such as 0644")]
    BadMode(String),
    #[error("{0} does not exist")]
    Missing(String),
    #[error("{0} is not a regular file")]
    NotAFile(String),
    #[error("{path} has {bytes} bytes, more than {MAX_FILE_BYTES}")]
    TooLarge { path: String, bytes: u64 },
    #[error("{doing} {path}: {source}")]
    Io { doing: &'static str, path: String, source: std::io::Error },
}

fn checked(path: &str) -> Result<PathBuf, FileError> {
    let plain = Path::new(path);
    let fine = plain.is_absolute()
        && plain.file_name().is_some()
        && !path.contains('\0')
        && plain.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if fine { Ok(plain.to_path_buf()) } else { Err(FileError::BadPath(path.to_owned())) }
}

/// Puts a file in place at once: a reader sees the old or the new one.
pub async fn put(path: &str, mode: Option<&str>, bytes: &[u8]) -> Result<(), FileError> {
    let target = checked(path)?;
    let mode = mode.unwrap_or("0644");
    let bits = u32::from_str_radix(mode, 8).ok().filter(|bits| *bits <= 0o7777);
    let bits = bits.ok_or_else(|| FileError::BadMode(mode.to_owned()))?;
    let io = |doing| move |source| FileError::Io { doing, path: path.to_owned(), source };
    if let Some(folder) = target.parent() {
        tokio::fs::create_dir_all(folder).await.map_err(io("making the folder of"))?;
    }
    let staged = target.with_file_name(format!(".grpo-{}", std::process::id()));
    tokio::fs::write(&staged, bytes).await.map_err(io("writing"))?;
    tokio::fs::set_permissions(&staged, PermissionsExt::from_mode(bits)).await.map_err(io("setting the mode of"))?;
    tokio::fs::rename(&staged, &target).await.map_err(io("placing"))
}

/// A whole file.
pub async fn get(path: &str) -> Result<Vec<u8>, FileError> {
    let target = checked(path)?;
    let io = |doing| move |source: std::io::Error| FileError::Io { doing, path: path.to_owned(), source };
    let about = match tokio::fs::metadata(&target).await {
        Ok(about) => about,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Err(FileError::Missing(path.to_owned())),
        Err(e) => return Err(io("looking at")(e)),
    };
    // A pipe or a device would block or never end.
    if !about.is_file() {
        return Err(FileError::NotAFile(path.to_owned()));
    }
    if about.len() > MAX_FILE_BYTES as u64 {
        return Err(FileError::TooLarge { path: path.to_owned(), bytes: about.len() });
    }
    tokio::fs::read(&target).await.map_err(io("reading"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_absolute_paths_are_taken() {
        for path in ["", "relative", "/a/../etc/passwd", "/", "/a/..", "/a\0b"] {
            assert!(checked(path).is_err(), "{path:?}");
        }
        assert!(checked("/tmp/patch.diff").is_ok());
    }
}
