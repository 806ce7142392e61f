//! Disk space of a cache: leftovers and snapshots unused for long are removed when a download needs space. A download
//! that does not fit is refused before its first byte.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::sys::statvfs::statvfs;

use crate::error::HubError;
use crate::lock::try_lock;

/// A snapshot that a pod began to use within this time is kept. A pod that works for longer may lose its files, and
/// downloads them again when it is recreated.
const UNUSED: Duration = Duration::from_secs(30 * 24 * 3600);
/// Space that a download leaves free: a run's records may be on the same volume.
const RESERVE: u64 = 1 << 30;

/// Folders below a repository's folder.
pub(crate) const SNAPSHOTS: &str = "snapshots";
pub(crate) const PARTS: &str = "parts";
/// An empty file for each snapshot; its modification time is the snapshot's last use.
const USED: &str = "used";

/// Marks a snapshot as used now. A read-only cache is left unchanged.
pub(crate) fn mark((repository, commit): (PathBuf, String)) -> Result<(), HubError> {
    let folder = repository.join(USED);
    let marked = fs::create_dir_all(&folder).and_then(|()| fs::File::create(folder.join(commit)));
    // Creating an existing file does not change its time.
    let _ = marked.and_then(|file| file.set_modified(SystemTime::now()));
    Ok(())
}

/// The bytes that a download may write to the file system of a folder.
pub(crate) fn free(folder: &Path) -> io::Result<u64> {
    let found = statvfs(folder)?;
    #[allow(clippy::unnecessary_cast, reason = "the widths differ by platform")]
    let [all, free, unit] = [
        found.blocks() as u64,
        found.blocks_available() as u64,
        found.fragment_size() as u64,
    ];
    if all == 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let reserve = RESERVE.min(all.saturating_mul(unit) / 100);
    Ok(free.saturating_mul(unit).saturating_sub(reserve))
}

/// Frees space for `needed` bytes. The caller holds the lock of `repository` and will continue the unfinished files
/// `wanted`.
pub(crate) fn make(
    cache: &Path,
    repository: &Path,
    wanted: &[PathBuf],
    needed: u64,
    free: impl Fn(&Path) -> io::Result<u64>,
) -> Result<(), HubError> {
    // If a file system does not report its free space, the write fails when it is full.
    let lacks = || free(cache).ok().filter(|free| *free < needed);
    if lacks().is_none() {
        return Ok(());
    }
    let repositories = entries(cache);
    for of in &repositories {
        // Without locks, another process may be writing these files.
        let _lock = match of == repository {
            true => None,
            false => match try_lock(of.join("lock")) {
                Ok(Some(Some(lock))) => Some(lock),
                _ => continue,
            },
        };
        for part in entries(&of.join(PARTS)) {
            if !wanted.contains(&part) && (of != repository || is_ours(&part)) {
                let _ = fs::remove_file(part);
            }
        }
    }
    let mut found: Vec<Unused> = repositories.into_iter().flat_map(unused).collect();
    found.sort();
    for (_, of, snapshot) in found {
        if lacks().is_none() {
            return Ok(());
        }
        // A download of its repository may be in progress, or may have used it since. The lock is held until it is
        // removed.
        let _lock = match of == repository {
            true => None,
            false => match try_lock(of.join("lock")) {
                Ok(Some(lock)) => lock,
                _ => continue,
            },
        };
        if unused(of).iter().any(|(_, _, still)| *still == snapshot) {
            let _ = fs::remove_dir_all(&snapshot);
        }
    }
    match lacks() {
        None => Ok(()),
        Some(free) => Err(HubError::Room {
            cache: cache.to_owned(),
            needed,
            free,
        }),
    }
}

/// An unfinished file without a process name as its extension was written under the lock.
fn is_ours(part: &Path) -> bool {
    part.extension().is_none()
}

/// Last use, repository, snapshot folder.
type Unused = (SystemTime, PathBuf, PathBuf);

/// The snapshots of a repository that have not been used for long.
fn unused(repository: PathBuf) -> Vec<Unused> {
    let snapshots = entries(&repository.join(SNAPSHOTS)).into_iter();
    let used = |snapshot: &Path| {
        fs::metadata(repository.join(USED).join(snapshot.file_name()?))
            .ok()?
            .modified()
            .ok()
    };
    let unused = snapshots.filter_map(|snapshot| {
        // A snapshot without a mark comes from a process that died at once.
        let used = used(&snapshot).unwrap_or(SystemTime::UNIX_EPOCH);
        let is_old = used.elapsed().is_ok_and(|ago| ago > UNUSED);
        is_old.then(|| (used, repository.clone(), snapshot))
    });
    unused.collect()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let found = fs::read_dir(folder).into_iter().flatten().flatten();
    found.map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests;
