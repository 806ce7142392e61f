use super::*;
use std::fs;
use std::os::unix::fs::symlink;

const FOLLOWED: Links = Links::Followed;

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn only_plain_absolute_paths_are_taken() {
    for path in ["", "relative", "/a/../etc/passwd", "/", "/a/..", "/a\0b"] {
        assert!(checked(path).is_err(), "{path:?}");
    }
    assert!(checked("/tmp/patch.diff").is_ok());
}

#[tokio::test]
async fn files_put_into_one_folder_at_the_same_time_do_not_mix() {
    let folder = tempfile::tempdir().unwrap();
    let path = |nth: usize| folder.path().join(format!("{nth:02}")).to_str().unwrap().to_owned();
    let bytes = |nth: usize| Bytes::from(vec![nth as u8; 100_000]);
    let puts = (0..32).map(|nth| async move { put(&path(nth), None, FOLLOWED, bytes(nth)).await });
    for done in futures::future::join_all(puts).await {
        done.unwrap();
    }
    for nth in 0..32 {
        assert_eq!(get(&path(nth), FOLLOWED).await.unwrap(), bytes(nth));
    }
    assert_eq!(names(folder.path()).len(), 32);
}

#[tokio::test]
async fn a_file_that_cannot_be_placed_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let taken = folder.path().join("taken");
    fs::create_dir(&taken).unwrap();
    let put = put(taken.to_str().unwrap(), None, FOLLOWED, Bytes::from_static(b"x")).await;
    assert!(matches!(put, Err(FileError::Io { doing: "placing", .. })), "{put:?}");
    assert_eq!(names(folder.path()), ["taken"]);
}

#[tokio::test]
async fn a_pipe_in_the_way_is_no_file_and_holds_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    let got = get(pipe.to_str().unwrap(), FOLLOWED).await;
    assert!(matches!(got, Err(FileError::NotAFile(_))), "{got:?}");
}

#[tokio::test]
async fn links_are_followed_unless_the_caller_wants_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::create_dir(path("real")).unwrap();
    fs::write(path("real/file"), "real").unwrap();
    symlink(path("real"), path("way")).unwrap();
    symlink(path("real/file"), path("link")).unwrap();
    for linked in ["way/file", "link"] {
        assert_eq!(get(&path(linked), FOLLOWED).await.unwrap(), b"real");
        assert!(get(&path(linked), Links::Refused).await.is_err(), "{linked}");
    }
    assert_eq!(get(&path("real/file"), Links::Refused).await.unwrap(), b"real");
    let new = || Bytes::from_static(b"new");
    assert!(put(&path("way/other"), None, Links::Refused, new()).await.is_err());
    put(&path("deep/down/file"), None, Links::Refused, new()).await.unwrap();
    put(&path("way/other"), None, FOLLOWED, new()).await.unwrap();
    assert_eq!(names(&folder.path().join("real")), ["file", "other"]);
    // The link itself is replaced, not its target.
    put(&path("link"), None, Links::Refused, new()).await.unwrap();
    assert_eq!(fs::read_to_string(path("real/file")).unwrap(), "real");
    assert_eq!(fs::read_to_string(path("link")).unwrap(), "new");
}

#[tokio::test]
async fn what_the_kernel_shows_of_sandboxd_is_not_given_out() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("patch.diff");
    symlink("/proc/self/environ", &link).unwrap();
    for path in [link.to_str().unwrap(), "/proc/self/environ"] {
        assert!(
            matches!(get(path, FOLLOWED).await, Err(FileError::NotAFile(_))),
            "{path}"
        );
    }
}

#[tokio::test]
async fn no_link_of_proc_is_followed_to_what_a_process_holds_open() {
    let folder = tempfile::tempdir().unwrap();
    let secret = fs::File::create(folder.path().join("secret")).unwrap();
    let held = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&secret));
    assert!(fs::read(&held).is_ok());
    let link = folder.path().join("link");
    symlink(&held, &link).unwrap();
    for path in [held.as_str(), link.to_str().unwrap()] {
        let got = get(path, FOLLOWED).await;
        assert!(matches!(got, Err(FileError::Io { doing: "opening", .. })), "{got:?}");
    }
}
