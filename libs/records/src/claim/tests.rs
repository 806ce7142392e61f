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
