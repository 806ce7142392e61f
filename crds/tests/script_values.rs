//! Every manifest of a reference system beside the script that it stands for, value by value.
//!
//! `docs/values/<manifest>.yaml` names each setting of the script with its value there, and the field that has it here.
//! A value that differs needs a reason, and so does a setting without a field; a value that is equal has none. Every
//! value that a manifest sets is named too. The same rows make the book's page `docs/src/values.md` and the tables of
//! the pages `docs/src/moving`, which `UPDATE_GOLDEN=1` (`make golden`) writes.

mod compare;
mod manifests;
mod moving;
mod page;
mod rows;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use manifests::Manifests;
use rows::Values;

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

/// Names of the YAML files of a folder.
fn names_in(folder: &Path) -> BTreeSet<String> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files
        .filter(|file| file.extension().is_some_and(|extension| extension == "yaml"))
        .map(|file| file.file_stem().unwrap().to_string_lossy().into_owned())
        .collect()
}

#[test]
fn every_manifest_has_a_file_of_values_and_every_file_a_manifest() {
    let (manifests, values) = (names_in(&docs().join("examples")), names_in(&docs().join("values")));
    assert!(manifests.len() >= 15, "there are only {} manifests", manifests.len());
    assert_eq!(
        manifests, values,
        "docs/examples has the manifests, docs/values the values of their scripts"
    );
}

#[test]
fn every_list_of_common_settings_is_used() {
    let used: BTreeSet<String> = names_in(&docs().join("values"))
        .iter()
        .filter_map(|name| Values::read(&docs().join("values"), name).shared)
        .collect();
    assert_eq!(used, names_in(&docs().join("values/shared")));
}

#[test]
fn every_difference_from_a_script_has_a_reason() {
    let manifests = Manifests::read(&docs().join("examples"));
    let mut faults = Vec::new();
    for name in names_in(&docs().join("values")) {
        let values = Values::read(&docs().join("values"), &name);
        faults.extend(compare::faults(&manifests, &name, &values));
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// The manifests whose names begin so, with their values.
fn values_of(beginning: &str) -> Vec<(String, Values)> {
    names_in(&docs().join("values"))
        .into_iter()
        .filter(|name| name.starts_with(beginning))
        .map(|name| (name.clone(), Values::read(&docs().join("values"), &name)))
        .collect()
}

/// Compares a page with its file or, for `make golden`, writes the file.
fn compare_or_write(name: &str, made: &str) {
    let file = docs().join("src").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&file, made).unwrap();
        return;
    }
    let written = fs::read_to_string(&file).unwrap_or_default();
    let same = written
        .lines()
        .zip(made.lines())
        .take_while(|(one, other)| one == other);
    assert!(
        written == made,
        "docs/src/{name} is not what docs/values says, from line {} on: run `make golden`",
        same.count() + 1
    );
}

#[test]
fn the_page_of_values_is_its_golden_file() {
    let manifests = Manifests::read(&docs().join("examples"));
    compare_or_write("values.md", &page::page(&manifests, &values_of("")));
}

#[test]
fn the_tables_of_the_pages_on_moving_are_their_golden_files() {
    for (page, beginning) in moving::PAGES {
        let name = format!("moving/{page}.md");
        let written = fs::read_to_string(docs().join("src").join(&name)).unwrap();
        let made = moving::with_table(&written, &moving::table(&values_of(beginning)));
        compare_or_write(&name, &made.unwrap_or_else(|| panic!("docs/src/{name} has no markers")));
    }
}
