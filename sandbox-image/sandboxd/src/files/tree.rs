//! Whole folders, as tars.
//!
//! Nothing in a tar leads out of the folder that the caller names: no name with `..` or a root, and no name through a
//! link, be it from the tar or of the policy's making. A tar with anything but files, folders and symbolic links is
//! refused before the first of them is written. Links are made as they are and never followed. Owners and times are not
//! taken over.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Cursor, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path};

use nix::dir::Type;
use tar::{Archive, Builder, EntryType, Header};

use super::folder::{Folder, Links};
use grpo_sandbox_protocol::MAX_FILE_BYTES;

/// Entries of one tar.
const MAX_ENTRIES: usize = 100_000;
/// Folders within folders.
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

/// The folders that lead there, made where they are missing. None for no names: the folder itself.
fn descend(folder: &Folder, parts: &[OsString]) -> io::Result<Option<Folder>> {
    let mut below: Option<Folder> = None;
    for part in parts {
        below = Some(below.as_ref().unwrap_or(folder).below(part, true)?);
    }
    Ok(below)
}

/// The parts of a name that stays below.
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

/// The folder as a tar. What is no file, folder or link is left out.
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
            // What has gone meanwhile, or has become something else, is left out.
            match kind {
                Type::Directory => {
                    if let Ok(below) = folder.below(&name, false) {
                        let mut header = header(EntryType::Directory, below.mode()?);
                        // With the slash at its end that other programs expect.
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
        // It may grow or shrink while it is read; its length is what the tar says.
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
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn opened(path: &Path) -> Folder {
        Folder::open(path, Links::Followed, false).unwrap()
    }

    /// A tar with one entry, whose name is taken as it is.
    fn with(kind: EntryType, name: &str, target: &str, content: &[u8]) -> Vec<u8> {
        let mut header = header(kind, 0o640);
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_link_name_literal(target).unwrap();
        header.set_size(content.len() as u64);
        header.set_cksum();
        let mut tar = Builder::new(Vec::new());
        tar.append(&header, content).unwrap();
        tar.into_inner().unwrap()
    }

    #[test]
    fn a_folder_comes_out_as_it_went_in() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let long = "n".repeat(200);
        fs::create_dir_all(from.path().join("a/empty")).unwrap();
        fs::write(from.path().join("a/script"), "#!").unwrap();
        fs::set_permissions(from.path().join("a/script"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(from.path().join("a").join(&long), vec![7; 100_000]).unwrap();
        symlink("/etc/passwd", from.path().join("link")).unwrap();
        nix::unistd::mkfifo(
            &from.path().join("pipe"),
            nix::sys::stat::Mode::from_bits_truncate(0o600),
        )
        .unwrap();
        let tar = pack(from.path(), Links::Refused).unwrap();
        unpack(&tar, &opened(to.path())).unwrap();
        assert_eq!(fs::read(to.path().join("a").join(&long)).unwrap(), vec![7; 100_000]);
        assert_eq!(
            fs::metadata(to.path().join("a/script")).unwrap().permissions().mode() & 0o777,
            0o755
        );
        assert!(to.path().join("a/empty").is_dir());
        assert_eq!(fs::read_link(to.path().join("link")).unwrap(), Path::new("/etc/passwd"));
        assert!(!to.path().join("pipe").exists());
        assert_eq!(pack(to.path(), Links::Followed).unwrap(), tar);
    }

    #[test]
    fn no_entry_leads_out_of_the_folder() {
        let all = tempfile::tempdir().unwrap();
        let (inside, outside) = (all.path().join("inside"), all.path().join("outside"));
        fs::create_dir_all(&inside).unwrap();
        fs::create_dir_all(&outside).unwrap();
        symlink(&outside, inside.join("way")).unwrap();
        for (kind, name) in [
            (EntryType::Regular, "../outside/x"),
            (EntryType::Regular, "a/../../outside/x"),
            (EntryType::Regular, "/tmp/x"),
            (EntryType::Regular, "way/x"),
            (EntryType::Directory, "way/x"),
            (EntryType::Symlink, "way/x"),
            (EntryType::Regular, "."),
        ] {
            assert!(unpack(&with(kind, name, "/", b""), &opened(&inside)).is_err(), "{name}");
        }
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        // A file in the place of a link takes its place, and not that of what it leads to.
        fs::write(outside.join("kept"), "kept").unwrap();
        symlink(outside.join("kept"), inside.join("file")).unwrap();
        unpack(&with(EntryType::Regular, "file", "", b"new"), &opened(&inside)).unwrap();
        assert_eq!(fs::read_to_string(outside.join("kept")).unwrap(), "kept");
        assert_eq!(fs::read_to_string(inside.join("file")).unwrap(), "new");
    }

    #[test]
    fn a_link_from_the_tar_is_not_followed_by_what_comes_after_it() {
        let all = tempfile::tempdir().unwrap();
        let (inside, outside) = (all.path().join("inside"), all.path().join("outside"));
        fs::create_dir_all(&inside).unwrap();
        fs::create_dir_all(&outside).unwrap();
        let mut tar = Builder::new(Vec::new());
        let mut link = header(EntryType::Symlink, 0o777);
        tar.append_link(&mut link, "way", &outside).unwrap();
        let mut file = header(EntryType::Regular, 0o644);
        tar.append_data(&mut file, "way/x", io::empty()).unwrap();
        assert!(unpack(&tar.into_inner().unwrap(), &opened(&inside)).is_err());
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    }

    #[test]
    fn what_is_no_file_folder_or_link_is_refused_before_anything_is_written() {
        let folder = tempfile::tempdir().unwrap();
        for kind in [EntryType::Link, EntryType::Char, EntryType::Fifo, EntryType::Block] {
            let mut tar = with(EntryType::Regular, "first", "", b"");
            // Without the two empty blocks at its end.
            tar.truncate(512);
            tar.extend(with(kind, "second", "first", b""));
            assert!(unpack(&tar, &opened(folder.path())).is_err(), "{kind:?}");
        }
        assert!(unpack(b"this is no tar", &opened(folder.path())).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
