//! Files and whole folders in and out, bounded, by absolute path.
//!
//! What runs in the sandbox may put links in the way. A path leads through them as for every program there, unless the
//! caller says that no part of it may be one ([`Links::Refused`]); a file that is put takes the place of a link, and a
//! tar never leads through one ([`tree`]).
//!
//! Work on a file runs to its end on a thread of its own although its caller may have gone, so nothing is left half
//! done. What runs in the sandbox may put pipes in the way too; none of them may hold such a thread.

mod folder;
mod tree;

use std::io::{self, ErrorKind, Read as _};
use std::path::{Component, Path, PathBuf};

use bytes::Bytes;
use grpo_sandbox_protocol::MAX_FILE_BYTES;
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};

use folder::Folder;
pub use folder::Links;

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
pub async fn put(path: &str, mode: Option<&str>, links: Links, bytes: Bytes) -> Result<(), FileError> {
    let target = checked(path)?;
    let bits = permissions(mode.unwrap_or("0644"))?;
    on_its_own_thread(path, move |path| place(path, &target, bits, links, &bytes)).await
}

/// A whole file.
pub async fn get(path: &str, links: Links) -> Result<Vec<u8>, FileError> {
    let target = checked(path)?;
    on_its_own_thread(path, move |path| read(path, &target, links)).await
}

/// Unpacks a tar below a folder, which is made if it is not there.
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

/// A folder as a tar.
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
    // A link may lead to what the kernel shows of this process, which nobody else may read.
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
    use std::fs;
    use std::os::unix::fs::symlink;

    const FOLLOWED: Links = Links::Followed;

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
        let puts = (0..32).map(|nth| async move { put(&path(nth), None, FOLLOWED, bytes(nth)).await });
        for done in futures::future::join_all(puts).await {
            done.unwrap();
        }
        for nth in 0..32 {
            assert_eq!(get(&path(nth), FOLLOWED).await.unwrap(), bytes(nth));
        }
        assert_eq!(names(folder.path()).len(), 32);
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_placed_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let taken = folder.path().join("taken");
        fs::create_dir(&taken).unwrap();
        let put = put(taken.to_str().unwrap(), None, FOLLOWED, Bytes::from_static(b"x")).await;
        assert!(matches!(put, Err(FileError::Io { doing: "placing", .. })), "{put:?}");
        assert_eq!(names(folder.path()), ["taken"]);
    }

    #[tokio::test]
    async fn a_pipe_in_the_way_is_no_file_and_holds_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        let got = get(pipe.to_str().unwrap(), FOLLOWED).await;
        assert!(matches!(got, Err(FileError::NotAFile(_))), "{got:?}");
    }

    #[tokio::test]
    async fn links_are_followed_unless_the_caller_wants_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        fs::create_dir(path("real")).unwrap();
        fs::write(path("real/file"), "real").unwrap();
        symlink(path("real"), path("way")).unwrap();
        symlink(path("real/file"), path("link")).unwrap();
        for linked in ["way/file", "link"] {
            assert_eq!(get(&path(linked), FOLLOWED).await.unwrap(), b"real");
            assert!(get(&path(linked), Links::Refused).await.is_err(), "{linked}");
        }
        assert_eq!(get(&path("real/file"), Links::Refused).await.unwrap(), b"real");
        let new = || Bytes::from_static(b"new");
        assert!(put(&path("way/other"), None, Links::Refused, new()).await.is_err());
        put(&path("deep/down/file"), None, Links::Refused, new()).await.unwrap();
        put(&path("way/other"), None, FOLLOWED, new()).await.unwrap();
        assert_eq!(names(&folder.path().join("real")), ["file", "other"]);
        // A link itself is replaced, not what it leads to.
        put(&path("link"), None, Links::Refused, new()).await.unwrap();
        assert_eq!(fs::read_to_string(path("real/file")).unwrap(), "real");
        assert_eq!(fs::read_to_string(path("link")).unwrap(), "new");
    }

    #[tokio::test]
    async fn what_the_kernel_shows_of_sandboxd_is_not_given_out() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("patch.diff");
        symlink("/proc/self/environ", &link).unwrap();
        for path in [link.to_str().unwrap(), "/proc/self/environ"] {
            assert!(
                matches!(get(path, FOLLOWED).await, Err(FileError::NotAFile(_))),
                "{path}"
            );
        }
    }

    #[tokio::test]
    async fn no_link_of_proc_is_followed_to_what_a_process_holds_open() {
        let folder = tempfile::tempdir().unwrap();
        let secret = fs::File::create(folder.path().join("secret")).unwrap();
        let held = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&secret));
        assert!(fs::read(&held).is_ok());
        let link = folder.path().join("link");
        symlink(&held, &link).unwrap();
        for path in [held.as_str(), link.to_str().unwrap()] {
            let got = get(path, FOLLOWED).await;
            assert!(matches!(got, Err(FileError::Io { doing: "opening", .. })), "{got:?}");
        }
    }
}
