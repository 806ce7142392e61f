//! Files in and out, whole, bounded, by absolute path.
//!
//! Work on a file runs to its end on a thread of its own although its caller may have gone, so nothing is left half done. What runs in the sandbox may
//! put pipes and links in the way; none of them may hold such a thread.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use grpo_sandbox_protocol::MAX_FILE_BYTES;
use nix::libc::O_NONBLOCK;

/// Names tried for a file that is not in place yet. Somebody has to take them on purpose for one not to be enough.
const STAGING_TRIES: usize = 16;

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
    Io {
        doing: &'static str,
        path: String,
        source: io::Error,
    },
}

impl FileError {
    fn while_doing(doing: &'static str, path: &str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            doing,
            path: path.to_owned(),
            source,
        }
    }
}

/// Puts a file in place at once: a reader sees the old or the new one.
pub async fn put(path: &str, mode: Option<&str>, bytes: Bytes) -> Result<(), FileError> {
    let target = checked(path)?;
    let bits = permissions(mode.unwrap_or("0644"))?;
    on_its_own_thread(path, move |path| place(path, &target, bits, &bytes)).await
}

/// A whole file.
pub async fn get(path: &str) -> Result<Vec<u8>, FileError> {
    let target = checked(path)?;
    on_its_own_thread(path, move |path| read(path, &target)).await
}

async fn on_its_own_thread<T: Send + 'static>(
    path: &str,
    work: impl FnOnce(&str) -> Result<T, FileError> + Send + 'static,
) -> Result<T, FileError> {
    let named = path.to_owned();
    let done = tokio::task::spawn_blocking(move || work(&named)).await;
    done.unwrap_or_else(|error| Err(FileError::while_doing("handling", path)(io::Error::other(error))))
}

fn checked(path: &str) -> Result<PathBuf, FileError> {
    let plain = Path::new(path);
    let fine = plain.is_absolute()
        && plain.file_name().is_some()
        && !path.contains('\0')
        && plain
            .components()
            .all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if fine {
        Ok(plain.to_path_buf())
    } else {
        Err(FileError::BadPath(path.to_owned()))
    }
}

fn permissions(mode: &str) -> Result<u32, FileError> {
    let bits = u32::from_str_radix(mode, 8).ok().filter(|bits| *bits <= 0o7777);
    bits.ok_or_else(|| FileError::BadMode(mode.to_owned()))
}

fn place(path: &str, target: &Path, bits: u32, bytes: &[u8]) -> Result<(), FileError> {
    let doing = |doing| FileError::while_doing(doing, path);
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder).map_err(doing("making the folder of"))?;
    }
    let (staged, mut file) = staged_beside(target).map_err(doing("staging"))?;
    let placed = file
        .write_all(bytes)
        .map_err(doing("writing"))
        .and_then(|()| {
            file.set_permissions(PermissionsExt::from_mode(bits))
                .map_err(doing("setting the mode of"))
        })
        .and_then(|()| fs::rename(&staged, target).map_err(doing("placing")));
    if placed.is_err() {
        // It would show up in the repository as something the policy did.
        let _ = fs::remove_file(&staged);
    }
    placed
}

/// A new file in the target's folder, which nobody else writes: not another call, and nothing that waits there under its name.
fn staged_beside(target: &Path) -> io::Result<(PathBuf, File)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    for _ in 0..STAGING_TRIES {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let staged = target.with_file_name(format!(".grpo-{}-{number}", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).open(&staged) {
            Ok(file) => return Ok((staged, file)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

fn read(path: &str, target: &Path) -> Result<Vec<u8>, FileError> {
    let doing = |doing| FileError::while_doing(doing, path);
    // Opening a pipe would otherwise wait for somebody who writes.
    let opened = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(target);
    let file = opened.map_err(|error| match error.kind() {
        ErrorKind::NotFound => FileError::Missing(path.to_owned()),
        _ => doing("opening")(error),
    })?;
    let about = file.metadata().map_err(doing("looking at"))?;
    if !about.is_file() {
        return Err(FileError::NotAFile(path.to_owned()));
    }
    let too_large = |bytes| FileError::TooLarge {
        path: path.to_owned(),
        bytes,
    };
    if about.len() > MAX_FILE_BYTES as u64 {
        return Err(too_large(about.len()));
    }
    // It may grow while it is read.
    let mut bytes = Vec::with_capacity(about.len() as usize);
    let read = file.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes);
    match read.map_err(doing("reading"))? {
        count if count > MAX_FILE_BYTES => Err(too_large(count as u64)),
        _ => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn only_plain_absolute_paths_are_taken() {
        for path in ["", "relative", "/a/../etc/passwd", "/", "/a/..", "/a\0b"] {
            assert!(checked(path).is_err(), "{path:?}");
        }
        assert!(checked("/tmp/patch.diff").is_ok());
    }

    #[tokio::test]
    async fn files_put_into_one_folder_at_the_same_time_do_not_mix() {
        let folder = tempfile::tempdir().unwrap();
        let path = |nth: usize| folder.path().join(format!("{nth:02}")).to_str().unwrap().to_owned();
        let bytes = |nth: usize| Bytes::from(vec![nth as u8; 100_000]);
        let puts = (0..32).map(|nth| async move { put(&path(nth), None, bytes(nth)).await });
        for done in futures::future::join_all(puts).await {
            done.unwrap();
        }
        for nth in 0..32 {
            assert_eq!(get(&path(nth)).await.unwrap(), bytes(nth));
        }
        assert_eq!(names(folder.path()).len(), 32);
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_placed_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let taken = folder.path().join("taken");
        fs::create_dir(&taken).unwrap();
        let put = put(taken.to_str().unwrap(), None, Bytes::from_static(b"x")).await;
        assert!(matches!(put, Err(FileError::Io { doing: "placing", .. })), "{put:?}");
        assert_eq!(names(folder.path()), ["taken"]);
    }

    #[tokio::test]
    async fn a_pipe_in_the_way_is_no_file_and_holds_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        let got = get(pipe.to_str().unwrap()).await;
        assert!(matches!(got, Err(FileError::NotAFile(_))), "{got:?}");
    }
}
