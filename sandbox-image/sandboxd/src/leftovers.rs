//! State of a pod that outlives its container: shared memory, message queues, and the three files in `/etc` from the
//! cluster. Before the container ends to restart, all of it is restored to the state at sandboxd's start.
//!
//! If something cannot be restored, the container does not restart: the pod then ends, and another takes its place.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Files that the cluster mounts into every container of the pod from one place.
const SHARED_FILES: [&str; 3] = ["/etc/hosts", "/etc/hostname", "/etc/resolv.conf"];
const SHARED_FOLDERS: [&str; 2] = ["/dev/shm", "/dev/mqueue"];
/// Made for each container alone, so they do not outlive it.
const OWN: [&str; 4] = ["/", "/dev", "/dev/pts", "/dev/termination-log"];
/// Kernel file systems; masked or read-only where it matters.
const KERNEL: [&str; 2] = ["/proc", "/sys"];
/// System V memory, semaphores and queues.
const SYSTEM_V: [&str; 3] = ["/proc/sysvipc/shm", "/proc/sysvipc/sem", "/proc/sysvipc/msg"];

#[derive(Debug, thiserror::Error)]
pub enum Left {
    #[error("processes that do not die")]
    Processes,
    #[error("files that could not be put back in time")]
    Late,
    #[error("{0} is mounted, and may be written to")]
    Mount(PathBuf),
    #[error("System V objects, as {0} says")]
    SystemV(&'static str),
    #[error("{doing} {path}: {source}")]
    Io {
        doing: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Left {
    let path = path.to_owned();
    move |source| Left::Io { doing, path, source }
}

/// The earlier state of a file or folder.
struct Kept {
    path: PathBuf,
    /// Only for a file.
    bytes: Option<Vec<u8>>,
    meta: Metadata,
}

/// The recorded state.
pub struct Surroundings(Vec<Kept>);

impl Surroundings {
    /// Records the state, before any program runs that could change it. A missing file was not put there by the
    /// cluster.
    pub fn remember() -> Self {
        Self::of(&SHARED_FILES, &SHARED_FOLDERS)
    }

    fn of(files: &[&str], folders: &[&str]) -> Self {
        let keep = |path: &str, is_file: bool| {
            let path = PathBuf::from(path);
            let meta = fs::symlink_metadata(&path).ok()?;
            let bytes = match is_file {
                true => Some(fs::read(&path).ok()?),
                false => None,
            };
            Some(Kept { path, bytes, meta })
        };
        let files = files.iter().filter_map(|path| keep(path, true));
        let folders = folders.iter().filter_map(|path| keep(path, false));
        Self(files.chain(folders).collect())
    }

    /// Restores the state. No other process may run any more.
    pub fn put_back(&self) -> Result<(), Left> {
        for objects in SYSTEM_V {
            // The first line is a heading. If the file is missing, the kernel has no such objects.
            if fs::read_to_string(objects).is_ok_and(|text| text.lines().count() > 1) {
                return Err(Left::SystemV(objects));
            }
        }
        let mounts = Path::new("/proc/self/mountinfo");
        let mounts = fs::read_to_string(mounts).map_err(failed("reading", mounts))?;
        if let Some(path) = unknown_mount(&mounts) {
            return Err(Left::Mount(path));
        }
        self.0.iter().try_for_each(Kept::put_back)
    }
}

impl Kept {
    fn put_back(&self) -> Result<(), Left> {
        let path = &self.path;
        // Unchanged attributes need no write, which often would fail: the owner may be a user that this user namespace
        // does not have.
        let now = fs::symlink_metadata(path).map_err(failed("looking at", path))?;
        if (now.uid(), now.gid()) != (self.meta.uid(), self.meta.gid()) {
            chown(path, Some(self.meta.uid()), Some(self.meta.gid())).map_err(failed("changing the owner of", path))?;
        }
        // Before the content: with the wrong mode even an owner cannot write, if it lacks the right to override.
        if now.mode() != self.meta.mode() {
            let mode = Permissions::from_mode(self.meta.mode() & 0o7777);
            fs::set_permissions(path, mode).map_err(failed("changing the mode of", path))?;
        }
        strip(path)?;
        match &self.bytes {
            Some(bytes) if fs::read(path).is_ok_and(|now| now == *bytes) => {}
            Some(bytes) => fs::write(path, bytes).map_err(failed("writing", path))?,
            None => empty(path)?,
        }
        let modified = self.meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        let times = fs::FileTimes::new().set_modified(modified).set_accessed(modified);
        let file = fs::File::open(path).map_err(failed("opening", path))?;
        // Some kernel file systems do not keep them.
        let _ = file.set_times(times);
        Ok(())
    }
}

/// Removes everything in a folder.
fn empty(folder: &Path) -> Result<(), Left> {
    for entry in fs::read_dir(folder).map_err(failed("reading", folder))? {
        let entry = entry.map_err(failed("reading", folder))?;
        let path = entry.path();
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let removed = match is_folder {
            true => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        };
        removed.map_err(failed("removing", &path))?;
    }
    Ok(())
}

/// Removes the extended attributes that a sandbox can set.
fn strip(path: &Path) -> Result<(), Left> {
    let failed = |error: rustix::io::Errno| failed("taking attributes off", path)(error.into());
    let mut names = vec![0; 64 << 10];
    let length = match rustix::fs::llistxattr(path, &mut names[..]) {
        Ok(length) => length,
        Err(rustix::io::Errno::NOTSUP) => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    let names = names[..length].split(|byte| *byte == 0);
    // The others belong to the kernel, such as a security module's label.
    for name in names.filter(|name| name.starts_with(b"user.") || name.starts_with(b"system.posix_acl")) {
        rustix::fs::lremovexattr(path, name).map_err(failed)?;
    }
    Ok(())
}

/// The first writable mount whose content might outlive the container.
fn unknown_mount(mountinfo: &str) -> Option<PathBuf> {
    let mounts = mountinfo.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(4);
        Some((fields.next()?, fields.next()?))
    });
    let writable = mounts.filter(|(_, options)| !options.split(',').any(|option| option == "ro"));
    let is_known = |place: &str| {
        let all = SHARED_FILES.iter().chain(&SHARED_FOLDERS).chain(&OWN);
        let below_kernel = KERNEL.iter().any(|kernel| Path::new(place).starts_with(kernel));
        below_kernel || all.clone().any(|known| *known == place)
    };
    // If the runtime may not create devices, `/dev/null` and its like are bind mounts.
    let is_device = |place: &str| Path::new(place).parent() == Some(Path::new("/dev"));
    let mut unknown = writable.filter(|(place, _)| !is_known(place) && !is_device(place));
    unknown.next().map(|(place, _)| place.into())
}

#[cfg(test)]
mod tests;
