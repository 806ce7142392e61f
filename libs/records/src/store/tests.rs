//! What only a folder on a volume has, and errors. [`conformance`] has what every backend guarantees.

mod conformance;

use super::*;

#[test]
fn a_full_volume_is_named_with_what_to_do() {
    let failed = |kind: std::io::ErrorKind| {
        let source = Box::new(std::io::Error::from(kind));
        access(
            "writing",
            "journal/1",
            object_store::Error::Generic { store: "local", source },
        )
        .to_string()
    };
    assert!(failed(std::io::ErrorKind::StorageFull).contains("enlarge its claim"));
    assert!(!failed(std::io::ErrorKind::PermissionDenied).contains("enlarge"));
}

#[tokio::test]
async fn a_file_lies_below_the_mount_where_its_path_says() {
    let mount = tempfile::tempdir().unwrap();
    let store = RunStore::open(mount.path(), "team/demo").unwrap();
    store.create_bytes("a/b.txt", "one").await.unwrap();
    assert_eq!(std::fs::read(mount.path().join("team/demo/a/b.txt")).unwrap(), b"one");
}

#[test]
fn a_root_that_climbs_out_is_refused() {
    let mount = tempfile::tempdir().unwrap();
    for root in ["../other", "", "/etc", "a//b", "a/.."] {
        assert!(matches!(
            RunStore::open(mount.path(), root),
            Err(StoreError::Root { .. })
        ));
    }
}

#[tokio::test]
async fn no_path_climbs_out_of_the_store() {
    let mount = tempfile::tempdir().unwrap();
    std::fs::write(mount.path().join("secret"), "s").unwrap();
    let store = RunStore::open(mount.path(), "team/demo").unwrap();
    for path in ["../../secret", "/../../secret", "x/../../../secret"] {
        assert!(store.bytes(path).await.is_err(), "{path}");
        let _ = store.append(path, Bytes::from_static(b"x")).await;
        let _ = store.delete(path).await;
        let _ = store.delete_folder("../..").await;
        assert_eq!(std::fs::read(mount.path().join("secret")).unwrap(), b"s", "{path}");
    }
}

#[tokio::test]
async fn a_volume_gives_the_file_itself_to_readers_of_paths() {
    let mount = tempfile::tempdir().unwrap();
    let store = RunStore::open(mount.path(), "team/demo").unwrap();
    store.create_bytes("grade.log", "1 passed").await.unwrap();
    let file = store.local_copy("grade.log").await.unwrap();
    assert_eq!(file.path(), mount.path().join("team/demo/grade.log"));
}

#[test]
fn a_thread_without_a_runtime_waits_for_its_answers() {
    let mount = tempfile::tempdir().unwrap();
    let store = RunStore::open(mount.path(), "team/demo").unwrap();
    wait(store.append("log", Bytes::from_static(b"one"))).unwrap();
    assert_eq!(wait(store.bytes("log")).unwrap(), "one");
    wait(store.delete("log")).unwrap();
    assert_eq!(wait(store.length("log")).unwrap(), None);
}
