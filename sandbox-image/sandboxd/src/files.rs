//! Transfer of files and whole folders, bounded, by absolute path.
//!
//! The workload may put links in the way. A path follows them as for every program there, unless the caller allows no
//! link in any part of it ([`Links::Refused`]). A written file replaces a link, and a tar never follows one ([`tree`]).
//!
//! Work on a file runs to its end on its own thread even if its caller has gone, so nothing is left half done. The
//! workload may also put pipes in the way; none of them may hold such a thread.

mod folder;
mod tree;

use std::io::{self, ErrorKind, Read as _};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use grpo_sandbox_protocol::MAX_FILE_BYTES;
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};

use crate::offload;
use folder::Folder;
pub use folder::Links;

/// Deadline of a call, shorter than the gateway's: what keeps the disk busy runs in this sandbox.
const FILE_WITHIN: Duration = Duration::from_secs(50);

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
    #[error("{path}: {source}")]
    BadTar { path: String, source: io::Error },
    #[error("{path}: {source}")]
    TarTooLarge { path: String, source: io::Error },
    #[error("{path} has {bytes} bytes, more than {MAX_FILE_BYTES}")]
    TooLarge { path: String, bytes: u64 },
    #[error("{0}: the sandbox's disk did not answer within {FILE_WITHIN:?}")]
    Late(String),
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

/// Writes a file atomically: a reader sees the old or the new one.
pub async fn put(path: &str, mode: Option<&str>, links: Links, bytes: Bytes) -> Result<(), FileError> {
    let target = checked(path)?;
    let bits = permissions(mode.unwrap_or("0644"))?;
    on_its_own_thread(path, move |path| place(path, &target, bits, links, &bytes)).await
}

/// Reads a whole file.
pub async fn get(path: &str, links: Links) -> Result<Vec<u8>, FileError> {
    let target = checked(path)?;
    on_its_own_thread(path, move |path| read(path, &target, links)).await
}

/// Unpacks a tar below a folder, which is created if it does not exist.
pub async fn put_tree(path: &str, links: Links, bytes: Bytes) -> Result<(), FileError> {
    let target = checked(path)?;
    on_its_own_thread(path, move |path| {
        let folder = Folder::open(&target, links, true).map_err(FileError::while_doing("making", path))?;
        tree::unpack(&bytes, &folder).map_err(|error| match error.kind() {
            ErrorKind::InvalidInput | ErrorKind::Other | ErrorKind::UnexpectedEof | ErrorKind::InvalidData => {
                FileError::BadTar {
                    path: path.to_owned(),
                    source: error,
                }
            }
            _ => FileError::while_doing("unpacking into", path)(error),
        })
    })
    .await
}

/// Packs a folder as a tar.
pub async fn get_tree(path: &str, links: Links) -> Result<Vec<u8>, FileError> {
    let target = checked(path)?;
    on_its_own_thread(path, move |path| {
        tree::pack(&target, links).map_err(|error| match error.kind() {
            ErrorKind::NotFound => FileError::Missing(path.to_owned()),
            ErrorKind::FileTooLarge => FileError::TarTooLarge {
                path: path.to_owned(),
                source: error,
            },
            _ => FileError::while_doing("packing", path)(error),
        })
    })
    .await
}

async fn on_its_own_thread<T: Send + 'static>(
    path: &str,
    work: impl FnOnce(&str) -> Result<T, FileError> + Send + 'static,
) -> Result<T, FileError> {
    let named = path.to_owned();
    let done = offload::run(FILE_WITHIN, move || work(&named)).await;
    done.unwrap_or_else(|_| Err(FileError::Late(path.to_owned())))
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

fn place(path: &str, target: &Path, bits: u32, links: Links, bytes: &[u8]) -> Result<(), FileError> {
    let doing = |doing| FileError::while_doing(doing, path);
    let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
        return Err(FileError::BadPath(path.to_owned()));
    };
    let folder = Folder::open(parent, links, true).map_err(doing("making the folder of"))?;
    folder.place(name, bits, bytes).map_err(doing("placing"))
}

fn read(path: &str, target: &Path, links: Links) -> Result<Vec<u8>, FileError> {
    let doing = |doing| FileError::while_doing(doing, path);
    let file = folder::open_file(target, links).map_err(|error| match error.kind() {
        ErrorKind::NotFound => FileError::Missing(path.to_owned()),
        _ => doing("opening")(error),
    })?;
    let about = file.metadata().map_err(doing("looking at"))?;
    // A link may lead to this process's own files in /proc, which other processes may not read.
    let is_of_proc = fstatfs(&file).is_ok_and(|system| system.filesystem_type() == PROC_SUPER_MAGIC);
    if !about.is_file() || is_of_proc {
        return Err(FileError::NotAFile(path.to_owned()));
    }
    let too_large = |bytes| FileError::TooLarge {
        path: path.to_owned(),
        bytes,
    };
    if about.len() > MAX_FILE_BYTES as u64 {
        return Err(too_large(about.len()));
    }
    // The file may grow during the read.
    let mut bytes = Vec::with_capacity(about.len() as usize);
    let read = file.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes);
    match read.map_err(doing("reading"))? {
        count if count > MAX_FILE_BYTES => Err(too_large(count as u64)),
        _ => Ok(bytes),
    }
}

#[cfg(test)]
mod tests;
