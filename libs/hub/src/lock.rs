//! The lock of a repository in a cache: one process downloads, and its end frees the lock.

use std::fs::{File, TryLockError};
use std::io;
use std::path::PathBuf;

use crate::error::HubError;

/// The lock; `Some(None)` if the file system has no locks, `None` while another process holds it.
pub(crate) fn try_lock(path: PathBuf) -> Result<Option<Option<File>>, HubError> {
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
