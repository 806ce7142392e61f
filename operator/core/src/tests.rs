//! Every example, and what becomes of it: `docs/examples/golden/<name>.yaml`, which the book's pages include.
//!
//! A manifest goes the way it goes in a cluster, without one: it is read with its defaults, a run's decision makes
//! objects, of which the pools go through their own decisions. `UPDATE_GOLDEN=1` (`make golden`) writes the files;
//! without it they are compared. That a real API server comes to hold the same objects is an end-to-end test.

use std::{collections::BTreeSet, fs, path::PathBuf};

use grpo_crds::{GrpoRun, InferencePool, SandboxPool};
use kube::ResourceExt;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    desired_object::DesiredObject, fixtures::assert_understood, grpo_run, inference_pool, names::RUN, sandbox_pool,
};

/// A word that is nowhere in the examples.
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

/// The manifests of an example, and everything that is made of them in turn.
fn objects_of(name: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder().join(format!("{name}.yaml"))).unwrap();
    let mut objects = Vec::new();
    for document in serde_yaml_ng::Deserializer::from_str(&text) {
        let document = accepted(Value::deserialize(document).unwrap(), objects.len());
        match document["kind"].as_str() {
            Some("GrpoRun") => of_run(&document, &mut objects),
            _ => of_pool(document, &mut objects),
        }
    }
    objects
}

/// An object as the API server returns it.
fn accepted(mut object: Value, number: usize) -> Value {
    object["metadata"]["namespace"] = json!(NAMESPACE);
    object["metadata"]["uid"] = json!(format!("uid-of-object-{number:04}"));
    object["metadata"]["generation"] = json!(1);
    object
}

fn of_run(document: &Value, objects: &mut Vec<Value>) {
    let run: GrpoRun = read(document);
    let (status, children) = grpo_run::tests::first_made(run.clone());
    objects.push(
        serde_json::to_value(GrpoRun {
            status: Some(status),
            ..run
        })
        .unwrap(),
    );
    for child in children {
        assert_understood(&child);
        let object = accepted(child.object, objects.len());
        match object["kind"].as_str() {
            Some("InferencePool" | "SandboxPool") => of_pool(object, objects),
            _ => objects.push(object),
        }
    }
}

fn of_pool(object: Value, objects: &mut Vec<Value>) {
    let children: Vec<DesiredObject> = match object["kind"].as_str() {
        Some("InferencePool") => {
            let pool: InferencePool = read(&object);
            let run = pool.labels().get(RUN).cloned();
            inference_pool::tests::first_made(pool, run)
        }
        Some("SandboxPool") => {
            let pool: SandboxPool = read(&object);
            let run = pool.labels().get(RUN).cloned();
            sandbox_pool::tests::first_made(pool, run)
        }
        other => panic!("examples are made of our kinds only, not of {other:?}"),
    };
    objects.push(object);
    for child in children {
        assert_understood(&child);
        objects.push(accepted(child.object, objects.len()));
    }
}

/// With the defaults that the API server fills in.
fn read<K: DeserializeOwned>(object: &Value) -> K {
    serde_json::from_value(object.clone()).unwrap()
}
