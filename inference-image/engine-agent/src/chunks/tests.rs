use super::*;

const CHUNK: u64 = Relay::CHUNK;
const FILE: &str = "model.safetensors";
const SHA: &str = "5a";

#[test]
fn chunks_cover_a_file_without_gap_or_overlap() {
    for bytes in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK, 5 * CHUNK + 17] {
        let lengths: Vec<u64> = (0..chunks_of(bytes)).map(|chunk| length_of(chunk, bytes)).collect();
        assert_eq!(lengths.iter().sum::<u64>(), bytes);
        assert!(
            lengths.iter().all(|length| (1..=CHUNK).contains(length)),
            "{bytes}: {lengths:?}"
        );
        assert_eq!(length_of(chunks_of(bytes), bytes), 0);
        assert_eq!(length_of(u64::MAX, bytes), 0);
    }
}

/// A shelf over a new folder, and the place of a file of two chunks there, the second one of 5 bytes.
fn shelf() -> (tempfile::TempDir, Shelf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let shelf = Shelf::new(Cache::new(dir.path().to_owned()));
    let whole = dir.path().join("a-v1").join(FILE);
    std::fs::create_dir(dir.path().join("a-v1")).unwrap();
    std::fs::write(growing(&whole), vec![1; CHUNK as usize + 5]).unwrap();
    (dir, shelf, whole)
}

#[tokio::test]
async fn a_chunk_on_its_way_is_waited_for_and_one_of_an_ended_pull_is_not() {
    let (_dir, shelf, whole) = shelf();
    let copy = shelf.grows(&whole, SHA, vec![true, false], vec![false, true]);
    assert_eq!(shelf.chunk("a-v1", FILE, SHA, 0).await.unwrap().bytes, CHUNK);

    let waiting = tokio::spawn({
        let shelf = shelf.clone();
        async move { shelf.chunk("a-v1", FILE, SHA, 1).await }
    });
    tokio::task::yield_now().await;
    copy.has(1);
    assert_eq!(waiting.await.unwrap().unwrap().bytes, 5);

    // The pull fails: its copy is thrown away.
    std::fs::remove_file(growing(&whole)).unwrap();
    drop(copy);
    let error = shelf.chunk("a-v1", FILE, SHA, 0).await.unwrap_err();
    assert!(matches!(error, NoChunk::NotHere { .. }), "{error}");
    // A later one ends well.
    std::fs::write(&whole, vec![2; 3]).unwrap();
    let error = shelf.chunk("a-v1", FILE, SHA, 0).await.unwrap_err();
    assert!(matches!(error, NoChunk::NotHere { .. }), "it is not verified: {error}");
    shelf.has(&whole, SHA);
    assert_eq!(shelf.chunk("a-v1", FILE, SHA, 0).await.unwrap().bytes, 3);
}

#[tokio::test]
async fn only_chunks_that_this_agent_fetches_from_the_source_are_waited_for() {
    let (_dir, shelf, whole) = shelf();
    let _copy = shelf.grows(&whole, SHA, vec![false, false], vec![true, false]);
    let error = shelf.chunk("a-v1", FILE, SHA, 1).await.unwrap_err();
    assert!(matches!(error, NoChunk::NotOwn { .. }), "{error}");
}

#[tokio::test]
async fn files_of_a_pull_that_come_later_are_asked_for_again_and_others_at_the_source() {
    let (dir, shelf, _whole) = shelf();
    let later = |name: &str| dir.path().join("a-v1").join(name);
    let ask = async |name: &str| shelf.chunk("a-v1", name, SHA, 0).await.unwrap_err();
    let pulling = shelf.pulls("a-v1", HashSet::from([later("later.safetensors")]));
    let error = ask("later.safetensors").await;
    assert!(matches!(error, NoChunk::NotYet { .. }), "{error}");
    // This agent makes it from a delta, until that fails.
    let error = ask("made.safetensors").await;
    assert!(matches!(error, NoChunk::NotOwn { .. }), "{error}");
    pulling.fetches(&later("made.safetensors"), &later("later.safetensors"));
    let error = ask("made.safetensors").await;
    assert!(matches!(error, NoChunk::NotYet { .. }), "{error}");
    let error = ask("later.safetensors").await;
    assert!(matches!(error, NoChunk::NotOwn { .. }), "{error}");
    drop(pulling);
    let error = ask("later.safetensors").await;
    assert!(matches!(error, NoChunk::NotHere { .. }), "{error}");
}

#[tokio::test]
async fn files_that_a_pulled_version_did_not_need_are_asked_for_at_the_source() {
    let (dir, shelf, _whole) = shelf();
    let place = |name: &str| dir.path().join("a-v1").join(name);
    let ask = async |version: &str, name: &str| shelf.chunk(version, name, SHA, 0).await.unwrap_err();
    shelf.pulls("a-v1", HashSet::from([place(FILE)])).complete();
    let error = ask("a-v1", "unused.delta").await;
    assert!(matches!(error, NoChunk::NotOwn { .. }), "{error}");
    // The order of another version may still come, and one of another version of this name.
    let error = ask("a-v2", "unused.delta").await;
    assert!(matches!(error, NoChunk::NotHere { .. }), "{error}");
    shelf.has(&place(FILE), "a5");
    let error = ask("a-v1", FILE).await;
    assert!(matches!(error, NoChunk::NotHere { .. }), "{error}");
    // The version is pulled again, and this pull fails.
    drop(shelf.pulls("a-v1", HashSet::new()));
    let error = ask("a-v1", "unused.delta").await;
    assert!(matches!(error, NoChunk::NotHere { .. }), "{error}");
}
