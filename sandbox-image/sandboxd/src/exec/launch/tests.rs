use super::*;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use std::os::unix::fs::symlink;

#[test]
fn a_pipe_in_the_place_of_a_table_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let (pipe, link) = (folder.path().join("passwd"), folder.path().join("group"));
    mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    symlink("/dev/zero", &link).unwrap();
    for file in [&pipe, &link, folder.path()] {
        assert!(table(file).is_err(), "{}", file.display());
    }
}

#[test]
fn of_a_table_without_end_only_the_beginning_is_read() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(64 << 30).unwrap();
    assert_eq!(table(file.path()).unwrap().len() as u64, TABLE);
}

#[test]
fn users_are_found_by_name_and_by_number_and_unknown_numbers_are_users_too() {
    let users = "root:x:0:0:root:/root:/bin/sh\nbroken\nagent:x:1000:1001:,,,:/home/agent:/bin/bash\n";
    let groups = "root:x:0:\nwheel:x:10:agent\n";
    let found = |wanted| User::among(wanted, users, groups).map(|user| (user.uid, user.gid));
    assert_eq!(found("agent"), Some((1000, 1001)));
    assert_eq!(found("1000"), Some((1000, 1001)));
    assert_eq!(found("agent:wheel"), Some((1000, 10)));
    assert_eq!(found("agent:5"), Some((1000, 5)));
    assert_eq!(found("4242"), Some((4242, 4242)));
    for missing in ["nobody", "", "agent:none", ":wheel", "-1"] {
        assert_eq!(found(missing), None, "{missing:?}");
    }
    assert_eq!(
        User::among("agent", users, groups).unwrap().home.as_deref(),
        Some("/home/agent")
    );
}
