use super::*;

#[test]
fn processes_of_all_users_are_counted_with_their_threads() {
    let proc = tempfile::tempdir().unwrap();
    for (pid, threads) in [("1", 1), ("20", 3)] {
        for thread in 0..threads {
            fs::create_dir_all(proc.path().join(pid).join("task").join(thread.to_string())).unwrap();
        }
    }
    // A process that ends during the count, and entries that are not processes.
    for other in ["30", "self", "sys"] {
        fs::create_dir(proc.path().join(other)).unwrap();
    }
    let links = fs::metadata(proc.path().join("20/task")).unwrap().nlink();
    // Not every file system counts the folders in a folder.
    if links == 5 {
        assert!(exceeds(proc.path(), 4) && !exceeds(proc.path(), 5));
    }
    assert!(exceeds(Path::new("/proc"), 0) && !exceeds(Path::new("/proc"), u64::MAX));
    let threads = fs::read_dir("/proc/self/task").unwrap().count() as u64;
    assert!(exceeds(Path::new("/proc"), threads - 1));
}

#[test]
fn whether_anything_began_is_seen_from_its_number() {
    assert_eq!(newest("0.20 0.18 0.12 1/80 11206\n"), Some(11206));
    assert_eq!((newest(""), newest("0.00 0.00 0.00 0/0 0")), (None, None));
}
