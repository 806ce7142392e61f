use super::*;
use grpo_records::paths;

async fn served() -> (tempfile::TempDir, String) {
    let mount = tempfile::tempdir().unwrap();
    let store = RunStore::open(mount.path(), "n/r").unwrap();
    store
        .create_bytes(&paths::weights_file("a-v1", "model.safetensors"), "0123456789")
        .await
        .unwrap();
    store.create_bytes("journal/0000000001.json", "{}").await.unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (board, metrics) = (Board::new("uid-1", 3), Arc::new(Metrics::default()));
    let router = router(&store, board, metrics, watch::channel(None).1);
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    (mount, url)
}

#[tokio::test]
async fn weights_are_served_whole_and_from_where_a_pull_broke_off() {
    let (_mount, url) = served().await;
    let file = format!("{url}/weights/a-v1/model.safetensors");
    let whole = reqwest::get(&file).await.unwrap();
    assert_eq!(
        (whole.status().as_u16(), whole.text().await.unwrap().as_str()),
        (200, "0123456789")
    );
    let rest = reqwest::Client::new()
        .get(&file)
        .header("range", "bytes=4-")
        .send()
        .await
        .unwrap();
    assert_eq!(rest.headers()["content-range"], "bytes 4-9/10");
    assert_eq!(
        (rest.status().as_u16(), rest.text().await.unwrap().as_str()),
        (206, "456789")
    );
}

#[tokio::test]
async fn nothing_but_weights_leaves_the_store() {
    let (_mount, url) = served().await;
    for path in [
        "/weights/../journal/0000000001.json",
        "/weights/%2e%2e/journal/0000000001.json",
        "/weights/a-v2/x",
    ] {
        assert_eq!(
            reqwest::get(format!("{url}{path}")).await.unwrap().status().as_u16(),
            404,
            "{path}"
        );
    }
}

#[tokio::test]
async fn health_numbers_and_progress_are_there() {
    let (_mount, url) = served().await;
    assert_eq!(
        reqwest::get(format!("{url}/healthz"))
            .await
            .unwrap()
            .text()
            .await
            .unwrap(),
        "ok"
    );
    let numbers = reqwest::get(format!("{url}/metrics"))
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    assert!(numbers.contains("grpo_driver_iteration 0"), "{numbers}");
    let progress: serde_json::Value = reqwest::get(format!("{url}/v1/progress"))
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(
        (progress["runUid"].as_str(), progress["display"]["iteration"].as_str()),
        (Some("uid-1"), Some("0/3"))
    );
}
