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
async fn a_name_is_created_once_and_the_second_writer_learns_it() {
    let mount = tempfile::tempdir().unwrap();
    let store = RunStore::open(mount.path(), "team/demo").unwrap();
    let first = store.create_bytes("a/b.txt", "one").await.unwrap();
    assert_eq!(
        first,
        Created::Written {
            sha256: sha256_hex(b"one")
        }
    );
    assert_eq!(store.create_bytes("a/b.txt", "two").await.unwrap(), Created::Existed);
    assert_eq!(store.bytes("a/b.txt").await.unwrap(), "one");
    assert_eq!(std::fs::read(mount.path().join("team/demo/a/b.txt")).unwrap(), b"one");
}

#[tokio::test]
async fn ranges_and_listings_see_what_was_written() {
    let mount = tempfile::tempdir().unwrap();
    let store = RunStore::open(mount.path(), "team/demo").unwrap();
    for path in ["x/2/c", "x/1/a", "x/b"] {
        store.create_bytes(path, "0123456789").await.unwrap();
    }
    assert_eq!(store.range("x/b", 2..5).await.unwrap(), "234");
    assert_eq!(store.files_below("x").await.unwrap(), ["x/1/a", "x/2/c", "x/b"]);
    let (files, folders) = store.names_in("x").await.unwrap();
    assert_eq!(
        (files, folders),
        (vec!["b".to_owned()], vec!["1".to_owned(), "2".to_owned()])
    );
    assert_eq!(store.length("x/b").await.unwrap(), Some(10));
    assert_eq!(store.length("x/none").await.unwrap(), None);
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
