//! fake-gcs-server 1.56: reading from Google.
//!
//! `object_store` uses Google's XML API. This emulator answers only its reads and listings, ignores conditions of
//! reads, and answers 500 for a missing bucket. So it can test neither a store's guarantees nor multipart uploads: no
//! test has written to a `gs://` store.

use grpo_crds::sources::ObjectStoreSource;
use grpo_object_storage::read_store;
use grpo_testing::emulators::{BUCKET, FakeGcs};

use super::{a_model_and_rows_are_read, secret, weights};
use crate::support::Result;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an emulator: make check-stores"]
async fn a_model_and_rows_arrive_as_they_were_listed_and_a_store_is_read() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = FakeGcs::start(folder.path()).await?;
    for (name, bytes) in [
        ("config.json", &b"{}"[..]),
        ("rows.jsonl", &b"{}\n"[..]),
        ("model.safetensors", &weights(1)[..]),
    ] {
        server.put(&format!("team/demo/{name}"), bytes).await?;
    }
    let keys = folder.path().join("secret");
    secret(&keys, &[("GOOGLE_SERVICE_ACCOUNT_KEY", FakeGcs::key().as_str())]);
    let source = ObjectStoreSource {
        url: format!("gs://{BUCKET}/team/demo"),
        endpoint: Some(server.endpoint.clone()),
        region: None,
        credentials_secret_ref: None,
    };
    let above = ObjectStoreSource {
        url: format!("gs://{BUCKET}/team"),
        ..source.clone()
    };
    let store = read_store(&above, Some(&keys), "demo").await?;
    assert_eq!(
        store.files_below("").await?,
        ["config.json", "model.safetensors", "rows.jsonl"]
    );
    assert!(store.range("model.safetensors", 7..5_000).await? == weights(1)[7..5_000]);
    assert_eq!(store.length("none").await?, None);

    a_model_and_rows_are_read(&source, &keys, async || {
        Ok(server.put("team/demo/model.safetensors", &weights(2)).await?)
    })
    .await
}

/// Why nothing else is tested here. If this fails, the emulator has learnt it: run the guarantees of a store on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs an emulator: make check-stores"]
async fn this_emulator_takes_no_write_of_the_xml_api() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = FakeGcs::start(folder.path()).await?;
    let client = reqwest::Client::new();
    let at = format!("{}/{BUCKET}/object", server.endpoint);
    let create = client.put(&at).header("x-goog-if-generation-match", "0").body("one");
    let begin = client.post(format!("{at}?uploads"));
    for request in [create, begin] {
        let answer = request.send().await?;
        assert_eq!(answer.status(), 400);
        let said = answer.text().await?;
        assert!(said.contains("invalid uploadType"), "{said}");
    }
    Ok(())
}
