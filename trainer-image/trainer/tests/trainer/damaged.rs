//! Published versions whose files are damaged or missing.

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

#[test]
fn chat_templates_with_names_are_published_apart_from_what_engines_pull_and_again_if_one_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let templates = folder.path().join("additional_chat_templates");
    std::fs::create_dir(&templates).unwrap();
    for name in ["tool_use.jinja", "rag.jinja", "not a plain name.jinja", "notes.txt"] {
        std::fs::write(templates.join(name), name).unwrap();
    }
    let store = TrainerStore::existing(folder.path()).unwrap();
    let weights = alone().weights().unwrap();
    let (manifest, checksum) = publish(&store, &weights, folder.path(), 1, None).unwrap();
    let names: Vec<&str> = manifest.chat_templates.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["rag.jinja", "tool_use.jinja"]);
    assert!(manifest.files.iter().all(|file| !file.name.ends_with(".jinja")));
    let published = |name: &str| {
        let path = format!("additional_chat_templates/{name}");
        folder.path().join(paths::weights_file("l1-v1", &path))
    };
    assert_eq!(std::fs::read_to_string(published("rag.jinja")).unwrap(), "rag.jinja");
    assert!(!published("not a plain name.jinja").exists() && !published("notes.txt").exists());

    std::fs::remove_file(published("tool_use.jinja")).unwrap();
    let again = publish(&store, &weights, folder.path(), 1, None).unwrap();
    assert_eq!(again, (manifest, checksum));
    assert!(published("tool_use.jinja").exists());
}

/// Its manifest is known by its checksum.
#[test]
fn a_version_of_a_release_without_chat_templates_with_names_keeps_its_manifest() {
    let folder = tempfile::tempdir().unwrap();
    let store = TrainerStore::existing(folder.path()).unwrap();
    let weights = alone().weights().unwrap();
    let first = publish(&store, &weights, folder.path(), 1, None).unwrap();
    let templates = folder.path().join("additional_chat_templates");
    std::fs::create_dir(&templates).unwrap();
    std::fs::write(templates.join("tool_use.jinja"), "tools").unwrap();
    let cut = folder.path().join(paths::weights_file("l1-v1", "model.safetensors"));
    std::fs::remove_file(&cut).unwrap();
    assert_eq!(publish(&store, &weights, folder.path(), 1, None).unwrap(), first);
    assert!(cut.exists());
}
