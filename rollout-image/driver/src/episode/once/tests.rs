use super::*;

#[tokio::test]
async fn a_file_of_another_driver_stops_this_one_and_its_own_does_not() {
    let mount = tempfile::tempdir().unwrap();
    let store = RunStore::open(mount.path(), "n/r").unwrap();
    let (path, writer) = ("rollouts/iter-000001/a__g0__i0/turns/000.json", Writer::driver(2));
    for _ in 0..2 {
        create(&store, &writer, path, &Writer::driver(1)).await.unwrap();
    }
    let error = create(&store, &writer, path, &writer).await.unwrap_err().to_string();
    assert!(error.contains(path) && error.contains("another driver"), "{error}");
    assert_eq!(store.bytes(path).await.unwrap(), "{\"role\":\"Driver\",\"epoch\":1}\n");
}
