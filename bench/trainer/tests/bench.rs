//! The bench in small, ours alone: it measures, compares and writes.

#![allow(clippy::unwrap_used)]

use std::process::Command;

#[test]
fn the_bench_in_small_finds_shared_and_unshared_steps_to_be_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("trainer.json");
    let ran = Command::new(env!("CARGO_BIN_EXE_grpo-bench-trainer"))
        .args(["bench", "--short", "--rounds", "1"])
        .arg("--folder")
        .arg(folder.path())
        .arg("--out")
        .arg(&out)
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let file: serde_json::Value = serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap();
    let value = |words: &[&str]| -> f64 {
        let rows = file["rows"].as_array().unwrap();
        let found: Vec<&serde_json::Value> = rows
            .iter()
            .filter(|row| words.iter().all(|word| row["figure"].as_str().unwrap().contains(word)))
            .collect();
        assert_eq!(found.len(), 1, "{words:?}");
        found[0]["value"].as_f64().unwrap()
    };
    for case in ["group of eight", "append-only", "trimmed"] {
        assert!(value(&[case, "gradients"]) < 1e-4 && value(&[case, "loss"]) < 1e-5);
        assert!(value(&[case, "the bound of sharing"]) > 2.0, "{case}");
    }
}

/// Figures 5, 6, 7 and 9 in small: each is of processes that meet on the loopback.
#[test]
fn several_ranks_compute_what_one_does_however_they_divide_it() {
    let folder = tempfile::tempdir().unwrap();
    let ran = Command::new(env!("CARGO_BIN_EXE_grpo-bench-trainer"))
        .args(["bench", "--short", "--rounds", "1", "--figures", "5,6,7,9"])
        .arg("--folder")
        .arg(folder.path())
        .arg("--out")
        .arg(folder.path().join("trainer.json"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}\n{}", String::from_utf8_lossy(&ran.stderr));
    for words in [
        "2 data parallel x 2 sequence parallel, sharded over groups of 2, fp64",
        "off by",
        "64 times the tokens of a wave, peak bytes",
        "cost of sharding",
    ] {
        assert!(said.contains(words), "{said}");
    }
}
