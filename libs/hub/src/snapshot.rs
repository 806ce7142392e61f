//! A cache of downloaded files, shared by all processes that mount its folder.
//!
//! ```text
//! models--Qwen--Qwen3-8B/
//!   lock                      held by the process that downloads
//!   parts/<sha256 of path>    unfinished files, by commit and path
//!   pins/<name>.json          what processes that share the cache agreed on
//!   used/<commit>             empty; its time is that of the last use
//!   snapshots/<commit>/...    whole files only, each checked and synced before it got its name
//! ```
//!
//! Files are never overwritten: a commit's bytes do not change. One process downloads at a time; the others wait for it
//! and then find the files. If it dies, the next one continues its unfinished files. A download without enough space
//! removes files that have not been used for a month ([`room`]).

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use sha2::Digest as _;

use crate::error::HubError;
use crate::lock::try_lock;
use crate::repository::{Commit, RemoteFile};
use crate::room::{self, PARTS, SNAPSHOTS};
use crate::source::FileSource;
use crate::transfer::{Target, fetch, in_background};

/// Files that are downloaded concurrently.
const AT_A_TIME: usize = 4;
/// How often a process that waits for another's download checks again.
const LOOK: Duration = Duration::from_millis(500);

/// The progress of a download. Other threads read it during the download.
#[derive(Debug, Default)]
pub struct Progress {
    arrived: AtomicU64,
    bytes: AtomicU64,
}

impl Progress {
    /// Bytes on disk, and total bytes.
    pub fn bytes(&self) -> (u64, u64) {
        (self.arrived.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

/// Downloads these files of a commit into the cache; returns the folder with them. Existing files are not requested
/// again.
pub async fn ensure(
    source: &impl FileSource,
    commit: &Commit,
    files: &[RemoteFile],
    cache: &Path,
    progress: &Progress,
) -> Result<PathBuf, HubError> {
    let folder = cache.join(source.folder());
    let snapshot = folder.join(SNAPSHOTS).join(commit.as_str());
    in_background(room::mark, (folder.clone(), commit.to_string())).await?;
    progress
        .bytes
        .store(files.iter().map(|file| file.size).sum(), Ordering::Relaxed);
    progress.arrived.store(present(&snapshot, files), Ordering::Relaxed);
    if missing(&snapshot, files).is_empty() {
        return Ok(snapshot);
    }
    // Files that another process has downloaded meanwhile count as progress too.
    let parts = folder.join(PARTS);
    let look = || {
        let unfinished = missing(&snapshot, files)
            .into_iter()
            .map(|file| parts.join(part_name(commit, &file.path)));
        let unfinished: u64 = unfinished
            .map(|part| fs::metadata(part).map_or(0, |part| part.len()))
            .sum();
        progress
            .arrived
            .store(present(&snapshot, files) + unfinished, Ordering::Relaxed);
    };
    let lock = lock(&folder, look).await?;
    // Another process may have downloaded them meanwhile.
    let wanted = missing(&snapshot, files);
    progress.arrived.store(present(&snapshot, files), Ordering::Relaxed);
    in_background(made, parts.clone()).await?;
    // Without a lock, other processes may download too, each to its own file.
    let own = if lock.is_none() {
        format!(".{}", host())
    } else {
        String::new()
    };
    let targets = wanted.into_iter().map(|file| Target {
        part: parts.join(part_name(commit, &file.path) + &own),
        whole: snapshot.join(&file.path),
        file: file.clone(),
    });
    let targets: Vec<Target> = targets.collect();
    in_background(room_for, (cache.to_owned(), folder, targets.clone())).await?;
    let downloads = futures::stream::iter(targets).map(|target| async move {
        let parent = target.whole.parent().map(Path::to_owned);
        in_background(made, parent.unwrap_or_default()).await?;
        fetch(source, commit, &target, &progress.arrived).await
    });
    downloads.buffer_unordered(AT_A_TIME).try_collect::<()>().await?;
    drop(lock);
    Ok(snapshot)
}

/// Frees space for the remaining bytes.
fn room_for((cache, repository, targets): (PathBuf, PathBuf, Vec<Target>)) -> Result<(), HubError> {
    let there = |target: &Target| fs::metadata(&target.part).map_or(0, |part| part.len());
    let needed = targets
        .iter()
        .map(|target| target.file.size.saturating_sub(there(target)));
    let (needed, wanted): (u64, Vec<_>) = (needed.sum(), targets.iter().map(|target| target.part.clone()).collect());
    room::make(&cache, &repository, &wanted, needed, room::free)
}

/// Makes `link` point to a snapshot: a process that gets a path before the commit is known finds the files there.
pub fn link(snapshot: &Path, link: &Path) -> Result<(), HubError> {
    let new = link.with_extension("new");
    let linked = match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => std::os::unix::fs::symlink(snapshot, &new).and_then(|()| fs::rename(&new, link)),
    };
    linked.map_err(HubError::disk("linking the files to", link))
}

/// The files whose names do not exist. A file with its name is whole.
fn missing<'a>(snapshot: &Path, files: &'a [RemoteFile]) -> Vec<&'a RemoteFile> {
    files.iter().filter(|file| !has(snapshot, file)).collect()
}

fn present(snapshot: &Path, files: &[RemoteFile]) -> u64 {
    files
        .iter()
        .filter(|file| has(snapshot, file))
        .map(|file| file.size)
        .sum()
}

fn has(snapshot: &Path, file: &RemoteFile) -> bool {
    let found = fs::metadata(snapshot.join(&file.path));
    found.is_ok_and(|found| found.is_file() && found.len() == file.size)
}

/// A short name for any path: a path may be longer than a file name allows.
fn part_name(commit: &Commit, path: &str) -> String {
    hex::encode(sha2::Sha256::digest(format!("{commit}/{path}")))
}

/// Waits for other processes that download this repository. The lock is freed if its process dies. `None` if the file
/// system has no locks.
async fn lock(folder: &Path, look: impl Fn()) -> Result<Option<File>, HubError> {
    in_background(made, folder.to_owned()).await?;
    let path = folder.join("lock");
    loop {
        if let Some(lock) = in_background(try_lock, path.clone()).await? {
            return Ok(lock);
        }
        look();
        tokio::time::sleep(LOOK).await;
    }
}

/// The pod's name and the process id.
pub(crate) fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}.{}", name.trim(), std::process::id())
}

fn made(folder: PathBuf) -> Result<(), HubError> {
    fs::create_dir_all(&folder).map_err(HubError::disk("making the folder", &folder))
}
