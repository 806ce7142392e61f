use super::*;
use crate::repository::Digest;

fn files(paths: &[&str]) -> Vec<RemoteFile> {
    let file = |path: &&str| RemoteFile {
        path: (*path).to_owned(),
        size: 1,
        digest: Digest::GitBlob(String::new()),
    };
    paths.iter().map(file).collect()
}

fn chosen(card: Option<&str>, paths: &[&str], config: Option<&str>, split: &str) -> Result<Vec<String>, String> {
    let found = split_files(&Repository::dataset("a/b"), card, &files(paths), config, split);
    let found = found.map_err(|error| error.to_string())?;
    Ok(found.into_iter().map(|file| file.path).collect())
}

const VERIFIED: &str = "---\ndataset_info:\n  features: []\nconfigs:\n- config_name: default\n  data_files:\n  - split: test\n    path: data/test-*\n---\n# Words\n";

#[test]
fn a_card_names_the_files_of_a_split() {
    let paths = ["README.md", "data/test-00000-of-00001.parquet", "data/other.parquet"];
    let found = chosen(Some(VERIFIED), &paths, None, "test");
    assert_eq!(found.unwrap(), ["data/test-00000-of-00001.parquet"]);
    let error = chosen(Some(VERIFIED), &paths, None, "train").unwrap_err();
    assert!(error.contains("no split \"train\"; it has test"), "{error}");
    let error = chosen(Some(VERIFIED), &paths, Some("lite"), "test").unwrap_err();
    assert!(error.contains("no configuration \"lite\"; it has default"), "{error}");
}

#[test]
fn a_card_may_have_one_pattern_or_several_configurations_and_folders() {
    let card = "---\nconfigs:\n- config_name: py\n  data_dir: python\n  data_files: '*.jsonl'\n- config_name: go\n  default: true\n  data_files:\n  - split: train\n    path: [go/a.jsonl, 'go/b/**']\n---\n";
    let paths = [
        "python/x.jsonl",
        "python/deep/y.jsonl",
        "go/a.jsonl",
        "go/b/c/d.jsonl",
        "go/z.jsonl",
    ];
    assert_eq!(
        chosen(Some(card), &paths, Some("py"), "train").unwrap(),
        ["python/x.jsonl"]
    );
    assert_eq!(
        chosen(Some(card), &paths, None, "train").unwrap(),
        ["go/a.jsonl", "go/b/c/d.jsonl"]
    );
    let card = "---\nconfigs:\n- config_name: a\n- config_name: b\n---\n";
    let error = chosen(Some(card), &paths, None, "train").unwrap_err();
    assert!(error.contains("set config to one of a, b"), "{error}");
}

#[test]
fn without_a_card_names_of_files_or_folders_tell_the_split() {
    /// Paths, configuration, split, and the split's files.
    type Case = (
        &'static [&'static str],
        Option<&'static str>,
        &'static str,
        &'static [&'static str],
    );
    let cases: [Case; 9] = [
        (&["train.jsonl", "test.jsonl"], None, "train", &["train.jsonl"]),
        (
            &["data/dev-00000-of-00002.parquet", "data/dev-00001-of-00002.parquet"],
            None,
            "validation",
            &["data/dev-00000-of-00002.parquet", "data/dev-00001-of-00002.parquet"],
        ),
        (
            &["data/eval/a.json", "data/train/a.json"],
            None,
            "test",
            &["data/eval/a.json"],
        ),
        (
            &["rl_test.parquet", "rl_train.parquet"],
            None,
            "test",
            &["rl_test.parquet"],
        ),
        // No name contains a split: all files are train.
        (
            &["rows.jsonl", "dataset_infos.json", ".hidden/x.json"],
            None,
            "train",
            &["rows.jsonl"],
        ),
        (&["constrained.jsonl"], None, "train", &["constrained.jsonl"]),
        // Without a card, a configuration is a folder.
        (
            &["en/train.jsonl", "de/train.jsonl"],
            Some("de"),
            "train",
            &["de/train.jsonl"],
        ),
        (
            &["default/train/0000.parquet"],
            Some("default"),
            "train",
            &["default/train/0000.parquet"],
        ),
        (
            &["data/hard-00000-of-00001.parquet", "data/easy-00000-of-00001.parquet"],
            None,
            "hard",
            &["data/hard-00000-of-00001.parquet"],
        ),
    ];
    for (paths, config, split, wanted) in cases {
        assert_eq!(chosen(None, paths, config, split).unwrap(), wanted, "{paths:?} {split}");
    }
    let error = chosen(None, &["train.jsonl"], None, "test").unwrap_err();
    assert!(
        error.contains("no file for the split \"test\"; it has train.jsonl"),
        "{error}"
    );
    let error = chosen(None, &["train.csv"], None, "train").unwrap_err();
    assert!(error.contains("no JSON lines and no parquet"), "{error}");
}

#[test]
fn shards_of_another_split_and_files_beside_the_rows_are_left_out() {
    let shards = [
        "data/train_sft-00000-of-00001.parquet",
        "data/train-00000-of-00001.parquet",
    ];
    assert_eq!(chosen(None, &shards, None, "train").unwrap(), shards[1..]);
    assert_eq!(chosen(None, &shards, None, "train_sft").unwrap(), shards[..1]);
    let beside = [".gitattributes", "README.md", "config.json", "rows.jsonl"];
    let card = "---\nconfigs:\n- config_name: default\n  data_files: '**'\n---\n";
    assert_eq!(chosen(Some(card), &beside, None, "train").unwrap(), ["rows.jsonl"]);
    assert_eq!(chosen(None, &beside, None, "train").unwrap(), ["rows.jsonl"]);
}

#[test]
fn rows_of_several_configurations_are_not_mixed() {
    let paths = [
        "go/train/0000.parquet",
        "go/train/0001.parquet",
        "py/train/0000.parquet",
    ];
    let error = chosen(None, &paths, None, "train").unwrap_err();
    assert!(error.contains("set config to one of go, py"), "{error}");
    assert_eq!(chosen(None, &paths, Some("go"), "train").unwrap(), paths[..2]);
}

#[test]
fn files_of_a_format_that_is_not_read_point_to_the_hubs_conversion() {
    let card = "---\nconfigs:\n- config_name: default\n  data_files: rows.arrow\n---\n";
    let error = chosen(Some(card), &["rows.arrow"], None, "train").unwrap_err();
    assert!(error.contains("rows.arrow") && error.contains(CONVERTED), "{error}");
}

#[test]
fn patterns_stop_at_folders_unless_they_are_doubled() {
    let cases = [
        ("data/*.parquet", "data/a.parquet", true),
        ("data/*.parquet", "data/x/a.parquet", false),
        ("**/*.parquet", "data/x/a.parquet", true),
        ("**/*.parquet", "a.parquet", true),
        ("data/**", "data/x/a", true),
        ("data/**/a", "data/a", true),
        ("data/tes?-*", "data/test-0", true),
        ("data/test", "data/test-0", false),
        ("", "", true),
    ];
    for (pattern, path, wanted) in cases {
        assert_eq!(is_match(pattern, path), wanted, "{pattern} {path}");
    }
}
