//! Every example and its plan: `docs/examples/golden/<name>.yaml`, which the book's pages include.
//!
//! A manifest takes the same path as in a cluster, without one ([`crate::preview`]). `UPDATE_GOLDEN=1` (`make golden`)
//! writes the files; otherwise they are compared. An end-to-end test checks that a real API server holds the same
//! objects.

use std::{collections::BTreeSet, fs, path::PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::{
    fixtures::{assert_known, surroundings},
    preview,
    settings::Settings,
};

/// A word that appears in no example.
const NAMESPACE: &str = "namespace-of-the-example";

#[test]
fn every_example_becomes_what_its_golden_file_says() {
    let updates = std::env::var_os("UPDATE_GOLDEN").is_some();
    let mut stale = Vec::new();
    for name in examples() {
        let made = crate::plan::plan(&name, NAMESPACE, &objects_of(&name)).unwrap();
        let file = folder().join("golden").join(format!("{name}.yaml"));
        if updates {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, made).unwrap();
        } else if let Some(line) = first_difference(&fs::read_to_string(&file).unwrap_or_default(), &made) {
            stale.push(format!("{name}, line {line}"));
        }
    }
    assert!(
        stale.is_empty(),
        "docs/examples/golden says something else than what is made now: {stale:?}. If the change is meant: make golden, and read the difference"
    );
}

#[test]
fn no_golden_file_outlives_its_example() {
    let orphans: Vec<String> = names_in(&folder().join("golden"))
        .difference(&examples())
        .cloned()
        .collect();
    assert!(
        orphans.is_empty(),
        "delete the golden files of examples that are gone: {orphans:?}"
    );
}

fn first_difference(written: &str, made: &str) -> Option<usize> {
    if written == made {
        return None;
    }
    let same = written
        .lines()
        .zip(made.lines())
        .take_while(|(one, other)| one == other);
    Some(same.count() + 1)
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples")
}

fn examples() -> BTreeSet<String> {
    names_in(&folder())
}

fn names_in(folder: &PathBuf) -> BTreeSet<String> {
    let files = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path());
    files
        .filter(|file| file.extension().is_some_and(|extension| extension == "yaml"))
        .map(|file| file.file_stem().unwrap().to_string_lossy().into_owned())
        .collect()
}

/// The manifests of an example, and all objects created from them.
fn objects_of(name: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder().join(format!("{name}.yaml"))).unwrap();
    let manifests: Vec<Value> = serde_yaml_ng::Deserializer::from_str(&text)
        .map(|document| Value::deserialize(document).unwrap())
        .collect();
    let settings = Settings::admitting_unsupported();
    let objects = preview::objects(&manifests, &surroundings(NAMESPACE, &settings)).unwrap();
    let owned = |object: &&Value| !object["metadata"]["ownerReferences"].is_null();
    objects.iter().filter(owned).for_each(assert_known);
    objects
}
