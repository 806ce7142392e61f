use std::fs;

use super::*;

#[test]
fn both_versions_of_control_groups_are_read() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(
        CounterFiles::under(folder.path()).read(&ProcessGuard::default()),
        Counters::default()
    );
    fs::create_dir_all(folder.path().join("memory")).unwrap();
    let version_1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
    fs::write(folder.path().join("memory/memory.oom_control"), version_1).unwrap();
    assert_eq!(
        CounterFiles::under(folder.path())
            .read(&ProcessGuard::default())
            .memory_kills,
        3
    );
    fs::write(
        folder.path().join("memory.events"),
        "oom 9\noom_kill 5\noom_group_kill 1\n",
    )
    .unwrap();
    fs::write(folder.path().join("pids.events"), "max 2\n").unwrap();
    let both = Counters {
        memory_kills: 5,
        process_refusals: 2,
    };
    assert_eq!(CounterFiles::under(folder.path()).read(&ProcessGuard::default()), both);
}

#[test]
fn a_disk_without_room_is_full() {
    use nix::mount::{MntFlags, MsFlags, mount, umount2};
    let folder = tempfile::tempdir().unwrap();
    let nothing = None::<&str>;
    if mount(
        nothing,
        folder.path(),
        Some("tmpfs"),
        MsFlags::empty(),
        Some("size=256k"),
    )
    .is_err()
    {
        eprintln!("left out: this user may not mount");
        return;
    }
    let before = is_full(folder.path());
    let filled = fs::write(folder.path().join("much"), vec![0; 1 << 20]);
    let after = is_full(folder.path());
    umount2(folder.path(), MntFlags::MNT_DETACH).unwrap();
    assert!(filled.is_err() && !before && after);
}
