use super::*;
use crate::fixture;
use crate::store::Store;
use async_trait::async_trait;
use object_store::ObjectStore;
use std::sync::Arc;

fn opened() -> (tempfile::TempDir, RunStore) {
    let dir = tempfile::tempdir().unwrap();
    fixture::write_store(dir.path());
    std::fs::create_dir_all(dir.path().join("tasks")).unwrap();
    std::fs::write(dir.path().join("tasks/a.json"), "0123456789").unwrap();
    std::fs::write(dir.path().join("tasks/b.json"), "").unwrap();
    std::fs::write(dir.path().join("tasks/c.json"), "c\n{}").unwrap();
    let store = RunStore::existing(dir.path()).unwrap();
    (dir, store)
}

fn whole(paths: &[&str]) -> BulkRequest {
    BulkRequest {
        files: paths.iter().map(|path| FileAt::whole(path)).collect(),
    }
}

/// The bytes up to the first error, and the error.
async fn answered(records: &Records, wanted: BulkRequest) -> (String, Option<BulkError>) {
    let mut stream = records.bulk(wanted).unwrap().boxed();
    let mut text = String::new();
    loop {
        match stream.try_next().await {
            Ok(Some(piece)) => text += std::str::from_utf8(&piece).unwrap(),
            Ok(None) => return (text, None),
            Err(error) => return (text, Some(error)),
        }
    }
}

#[tokio::test]
async fn files_come_in_the_order_of_the_request_each_after_its_line() {
    let (_dir, store) = opened();
    let mut wanted = whole(&["tasks/c.json", "tasks/none.json", "tasks/b.json", "tasks/a.json"]);
    wanted.files[3].from = 2;
    wanted.files[3].to = Some(5);
    let (text, error) = answered(&Records::of(store), wanted).await;
    assert!(error.is_none(), "{error:?}");
    let expected = [
        r#"{"file":{"path":"tasks/c.json","bytes":4}}"#,
        "c",
        r#"{}{"gone":"tasks/none.json"}"#,
        r#"{"file":{"path":"tasks/b.json","bytes":0}}"#,
        r#"{"file":{"path":"tasks/a.json","bytes":3}}"#,
        "234",
    ];
    assert_eq!(text, expected.join("\n"));
}

#[test]
fn a_request_over_a_limit_or_with_a_path_that_is_not_shown_is_refused() {
    let (_dir, store) = opened();
    let records = Records::of(store);
    let BulkLimits { files, path_bytes } = BulkLimits::SERVED;
    let refused = |wanted| records.bulk(wanted).err().map(|refusal| refusal.code);
    let many = |number: usize| whole(&vec!["tasks/a.json"; number]);
    assert_eq!(refused(many(files)), None);
    assert_eq!(refused(many(files + 1)), Some(RefusalCode::TooLarge));
    let longest = format!("models{}", "/a".repeat((path_bytes - "models".len()) / 2));
    assert_eq!(longest.len(), path_bytes);
    assert_eq!(refused(whole(&[&longest])), None);
    for path in [
        format!("{longest}a").as_str(),
        "",
        "/etc/passwd",
        "tasks/../checkpoints/x",
        "checkpoints/a-s000001/manifest.json",
    ] {
        let wanted = whole(&["tasks/a.json", path]);
        assert_eq!(refused(wanted), Some(RefusalCode::BadPath), "{path}");
    }
}

#[test]
fn a_request_at_its_limits_fits_into_a_body() {
    let BulkLimits { files, path_bytes } = BulkLimits::SERVED;
    let file = FileAt {
        path: "x".repeat(path_bytes),
        from: u64::MAX,
        to: Some(u64::MAX),
    };
    let wanted = BulkRequest {
        files: vec![file; files],
    };
    assert!(serde_json::to_vec(&wanted).unwrap().len() <= LONGEST_REQUEST);
}

/// Files become shorter, or are removed, after their length was read.
#[derive(Debug)]
struct Changing {
    inner: RunStore,
    longer: u64,
}

#[async_trait]
impl Store for Changing {
    fn objects(&self) -> &dyn ObjectStore {
        self.inner.objects()
    }

    fn location(&self) -> String {
        self.inner.location()
    }

    async fn length(&self, path: &str) -> Result<Option<u64>, StoreError> {
        let there = self.inner.length(path).await?;
        Ok(Some(there.unwrap_or_default() + self.longer))
    }
}

fn changing(inner: RunStore, longer: u64) -> Records {
    let store: Arc<dyn Store> = Arc::new(Changing { inner, longer });
    Records::of(RunStore::from(store))
}

#[tokio::test]
async fn a_file_that_became_shorter_ends_the_answer_with_an_error() {
    let (_dir, store) = opened();
    let (text, error) = answered(&changing(store, 3), whole(&["tasks/a.json", "tasks/c.json"])).await;
    let error = error.unwrap().to_string();
    assert!(error.contains("tasks/a.json"), "{error}");
    assert!(!text.contains("tasks/c.json"), "{text}");
}

#[tokio::test]
async fn bytes_that_are_fewer_than_announced_are_an_error() {
    let bytes = stream::iter([Ok(Bytes::from_static(b"0123"))]);
    let came: Vec<_> = exactly(bytes.boxed(), 5, "tasks/a.json".to_owned()).collect().await;
    assert_eq!(came.len(), 2);
    let error = came[1].as_ref().unwrap_err().to_string();
    assert!(error.contains("4 bytes came instead of 5"), "{error}");
}

#[tokio::test]
async fn a_file_that_is_removed_after_its_length_was_read_is_gone() {
    let (_dir, store) = opened();
    let (text, error) = answered(&changing(store, 1), whole(&["tasks/none.json"])).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(text, "{\"gone\":\"tasks/none.json\"}\n");
}
