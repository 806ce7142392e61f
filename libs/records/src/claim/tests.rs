use super::*;

async fn held(store: &RunStore, name: &str) -> Claim {
    let claim = Claim::new(store.clone(), name.to_owned());
    claim.take().await.unwrap();
    claim
}

#[tokio::test]
async fn under_a_claim_files_get_their_names_and_nothing_staged_stays() {
    let mount = tempfile::tempdir().unwrap();
    let store = RunStore::open(mount.path(), "n/r").unwrap();
    let claim = held(&store, "uid_1_0").await;
    claim.replace("a/one", "1".into()).await.unwrap();
    claim.replace("a/one", "2".into()).await.unwrap();
    let mut upload = claim.upload("a/two").await.unwrap();
    upload.write(b"two").await.unwrap();
    let uploaded = upload.finish().await.unwrap();
    assert_eq!(uploaded.bytes, 3);
    assert_eq!(store.bytes("a/one").await.unwrap(), "2");
    assert_eq!(store.bytes("a/two").await.unwrap(), "two");
    assert_eq!(
        store.files_below(paths::STAGING).await.unwrap(),
        [".staging/uid_1_0/claim"]
    );
    assert_eq!(Claim::all(&store).await.unwrap(), ["uid_1_0"]);
}

#[tokio::test]
async fn after_a_withdrawal_no_write_changes_anything_wherever_it_was() {
    let mount = tempfile::tempdir().unwrap();
    let store = RunStore::open(mount.path(), "n/r").unwrap();
    let old = held(&store, "uid_1_0").await;
    old.replace("there", "old".into()).await.unwrap();
    let begun = old.upload("begun").await.unwrap();
    let staged = old.staged("staged");
    store.replace(&staged, "late".into()).await.unwrap();

    // The next attempt knows no more than the name.
    let other = Claim::new(store.clone(), "uid_1_0".to_owned());
    other.withdraw().await.unwrap();
    assert_eq!(Claim::all(&store).await.unwrap(), Vec::<String>::new());
    let new = held(&store, "uid_2_0").await;
    for late in [
        old.replace("there", "late".into()).await,
        old.upload("there").await.map(|_| ()),
        begun.finish().await.map(|_| ()),
        // Between its last look and the rename.
        old.explained("there", store.rename(&staged, "there").await).await,
    ] {
        assert!(matches!(late, Err(ClaimError::Withdrawn { .. })), "{late:?}");
    }
    assert_eq!(store.bytes("there").await.unwrap(), "old");
    assert!(!store.exists("begun").await.unwrap());
    new.replace("there", "new".into()).await.unwrap();
    assert_eq!(store.bytes("there").await.unwrap(), "new");
}
