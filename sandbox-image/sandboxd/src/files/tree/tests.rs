use super::*;
use std::fs;
use std::os::unix::fs::symlink;

fn opened(path: &Path) -> Folder {
    Folder::open(path, Links::Followed, false).unwrap()
}

/// A tar with one entry, with exactly this name.
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
fn a_global_header_as_of_git_archive_makes_no_file() {
    let to = tempfile::tempdir().unwrap();
    let comment = b"52 comment=0123456789012345678901234567890123456789\n";
    let tar = with(EntryType::XGlobalHeader, "pax_global_header", "", comment);
    unpack(&tar, &opened(to.path())).unwrap();
    assert_eq!(fs::read_dir(to.path()).unwrap().count(), 0);
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
    // A file replaces a link itself, not the link's target.
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
