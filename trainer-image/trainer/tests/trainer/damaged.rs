//! Published versions whose files are damaged.

use crate::common::alone;
use crate::store::publish;
use grpo_records::paths;
use grpo_trainer::state::TrainerStore;

#[test]
fn a_version_whose_manifest_is_damaged_is_named_counts_for_no_reader_and_is_removed_like_others() {
    let folder = tempfile::tempdir().unwrap();
    let store = TrainerStore::existing(folder.path()).unwrap();
    let weights = alone().weights().unwrap();
    for step in 0..=20 {
        publish(&store, &weights, folder.path(), step, None).unwrap();
    }
    let manifest = |step: u32| paths::weights_manifest(&paths::weights_version("l1", step));
    let spoil = |step: u32, text: &[u8]| std::fs::write(folder.path().join(manifest(step)), text).unwrap();
    let of_another = std::fs::read(folder.path().join(manifest(7))).unwrap();
    spoil(1, b"");
    spoil(18, b"{\"version\": \"l1-");
    spoil(20, &of_another);
    std::fs::create_dir_all(folder.path().join("weights/notes")).unwrap();
    std::fs::write(folder.path().join("weights/notes/manifest.json"), "mine").unwrap();

    let (readable, damaged) = store.published().unwrap();
    let steps: Vec<u32> = damaged.iter().map(|version| version.step).collect();
    assert_eq!((readable.len(), steps.len()), (18, 3), "{steps:?}");
    for version in &damaged {
        assert_eq!(
            (version.lineage.as_str(), &version.file.path),
            ("l1", &manifest(version.step))
        );
    }
    assert_eq!(store.versions().unwrap(), readable);

    store.prune_versions().unwrap();
    assert!(!folder.path().join(paths::weights("l1-v1")).exists());
    for step in [18, 20] {
        assert!(folder.path().join(manifest(step)).exists(), "{step}");
    }
}

#[test]
fn a_version_with_a_damaged_manifest_or_a_cut_file_is_written_again_in_whole() {
    let folder = tempfile::tempdir().unwrap();
    let store = TrainerStore::existing(folder.path()).unwrap();
    let weights = alone().weights().unwrap();
    let of = |parent: Option<&str>| publish(&store, &weights, folder.path(), 1, parent.map(str::to_owned)).unwrap();
    let again = || of(Some("l1-v0"));
    let first = again();
    let manifest = folder.path().join(paths::weights_manifest("l1-v1"));
    let model = folder.path().join(paths::weights_file("l1-v1", "model.safetensors"));
    let whole = std::fs::read(&model).unwrap();

    std::fs::write(&manifest, "{").unwrap();
    assert_eq!(again(), first);
    std::fs::write(&model, &whole[..whole.len() / 2]).unwrap();
    assert_eq!(again(), first);
    assert_eq!(std::fs::read(&model).unwrap(), whole);
    std::fs::remove_file(&model).unwrap();
    // The manifest is sound, and stays: the journal has its checksum. An attempt that began at a checkpoint of this
    // step knows no parent.
    assert_eq!(of(None), first);
    assert_eq!(std::fs::read(&model).unwrap(), whole);
}
