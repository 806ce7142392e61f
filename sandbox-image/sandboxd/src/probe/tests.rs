use super::*;

#[test]
fn the_bounds_of_both_versions_of_control_groups_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let uids = root.join("uid_map");
    let write = |file: &str, text: &str| {
        let file = root.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    };
    assert_eq!(limits(root, &uids), Limits::default());
    write("uid_map", "         0          0 4294967295\n");
    write("memory/memory.limit_in_bytes", "9223372036854771712\n");
    write("cpu/cpu.cfs_quota_us", "-1\n");
    write("cpu/cpu.cfs_period_us", "100000\n");
    write("pids/pids.max", "max\n");
    assert_eq!(limits(root, &uids), Limits::default(), "nothing is bounded");
    write("memory/memory.limit_in_bytes", "1073741824\n");
    write("cpu/cpu.cfs_quota_us", "50000\n");
    write("pids/pids.max", "512\n");
    let bounded = Limits {
        memory_bytes: Some(1 << 30),
        cpu_millis: Some(500),
        processes: Some(512),
        user_namespace: false,
    };
    assert_eq!(limits(root, &uids), bounded);
    write("memory.max", "2147483648\n");
    write("cpu.max", "150000 100000\n");
    write("pids.max", "1024\n");
    write("uid_map", "0 65536 65536\n");
    let later = Limits {
        memory_bytes: Some(2 << 30),
        cpu_millis: Some(1500),
        processes: Some(1024),
        user_namespace: true,
    };
    assert_eq!(limits(root, &uids), later);
    write("cpu.max", "max 100000\n");
    assert_eq!(limits(root, &uids).cpu_millis, None);
    write("pids.max", "max\n");
    fs::remove_file(root.join("pids/pids.max")).unwrap();
    assert_eq!(
        limits(root, &uids).processes,
        None,
        "what one user may have bounds no sandbox in which there can be many"
    );
}
