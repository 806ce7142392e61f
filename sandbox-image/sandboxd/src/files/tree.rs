//! Whole folders as tars.
//!
//! No entry of a tar leads out of the named folder: no name with `..` or a root, and no name through a link, whether
//! from the tar or from the policy. A tar with anything but files, folders and symbolic links is refused before the
//! first of them is written. Links are created as given and never followed. Owners and times are ignored.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Cursor, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path};

use nix::dir::Type;
use tar::{Archive, Builder, EntryType, Header};

use super::folder::{Folder, Links};
use grpo_sandbox_protocol::MAX_FILE_BYTES;

/// Maximum entries of one tar.
const MAX_ENTRIES: usize = 100_000;
/// Maximum depth of folders.
const MAX_DEPTH: usize = 64;

/// Writes the tar's entries below the folder.
pub fn unpack(bytes: &[u8], folder: &Folder) -> io::Result<()> {
    let mut entries = 0;
    for entry in Archive::new(Cursor::new(bytes)).entries()? {
        let entry = entry?;
        entries += 1;
        if entries > MAX_ENTRIES {
            return Err(refused(&format!("it has more than {MAX_ENTRIES} entries")));
        }
        names(&entry.path()?)?;
        if !is_taken(entry.header().entry_type()) {
            let message = format!("{} is a {:?}", entry.path()?.display(), entry.header().entry_type());
            return Err(refused(&message));
        }
    }
    for entry in Archive::new(Cursor::new(bytes)).entries()? {
        let mut entry = entry?;
        // `git archive` writes the commit into one: it is no file, and would be in the policy's patch.
        if entry.header().entry_type().is_pax_global_extensions() {
            continue;
        }
        let path = entry.path()?.into_owned();
        let said = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let parts = names(&path)?;
        let (bits, kind) = (entry.header().mode()? & 0o7777, entry.header().entry_type());
        if kind.is_dir() {
            let made = descend(folder, &parts).and_then(|below| below.map_or(Ok(()), |below| below.set_mode(bits)));
            made.map_err(said)?;
            continue;
        }
        let Some((name, parents)) = parts.split_last() else {
            return Err(refused(&format!("{} names no file", path.display())));
        };
        let below = descend(folder, parents).map_err(said)?;
        let below = below.as_ref().unwrap_or(folder);
        if kind.is_symlink() {
            let target = entry.link_name()?.unwrap_or_default().into_owned();
            below.link(name, &target).map_err(said)?;
        } else {
            let mut content = Vec::new();
            entry.read_to_end(&mut content)?;
            below.place(name, bits, &content).map_err(said)?;
        }
    }
    Ok(())
}

fn is_taken(kind: EntryType) -> bool {
    kind.is_file() || kind.is_dir() || kind.is_symlink() || kind.is_contiguous() || kind.is_pax_global_extensions()
}

/// Opens the folders along `parts` and creates missing ones. `None` for no parts: the folder itself.
fn descend(folder: &Folder, parts: &[OsString]) -> io::Result<Option<Folder>> {
    let mut below: Option<Folder> = None;
    for part in parts {
        below = Some(below.as_ref().unwrap_or(folder).below(part, true)?);
    }
    Ok(below)
}

/// The parts of a relative name that stays inside the folder.
fn names(path: &Path) -> io::Result<Vec<OsString>> {
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => parts.push(name.to_owned()),
            Component::CurDir => {}
            _ => return Err(refused(&format!("{} leads out of the folder", path.display()))),
        }
    }
    match parts.len() > MAX_DEPTH {
        true => Err(refused(&format!("{} is too deep", path.display()))),
        false => Ok(parts),
    }
}

fn refused(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("this tar is not unpacked: {what}"))
}

/// Packs the folder as a tar. Anything but files, folders and links is left out.
pub fn pack(path: &Path, links: Links) -> io::Result<Vec<u8>> {
    let mut packing = Packing {
        tar: Builder::new(Vec::new()),
        entries: 0,
    };
    packing.add(&Folder::open(path, links, false)?, Path::new(""), 0)?;
    packing.tar.into_inner()
}

struct Packing {
    tar: Builder<Vec<u8>>,
    entries: usize,
}

impl Packing {
    fn add(&mut self, folder: &Folder, within: &Path, depth: usize) -> io::Result<()> {
        if depth > MAX_DEPTH {
            return Err(too_large(&format!("{} is too deep", within.display())));
        }
        for (name, kind) in folder.entries(MAX_ENTRIES - self.entries)? {
            self.entries += 1;
            let path = within.join(&name);
            // Entries that have gone meanwhile, or have become another type, are left out.
            match kind {
                Type::Directory => {
                    if let Ok(below) = folder.below(&name, false) {
                        let mut header = header(EntryType::Directory, below.mode()?);
                        // With the trailing slash that other programs expect.
                        self.tar.append_data(&mut header, path.join(""), io::empty())?;
                        self.add(&below, &path, depth + 1)?;
                    }
                }
                Type::Symlink => {
                    if let Ok(target) = folder.link_target(&name) {
                        let mut header = header(EntryType::Symlink, 0o777);
                        self.tar.append_link(&mut header, &path, Path::new(&target))?;
                    }
                }
                Type::File => {
                    if let Ok(file) = folder.file(&name) {
                        self.add_file(file, &path)?;
                    }
                }
                _ => {}
            }
            if self.tar.get_ref().len() > MAX_FILE_BYTES {
                return Err(too_large(&format!("the tar has more than {MAX_FILE_BYTES} bytes")));
            }
        }
        Ok(())
    }

    fn add_file(&mut self, file: File, path: &Path) -> io::Result<()> {
        let about = file.metadata()?;
        if !about.is_file() {
            return Ok(());
        }
        let room = (MAX_FILE_BYTES - self.tar.get_ref().len()) as u64;
        if about.len() > room {
            return Err(too_large(&format!(
                "{} has {} bytes, of which {room} fit",
                path.display(),
                about.len()
            )));
        }
        let mut header = header(EntryType::Regular, about.permissions().mode());
        // The file may grow or shrink during the read; the tar has the length that was read.
        let mut content = Vec::with_capacity(about.len() as usize);
        file.take(room).read_to_end(&mut content)?;
        header.set_size(content.len() as u64);
        self.tar.append_data(&mut header, path, content.as_slice())
    }
}

fn header(kind: EntryType, bits: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(bits & 0o7777);
    header.set_size(0);
    header
}

fn too_large(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, what.to_owned())
}

#[cfg(test)]
mod tests;
