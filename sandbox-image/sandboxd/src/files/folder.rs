//! An open folder: operations apply to this folder, even if the policy meanwhile puts something else in its path.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat, openat2, readlinkat, renameat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};

/// Maximum names tried for a staged file. Only a deliberate attack makes more than one try necessary.
const STAGING_TRIES: usize = 16;

/// The treatment of symbolic links in a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Followed, as by every program in the sandbox, except the links of /proc to files that other processes hold open.
    Followed,
    /// A link is an error.
    Refused,
}

/// A handle on one folder. If the folder is removed, operations fail; the handle can never refer to another folder.
pub struct Folder(OwnedFd);

impl Folder {
    /// Opens by absolute path. Creates missing folders if `make` is set.
    pub fn open(path: &Path, links: Links, make: bool) -> io::Result<Self> {
        if links == Links::Followed {
            if make {
                fs::create_dir_all(path)?;
            }
            return Ok(Self(open_followed(path, OFlag::O_DIRECTORY)?));
        }
        let mut folder = Self(open_followed(Path::new("/"), OFlag::O_DIRECTORY)?);
        for part in path.components() {
            if let Component::Normal(name) = part {
                folder = folder.below(name, make)?;
            }
        }
        Ok(folder)
    }

    /// Opens a subfolder, not through a link.
    pub fn below(&self, name: &OsStr, make: bool) -> io::Result<Self> {
        if make {
            match mkdirat(&self.0, name, Mode::from_bits_truncate(0o777)) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        match openat(&self.0, name, flags, Mode::empty()) {
            Ok(folder) => Ok(Self(folder)),
            // The existing entry may be a link or a file.
            Err(Errno::ENOTDIR | Errno::ELOOP) => Err(Errno::ENOTDIR.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a file in it for reading, not through a link. Without `O_NONBLOCK` a pipe would wait for a writer.
    pub fn file(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        Ok(openat(&self.0, name, flags, Mode::empty())?.into())
    }

    /// Writes a file atomically: a reader sees the old or the new one.
    pub fn place(&self, name: &OsStr, bits: u32, bytes: &[u8]) -> io::Result<()> {
        let (staged, mut file) = self.staged()?;
        let placed = file
            .write_all(bytes)
            .and_then(|()| file.set_permissions(Permissions::from_mode(bits)))
            .and_then(|()| Ok(renameat(&self.0, staged.as_str(), &self.0, name)?));
        self.unstaged(&staged, placed)
    }

    /// Creates a link atomically.
    pub fn link(&self, name: &OsStr, target: &Path) -> io::Result<()> {
        let staged = next_name();
        symlinkat(target, &self.0, staged.as_str())?;
        let placed = renameat(&self.0, staged.as_str(), &self.0, name);
        self.unstaged(&staged, placed.map_err(io::Error::from))
    }

    pub fn set_mode(&self, bits: u32) -> io::Result<()> {
        File::from(self.0.try_clone()?).set_permissions(Permissions::from_mode(bits))
    }

    pub fn mode(&self) -> io::Result<u32> {
        let about = File::from(self.0.try_clone()?).metadata()?;
        Ok(about.permissions().mode())
    }

    pub fn link_target(&self, name: &OsStr) -> io::Result<OsString> {
        Ok(readlinkat(&self.0, name)?)
    }

    /// Its entries by name; an error if there are more than `most`.
    pub fn entries(&self, most: usize) -> io::Result<Vec<(OsString, Type)>> {
        // Opened again: a copy of the descriptor would share its position in the listing.
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut listing = Dir::openat(&self.0, ".", flags, Mode::empty())?;
        let mut entries = Vec::new();
        for entry in listing.iter() {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            if entries.len() == most {
                return Err(io::Error::new(
                    ErrorKind::FileTooLarge,
                    "the folder has too many entries",
                ));
            }
            entries.push((name.to_owned(), entry.file_type().unwrap_or(Type::File)));
        }
        entries.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(entries)
    }

    /// A new file that only this call writes: its name is new, so no other call and no existing link leads to it.
    fn staged(&self) -> io::Result<(String, File)> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        for _ in 0..STAGING_TRIES {
            let name = next_name();
            match openat(&self.0, name.as_str(), flags, Mode::from_bits_truncate(0o600)) {
                Ok(file) => return Ok((name, file.into())),
                Err(Errno::EEXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(ErrorKind::AlreadyExists.into())
    }

    /// Removes a staged file that was not put in place: it would appear in the repository as the policy's change.
    fn unstaged(&self, staged: &str, placed: io::Result<()>) -> io::Result<()> {
        if placed.is_err() {
            let _ = unlinkat(&self.0, staged, UnlinkatFlags::NoRemoveDir);
        }
        placed
    }
}

/// Opens a file by its path for reading.
pub fn open_file(path: &Path, links: Links) -> io::Result<File> {
    match (links, path.parent(), path.file_name()) {
        (Links::Refused, Some(parent), Some(name)) => Folder::open(parent, links, false)?.file(name),
        _ => Ok(open_followed(path, OFlag::O_NONBLOCK)?.into()),
    }
}

fn open_followed(path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    let flags = flags | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    let how = OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_NO_MAGICLINKS);
    match openat2(AT_FDCWD, path, how) {
        // Some runtimes lack this call. There a link of /proc is followed too: it leads only to places that sandboxd's
        // own user may reach.
        Err(Errno::ENOSYS | Errno::EPERM) => openat(AT_FDCWD, path, flags, Mode::empty()),
        opened => opened,
    }
}

fn next_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!(".grpo-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}
