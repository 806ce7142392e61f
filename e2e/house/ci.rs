//! `.ci/run` tests the commit of a clean checkout in a tree with a fixed path, so that a fresh clone compiles only its
//! differences from the previous commit.
//!
//! The tests run the script itself in tiny repositories, with a cache of their own.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
};

use tempfile::TempDir;

use crate::tree::repository;

const MANIFEST: &str = "[package]\nname = \"grpo-tiny\"\nversion = \"0.1.0\"\nedition = \"2024\"\n";
const MAKEFILE: &str = "test:\n\tcargo test --offline --tests\n";

/// A folder with a cache and with checkouts.
struct Place(TempDir);

impl Place {
    /// Checkout `first` has a commit of one crate.
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        let run = fs::read_to_string(repository().join(".ci/run")).unwrap();
        for (path, text) in [
            (".ci/run", run.as_str()),
            ("Cargo.toml", MANIFEST),
            ("Makefile", MAKEFILE),
            (".gitignore", "/target\n/Cargo.lock\n"),
            ("src/lib.rs", "pub mod part;\n"),
            ("src/part.rs", "pub const NUMBER: u8 = 1;\n"),
            ("tests/first.rs", "#[test]\nfn the_first() {}\n"),
        ] {
            place.write("first", path, text);
        }
        place.git("first", &["init", "--quiet"]);
        place.commit("first");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, checkout: &str, path: &str, text: &str) {
        let file = self.path(checkout).join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    fn git(&self, checkout: &str, arguments: &[&str]) {
        let identity = ["-c", "user.name=A", "-c", "user.email=a@example.com"];
        let mut git = Command::new("git");
        let git = git.arg("-C").arg(self.path(checkout)).args(identity).args(arguments);
        let output = git.output().unwrap();
        assert!(output.status.success(), "git {arguments:?}: {}", said(&output));
    }

    fn commit(&self, checkout: &str) {
        self.git(checkout, &["add", "--all"]);
        self.git(checkout, &["commit", "--quiet", "--message", "A commit"]);
    }

    /// A clone without history, as CI machines make it.
    fn cloned(&self, name: &str) {
        let (from, to) = (format!("file://{}", self.path("first").display()), self.path(name));
        self.git(
            "first",
            &["clone", "--quiet", "--depth", "1", &from, to.to_str().unwrap()],
        );
    }

    fn cargo_of_a_developer(&self, checkout: &str) {
        let mut cargo = Command::new(env!("CARGO"));
        cargo
            .args(["build", "--offline"])
            .env("CARGO_TARGET_DIR", self.path("cache/target"));
        let output = cargo.current_dir(self.path(checkout)).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
    }

    fn ci(&self, checkout: &str) -> Output {
        let mut run = Command::new("bash");
        run.arg(self.path(checkout).join(".ci/run"));
        run.env("GRPO_CACHE", self.path("cache")).env_remove("CARGO_TARGET_DIR");
        run.output().unwrap()
    }

    /// The output of a run that passes.
    fn passes(&self, checkout: &str) -> String {
        let output = self.ci(checkout);
        assert!(output.status.success(), "{}", said(&output));
        assert!(said(&output).contains("all of it (exit status 0)"), "{}", said(&output));
        said(&output)
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn compiles(said: &str, package: &str) -> bool {
    said.contains(&format!("Compiling {package} "))
}

#[test]
fn a_fresh_clone_compiles_only_what_differs_from_the_commit_before() {
    let place = Place::new();
    let said = place.passes("first");
    assert!(compiles(&said, "grpo-tiny") && said.contains("the_first"), "{said}");

    place.cloned("second");
    let said = place.passes("second");
    assert!(!compiles(&said, "grpo-tiny") && said.contains("the_first"), "{said}");

    // One file changes its path and content, one is added and one removed.
    place.git("first", &["rm", "--quiet", "src/part.rs", "tests/first.rs"]);
    place.write("first", "src/part/mod.rs", "pub const NUMBER: u8 = 2;\n");
    let test = "#[test]\nfn the_second() {\n    assert_eq!(grpo_tiny::part::NUMBER, 2);\n}\n";
    place.write("first", "tests/second.rs", test);
    place.commit("first");
    place.cloned("third");
    let said = place.passes("third");
    assert!(compiles(&said, "grpo-tiny") && said.contains("the_second"), "{said}");
    assert!(!said.contains("the_first"), "{said}");

    // And back, like a clone of an older commit.
    let said = place.passes("second");
    assert!(said.contains("the_first") && !said.contains("the_second"), "{said}");
}

#[test]
fn what_is_left_in_the_tree_is_removed_and_a_broken_tree_is_made_anew() {
    let place = Place::new();
    place.passes("first");
    let tree = place.path("cache/ci/tree");
    fs::write(tree.join("src/part.rs"), "broken").unwrap();
    fs::write(tree.join("tests/left.rs"), "broken").unwrap();
    place.passes("first");
    fs::remove_dir_all(tree.join(".git/objects")).unwrap();
    place.passes("first");
    assert!(!tree.join("tests/left.rs").exists());
}

#[test]
fn a_checkout_with_changes_is_tested_where_it_is_and_the_exit_status_is_that_of_the_tests() {
    let place = Place::new();
    place.write(
        "first",
        "tests/fails.rs",
        "#[test]\nfn it_fails() {\n    panic!();\n}\n",
    );
    let output = place.ci("first");
    let said = said(&output);
    assert_eq!(output.status.code(), Some(2), "make says so: {said}");
    assert!(said.contains("not committed") && said.contains("it_fails"), "{said}");
    assert!(said.contains("all of it (exit status 2)"), "{said}");
    assert!(place.path("first/target").exists() && !place.path("cache").exists());
}

#[test]
fn the_first_target_directory_takes_dependencies_that_were_compiled_but_none_of_our_crates() {
    let place = Place::new();
    // A registry, because cargo identifies other dependencies by their paths.
    let registry = "[source.crates-io]\nreplace-with = \"here\"\n[source.here]\ndirectory = \"crates\"\n";
    place.write(".cargo", "config.toml", registry);
    let other = MANIFEST.replace("grpo-tiny", "other");
    place.write("crates/other", "Cargo.toml", &other);
    place.write("crates/other", ".cargo-checksum.json", "{\"files\": {}}");
    place.write("crates/other", "src/lib.rs", "pub const NUMBER: u8 = 3;\n");
    let manifest = format!("{MANIFEST}\n[dependencies]\nother = \"0.1\"\n");
    place.write("first", "Cargo.toml", &manifest);
    place.commit("first");
    place.cloned("developed");
    place.cargo_of_a_developer("developed");
    let said = place.passes("first");
    assert!(said.contains("taking compiled dependencies"), "{said}");
    assert!(compiles(&said, "grpo-tiny") && !compiles(&said, "other"), "{said}");
}
