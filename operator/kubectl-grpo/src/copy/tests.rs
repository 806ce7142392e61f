//! Copies of a store in a folder.

use super::*;
use crate::arguments::{Arguments, What};
use clap::Parser;
use grpo_records::fixture;
use grpo_records::look::Records;
use grpo_records::store::sha256_hex;
use serde_json::json;
use std::fs;

struct Store {
    dir: tempfile::TempDir,
    dest: tempfile::TempDir,
}

impl Store {
    /// The fixture's episodes, a report, and an adapter of two versions.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fixture::write_store(dir.path());
        fixture::write_rewards(dir.path());
        let write = |path: &str, bytes: &[u8]| {
            let file = dir.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, bytes).unwrap();
        };
        write("tasks/train.json", b"{\"set\":\"train\"}");
        for step in [1, 2] {
            let weights = format!("weights of step {step}");
            let files = [
                ("adapter_model.safetensors", weights.as_bytes()),
                ("adapter_config.json", b"{}"),
            ];
            let listed: Vec<_> = files
                .iter()
                .map(|(name, bytes)| json!({"name": name, "bytes": bytes.len(), "sha256": sha256_hex(bytes)}))
                .collect();
            let manifest = json!({"version": format!("l1-v{step}"), "lineage": "l1", "step": step, "files": listed, "tensorsSha256": "00"});
            files
                .iter()
                .for_each(|(name, bytes)| write(&format!("weights/l1-v{step}/{name}"), bytes));
            write(
                &format!("weights/l1-v{step}/manifest.json"),
                manifest.to_string().as_bytes(),
            );
        }
        let dest = tempfile::tempdir().unwrap();
        Self { dir, dest }
    }

    async fn copied(&self, flags: &str) -> Result<Copied, String> {
        let dest = self.dest.path().display();
        let words = format!("grpo copy demo {dest} {flags}");
        let What::Copy(asked) = Arguments::try_parse_from(words.split_whitespace()).unwrap().what else {
            panic!("{words}");
        };
        let mut source = Source::Folder(Records::open(self.dir.path()).unwrap());
        copy(&mut source, &asked).await.map_err(|error| error.to_string())
    }

    fn here(&self, path: &str) -> PathBuf {
        self.dest.path().join(path)
    }
}

#[tokio::test]
async fn a_copy_without_kinds_has_all_records_and_no_weights_and_can_be_shown() {
    let store = Store::new();
    let done = store.copied("").await.unwrap();
    assert!(done.files > 5 && done.kept == 0 && done.weights.is_none(), "{done:?}");
    assert!(store.here("journal/0000000001.json").is_file() && store.here("tasks/train.json").is_file());
    assert!(!store.here("weights").exists());
    let opened = crate::records::folder(store.dest.path()).unwrap();
    let Source::Folder(records) = opened.source else {
        panic!()
    };
    let path = "rollouts/iter-000001/psf__requests-1__g0__i0";
    assert!(records.episode(path).unwrap().told.is_some());
}

#[tokio::test]
async fn a_second_call_fetches_nothing_and_a_part_is_continued() {
    let store = Store::new();
    let first = store.copied("--rows --weights").await.unwrap();
    assert_eq!((first.files, first.kept), (4, 0));
    assert_eq!(first.weights, Some(store.here("weights/l1-v2")));
    let second = store.copied("--rows --weights").await.unwrap();
    assert_eq!((second.files, second.kept, second.bytes), (0, 4, 0));
    let file = store.here("weights/l1-v2/adapter_model.safetensors");
    fs::remove_file(&file).unwrap();
    fs::write(output::part(&file), b"weights ").unwrap();
    let third = store.copied("--rows --weights").await.unwrap();
    assert_eq!((third.files, third.kept, third.bytes), (1, 3, 9));
    assert_eq!(fs::read(&file).unwrap(), b"weights of step 2");
    assert!(!output::part(&file).exists());
}

#[tokio::test]
async fn weights_that_do_not_have_their_checksum_never_get_their_name() {
    let store = Store::new();
    let file = store.dir.path().join("weights/l1-v1/adapter_model.safetensors");
    fs::write(file, b"weights of step X").unwrap();
    let error = store.copied("--weights l1-v1").await.unwrap_err();
    assert!(
        error.contains("weights/l1-v1/adapter_model.safetensors came with SHA-256"),
        "{error}"
    );
    let here = store.here("weights/l1-v1/adapter_model.safetensors");
    assert!(!here.exists() && !output::part(&here).exists());
    assert!(!store.here("weights/l1-v1/manifest.json").exists());
}

#[tokio::test]
async fn rows_of_an_episode_are_checked_against_its_record() {
    let store = Store::new();
    let rows = "rollouts/iter-000001/psf__requests-1__g0__i0/rows.safetensors";
    let mut bytes = fs::read(store.dir.path().join(rows)).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(store.dir.path().join(rows), bytes).unwrap();
    let error = store.copied("--episodes").await.unwrap_err();
    assert!(error.contains(rows) && error.contains("SHA-256"), "{error}");
    assert!(!store.here(rows).exists());
}

#[tokio::test]
async fn a_format_or_a_version_that_is_not_there_copies_nothing() {
    let store = Store::new();
    for (flags, part) in [
        (
            "--rows --weights l9-v9",
            "no weights l9-v9 in its store; it has: l1-v1, l1-v2",
        ),
        (
            "--rows --weights --format hf",
            "weights l1-v2 are an adapter; give --format adapter",
        ),
        ("--rows --weights --format merged", "give --base DIR"),
    ] {
        let error = store.copied(flags).await.unwrap_err();
        assert!(error.contains(part), "{error}");
    }
    assert!(!store.here("tasks").exists());
}

#[test]
fn what_was_done_is_said_in_words() {
    let done = Copied {
        files: 12,
        bytes: 3_400_000,
        kept: 8,
        gone: 0,
        weights: Some("out/weights/l1-v2".into()),
    };
    let words = done.in_words(Path::new("out"));
    assert_eq!(
        words,
        "Copied 12 files, 3.4 MB, to out; 8 were here already\nWeights are in out/weights/l1-v2\n"
    );
}
