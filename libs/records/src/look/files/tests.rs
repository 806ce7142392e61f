use super::*;
use crate::fixture;
use futures::TryStreamExt;

fn opened() -> (tempfile::TempDir, Records) {
    let dir = tempfile::tempdir().unwrap();
    fixture::write_store(dir.path());
    let records = Records::open(dir.path()).unwrap();
    (dir, records)
}

async fn bytes(records: &Records, wanted: &FileAt) -> Vec<u8> {
    let (length, stream) = records.file(wanted).unwrap();
    let pieces: Vec<Bytes> = stream.try_collect().await.unwrap();
    let bytes = pieces.concat();
    assert_eq!(bytes.len() as u64, length);
    bytes
}

#[test]
fn files_of_a_folder_come_with_their_sizes_and_unfinished_ones_do_not() {
    let (dir, records) = opened();
    std::fs::create_dir_all(dir.path().join("tasks/bases")).unwrap();
    std::fs::write(dir.path().join("tasks/train.json"), "{}").unwrap();
    std::fs::write(dir.path().join("tasks/train.jsonl#1"), "half").unwrap();
    std::fs::write(dir.path().join("tasks/bases/ab"), "c").unwrap();
    let wanted = |after: Option<&str>| FilesOf {
        folder: "tasks".into(),
        after: after.map(str::to_owned),
    };
    let page = records.files(&wanted(None)).unwrap();
    let found: Vec<_> = page.files.iter().map(|file| (file.path.as_str(), file.bytes)).collect();
    assert_eq!(
        (found, page.next),
        (vec![("tasks/bases/ab", 1), ("tasks/train.json", 2)], None)
    );
    let behind = records.files(&wanted(Some("tasks/bases/ab"))).unwrap();
    assert_eq!(behind.files.len(), 1);
    let none = FilesOf {
        folder: "weights/a-v9".into(),
        after: None,
    };
    assert_eq!(records.files(&none).unwrap(), FilePage::default());
}

#[test]
fn pages_of_a_large_folder_have_each_file_once() {
    let (dir, records) = opened();
    let folder = dir.path().join("tasks/bases");
    std::fs::create_dir_all(&folder).unwrap();
    for number in 0..=FILES_A_PAGE {
        std::fs::write(folder.join(format!("{number:06}")), "").unwrap();
    }
    let page = |after: Option<String>| {
        let folder = "tasks".into();
        records.files(&FilesOf { folder, after }).unwrap()
    };
    let first = page(None);
    assert_eq!(first.files.len(), FILES_A_PAGE);
    let last = page(first.next);
    assert_eq!((last.files.len(), last.next), (1, None));
    assert_eq!(last.files[0].path, format!("tasks/bases/{FILES_A_PAGE:06}"));
}

#[tokio::test]
async fn a_file_comes_whole_or_from_a_byte_to_another() {
    let (dir, records) = opened();
    std::fs::create_dir_all(dir.path().join("tasks")).unwrap();
    std::fs::write(dir.path().join("tasks/train.json"), "0123456789").unwrap();
    let part = |from, to| FileAt {
        path: "tasks/train.json".into(),
        from,
        to,
    };
    for (wanted, expected) in [
        (part(0, None), "0123456789"),
        (part(4, None), "456789"),
        (part(4, Some(6)), "45"),
        (part(4, Some(99)), "456789"),
        (part(10, None), ""),
        (part(99, None), ""),
    ] {
        assert_eq!(bytes(&records, &wanted).await, expected.as_bytes(), "{wanted:?}");
    }
}

#[test]
fn paths_that_climb_or_lead_to_checkpoints_are_refused() {
    let (dir, records) = opened();
    std::fs::create_dir_all(dir.path().join("checkpoints/a-s000001")).unwrap();
    std::fs::write(dir.path().join("checkpoints/a-s000001/manifest.json"), "{}").unwrap();
    for path in [
        "",
        "/etc/passwd",
        "..",
        "tasks/../checkpoints",
        "tasks//train.json",
        "checkpoints/a-s000001/manifest.json",
        ".staging/x",
        "hub/x",
    ] {
        let refusal = records.file(&FileAt::whole(path)).err().unwrap();
        assert_eq!(refusal.code, RefusalCode::BadPath, "{path}");
        let folder = FilesOf {
            folder: path.into(),
            after: None,
        };
        assert_eq!(records.files(&folder).unwrap_err().code, RefusalCode::BadPath, "{path}");
    }
    let refusal = records.file(&FileAt::whole("tasks/none.json")).err().unwrap();
    assert_eq!(refusal.code, RefusalCode::NotThere);
}
