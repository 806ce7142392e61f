use super::*;

#[test]
fn what_was_written_where_the_pod_keeps_it_is_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let (file, shared) = (folder.path().join("hosts"), folder.path().join("shm"));
    fs::write(&file, "127.0.0.1 localhost\n").unwrap();
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, Permissions::from_mode(0o1777)).unwrap();
    let before = fs::metadata(&file).unwrap();
    let kept = Surroundings::of(&[file.to_str().unwrap()], &[shared.to_str().unwrap(), "/no/such"]);
    fs::write(&file, "6.6.6.6 pypi.org\n").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o777)).unwrap();
    fs::create_dir_all(shared.join("a/b")).unwrap();
    fs::write(shared.join("a/b/c"), "left").unwrap();
    std::os::unix::fs::symlink("/", shared.join("link")).unwrap();
    fs::set_permissions(&shared, Permissions::from_mode(0o700)).unwrap();
    let _ = rustix::fs::lsetxattr(&file, "user.left", b"x", rustix::fs::XattrFlags::empty());
    for kept in &kept.0 {
        kept.put_back().unwrap();
    }
    assert_eq!(fs::read(&file).unwrap(), b"127.0.0.1 localhost\n");
    let after = fs::metadata(&file).unwrap();
    assert_eq!(
        (after.mode(), after.modified().unwrap()),
        (before.mode(), before.modified().unwrap())
    );
    let mut names = [0; 1024];
    let attributes = rustix::fs::llistxattr(&file, &mut names[..]).unwrap_or(0);
    assert!(!String::from_utf8_lossy(&names[..attributes]).contains("user.left"));
    assert_eq!(fs::read_dir(&shared).unwrap().count(), 0);
    assert_eq!(fs::metadata(&shared).unwrap().mode() & 0o7777, 0o1777);
}

#[test]
fn a_mount_that_nobody_knows_is_not_trusted_to_keep_nothing() {
    let known = "1 0 0:1 / / rw,relatime - overlay o rw
2 1 0:2 / /proc rw,nosuid - proc proc rw
3 1 0:3 / /dev/shm rw,nosuid - tmpfs shm rw
4 1 0:4 / /grpo ro,relatime - overlay o ro
5 1 0:4 /x /etc/hosts rw,relatime - ext4 /dev/vda rw
6 1 0:4 /x /dev/null rw,relatime - devtmpfs d rw
";
    assert_eq!(unknown_mount(known), None);
    let cache = format!("{known}7 1 0:4 /y /cache rw,relatime - ext4 /dev/vda rw\n");
    assert_eq!(unknown_mount(&cache), Some("/cache".into()));
}
