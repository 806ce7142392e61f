use super::*;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    for path in entries {
        match path.is_dir() {
            true => sources(&path, into),
            false => into.push(path),
        }
    }
}

#[test]
fn the_page_was_built_from_these_sources() {
    let viewer = Path::new(env!("CARGO_MANIFEST_DIR")).join("../viewer");
    let mut files = vec![viewer.join("build.mjs"), viewer.join("package-lock.json")];
    sources(&viewer.join("src"), &mut files);
    let mut digest = Sha256::new();
    for path in files {
        let bytes = std::fs::read(&path).unwrap();
        let name = path.strip_prefix(&viewer).unwrap().to_str().unwrap();
        digest.update(format!("{name}\n{}\n", bytes.len()));
        digest.update(&bytes);
    }
    let built = SCRIPT.lines().next().unwrap();
    assert_eq!(
        built,
        format!("// sources {}", hex::encode(digest.finalize())),
        "run make viewer"
    );
}

#[test]
fn the_page_is_small() {
    // 400 kB when compressed, which JavaScript is to about two fifths.
    assert!(SCRIPT.len() + STYLE.len() < 800_000);
}
