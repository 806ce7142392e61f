//! A cache of files of the hub, shared by all processes that mount its folder.
//!
//! ```text
//! models--Qwen--Qwen3-8B/
//!   lock                      held by the process that downloads
//!   parts/<sha256 of path>    unfinished files, by commit and path
//!   snapshots/<commit>/...    whole files only, each checked and synced before it got its name
//! ```
//!
//! Files are never overwritten: a commit's bytes do not change. One process downloads at a time, the others wait for it
//! and then find the files; when it dies, the next one continues its unfinished files.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use sha2::Digest as _;

use crate::client::Hub;
use crate::error::HubError;
use crate::repository::{Commit, RemoteFile, Repository};
use crate::transfer::{Target, fetch, in_background};

/// Files that are downloaded at the same time.
const AT_A_TIME: usize = 4;
/// How often a process that waits for another's download looks again.
const LOOK: Duration = Duration::from_millis(500);

/// How far a download is. Read by others while it runs.
#[derive(Debug, Default)]
pub struct Progress {
    arrived: AtomicU64,
    bytes: AtomicU64,
}

impl Progress {
    /// Bytes that are on disk, and all.
    pub fn bytes(&self) -> (u64, u64) {
        (self.arrived.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

/// Brings these files of a commit into the cache; answers the folder that has them. Those that are there already are
/// not asked for.
pub async fn ensure(
    hub: &Hub,
    repository: &Repository,
    commit: &Commit,
    files: &[RemoteFile],
    cache: &Path,
    progress: &Progress,
) -> Result<PathBuf, HubError> {
    let folder = cache.join(repository.folder());
    let snapshot = folder.join("snapshots").join(commit.as_str());
    progress
        .bytes
        .store(files.iter().map(|file| file.size).sum(), Ordering::Relaxed);
    progress.arrived.store(present(&snapshot, files), Ordering::Relaxed);
    if missing(&snapshot, files).is_empty() {
        return Ok(snapshot);
    }
    let lock = lock(&folder).await?;
    // Another process may have brought them meanwhile.
    let wanted = missing(&snapshot, files);
    progress.arrived.store(present(&snapshot, files), Ordering::Relaxed);
    let parts = folder.join("parts");
    in_background(made, parts.clone()).await?;
    // Without a lock others may download too: each to a file of its own.
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
    let downloads = futures::stream::iter(targets).map(|target| async move {
        let parent = target.whole.parent().map(Path::to_owned);
        in_background(made, parent.unwrap_or_default()).await?;
        fetch(hub, repository, commit, &target, &progress.arrived).await
    });
    downloads.buffer_unordered(AT_A_TIME).try_collect::<()>().await?;
    drop(lock);
    Ok(snapshot)
}

/// Those whose names are not there. A file that has its name is whole.
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

/// One name for any path: a path may be longer than a file's name.
fn part_name(commit: &Commit, path: &str) -> String {
    hex::encode(sha2::Sha256::digest(format!("{commit}/{path}")))
}

/// Waits for other processes that download this repository. A process that dies lets go of it. None where the file
/// system has no locks.
async fn lock(folder: &Path) -> Result<Option<File>, HubError> {
    in_background(made, folder.to_owned()).await?;
    let path = folder.join("lock");
    loop {
        if let Some(lock) = in_background(try_lock, path.clone()).await? {
            return Ok(lock);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The lock, `Some(None)` where there are no locks, None while another process has it.
fn try_lock(path: PathBuf) -> Result<Option<Option<File>>, HubError> {
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(HubError::disk("opening the cache's lock", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(Some(file))),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) if has_no_locks(&error) => Ok(Some(None)),
        Err(TryLockError::Error(error)) => Err(HubError::disk("locking the cache", &path)(error)),
    }
}

/// Lustre without `flock`, NFS without a lock server.
fn has_no_locks(error: &io::Error) -> bool {
    const ENOLCK: i32 = 37;
    error.kind() == io::ErrorKind::Unsupported || error.raw_os_error() == Some(ENOLCK)
}

/// The pod's name.
fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}.{}", name.trim(), std::process::id())
}

fn made(folder: PathBuf) -> Result<(), HubError> {
    fs::create_dir_all(&folder).map_err(HubError::disk("making the folder", &folder))
}
