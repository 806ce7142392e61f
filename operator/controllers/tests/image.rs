//! The operator's image: one binary and the system's shared objects that it loads (see `operator/Dockerfile`).

#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeSet,
    process::{Command, Stdio},
};

const MOST: u64 = 20 << 20;
const BINARY: &str = env!("CARGO_BIN_EXE_grpo-operator");

/// The loader and the shared objects, as `e2e/cluster/images.sh` copies them.
fn loaded() -> BTreeSet<String> {
    let said = Command::new("ldd").arg(BINARY).output().unwrap();
    let text = String::from_utf8(said.stdout).unwrap();
    let paths = text.split_whitespace().filter(|word| word.starts_with('/'));
    paths.map(str::to_owned).collect()
}

#[test]
fn what_is_pulled_of_the_image_is_at_most_20_mebibytes() {
    let mut files = loaded();
    files.insert(BINARY.to_owned());
    let unpacked: u64 = files.iter().map(|file| std::fs::metadata(file).unwrap().len()).sum();
    let mut tar = Command::new("tar")
        .args(["--dereference", "--absolute-names", "-c"])
        .args(&files)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let layer = Command::new("gzip").stdin(tar.stdout.take().unwrap()).output().unwrap();
    assert!(tar.wait().unwrap().success() && layer.status.success());
    let pulled = layer.stdout.len() as u64;
    println!("{} MiB pulled, {} MiB unpacked", pulled >> 20, unpacked >> 20);
    assert!(pulled > 1 << 20, "the layer is empty");
    assert!(pulled <= MOST, "{pulled} bytes");
}

#[test]
fn the_operator_loads_nothing_but_the_systems_c_library() {
    for file in loaded() {
        let name = file.rsplit('/').next().unwrap();
        let own = ["ld-linux", "libc.", "libm.", "libgcc_s."];
        assert!(own.iter().any(|known| name.starts_with(known)), "{file}");
    }
}
